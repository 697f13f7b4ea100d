package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/policy"
)

// EventAnnounced is the notice of what a policy in its grace period would delete.
const EventAnnounced = "autoprune.announced"

// AnnouncedNotice is the content of EventAnnounced. Without Policy, it is the detail of the
// announcement's entry in the audit log.
type AnnouncedNotice struct {
	Run        string        `json:"run,omitempty"`
	Namespace  string        `json:"namespace,omitempty"`
	Policy     *NoticePolicy `json:"policy,omitempty"`
	Version    int64         `json:"version"`
	ActiveFrom time.Time     `json:"active_from"`
	Would      int64         `json:"tags_would_delete"`
	Tags       []string      `json:"tags"` // the first 20, as repository:tag
}

// grace returns the length of a policy's grace period; nil if it has none.
func (p *Pruner) grace(of policy.Policy) *time.Duration {
	length := p.opt.Grace
	if of.GraceGiven() {
		length = of.Grace.Duration()
	}
	if of.Mode != "" || of.Method == policy.UntaggedManifests || length == 0 {
		return nil
	}
	return &length
}

// announced returns whether the policy, in its version, was announced in the namespace.
func (l *policies) announced(s Saved) bool { return l.announcements[s.ID] == s.Version }

// needsTally returns whether a run must count what the policy would delete.
func (l *policies) needsTally(s Saved) bool {
	return s.Problem == "" && s.Policy.Mode == "" && s.ActiveFrom != nil && !l.announced(s)
}

// announce announces the policies that wait for it, in the transaction that ends the run. It
// returns whether it has queued notices.
func (u *timeSlice) announce(ctx context.Context, tx pgx.Tx) (told bool, err error) {
	for _, s := range u.policies.all() {
		y := u.tallies[s.ID]
		if y == nil || y.Partial || !u.policies.needsTally(s) {
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
		of := u.policies.notice(s)
		n.Run, n.Namespace, n.Policy = u.task.run.String(), u.task.name, &of
		if err := u.p.opt.Notify(ctx, tx, EventAnnounced, n); err != nil {
			return told, err
		}
		told = true
	}
	return told, nil
}

// notice describes a policy of the namespace for notices.
func (l *policies) notice(s Saved) NoticePolicy {
	n := NoticePolicy{ID: s.ID, Scope: policy.DefaultScope, Policy: s.Policy}
	for _, own := range l.namespace {
		if own.ID == s.ID {
			n.Scope = policy.NamespaceScope
		}
	}
	for repository, list := range l.repositories {
		for _, own := range list {
			if own.ID == s.ID {
				n.Scope, n.Repository = policy.RepositoryScope, repository
			}
		}
	}
	return n
}

// all returns the policies that apply somewhere in the namespace.
func (l *policies) all() (list []Saved) {
	for _, s := range l.defaults {
		if !l.off && (s.Setting || len(l.namespace) == 0) {
			list = append(list, s)
		}
	}
	list = append(list, l.namespace...)
	for _, own := range l.repositories {
		list = append(list, own...)
	}
	return list
}

// keepAnnounced lets a policy that was saved unchanged stay announced, where it was, and what was
// confirmed of it stay confirmed.
func keepAnnounced(ctx context.Context, tx pgx.Tx, id string, version int64) error {
	for _, table := range []string{"autopruneannouncements", "autoprunerests"} {
		if _, err := tx.Exec(ctx, "UPDATE "+table+" SET version = version + 1 WHERE policy = $1 AND version = $2", id, version); err != nil {
			return err
		}
	}
	return nil
}
