package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/policies"
)

// EventAnnounced is the notice of what a policy in its grace period would delete.
const EventAnnounced = "autoprune.announced"

// AnnouncedNotice is the content of EventAnnounced. Without Policy, it is the detail of the
// announcement's entry in the audit log.
type AnnouncedNotice struct {
	Run        string                 `json:"run,omitempty"`
	Namespace  string                 `json:"namespace,omitempty"`
	Policy     *policies.NoticePolicy `json:"policy,omitempty"`
	Version    int64                  `json:"version"`
	ActiveFrom time.Time              `json:"active_from"`
	Would      int64                  `json:"tags_would_delete"`
	Tags       []string               `json:"tags"` // the first 20, as repository:tag
}

// announce announces the policies that wait for it, in the transaction that ends the run. It
// returns whether it has queued notices.
func (u *timeSlice) announce(ctx context.Context, tx pgx.Tx) (told bool, err error) {
	for _, s := range u.policies.All() {
		y := u.tallies[s.ID]
		if y == nil || y.Partial || !u.policies.NeedsTally(s) {
			continue
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO autopruneannouncements AS a (policy, namespace_id, version) VALUES ($1, $2, $3)
			ON CONFLICT (policy, namespace_id) DO UPDATE SET version = EXCLUDED.version, announced_at = now()`,
			s.ID, u.task.namespace, s.Version)
		if err != nil {
			return told, fmt.Errorf("announcing policy %s: %w", s.ID, err)
		}
		n := AnnouncedNotice{Version: s.Version, ActiveFrom: s.ActiveFrom.UTC(), Would: y.Selected, Tags: append([]string{}, y.Tags...)}
		e := audit.Entry{Kind: audit.AnnounceAutoprune, Namespace: u.task.name, Run: u.task.run, Detail: n}
		e.Policy, _ = uuid.Parse(s.ID) // ids of ours are uuids
		if err := audit.Append(ctx, tx, e); err != nil {
			return told, err
		}
		if u.p.opt.Notify == nil {
			continue
		}
		of := u.policies.Notice(s)
		n.Run, n.Namespace, n.Policy = u.task.run.String(), u.task.name, &of
		if err := u.p.opt.Notify(ctx, tx, EventAnnounced, n); err != nil {
			return told, err
		}
		told = true
	}
	return told, nil
}
