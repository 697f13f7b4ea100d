package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// EventAsks is the notice that a policy would delete more than its cap.
const EventAsks = "autoprune.asks"

// approvalLasts is how long an approval is valid.
const approvalLasts = 7 * 24 * time.Hour

// RunAsk is a policy that deletes nothing in a run, because it would delete more than its cap
// allows.
type RunAsk struct {
	Policy  string       `json:"policy,omitempty" doc:"uuid of the policy. Absent for a policy that isn't saved"`
	Scope   policy.Scope `json:"scope"`
	Version int64        `json:"version" doc:"Version of the policy, which each saving of the policy raises: an approval is of one version"`
	Would   int64        `json:"tags_would_delete" doc:"Tags that it would delete"`
	Most    int64        `json:"may_delete" doc:"Tags that its cap allows"`
}

// AsksNotice is the content of EventAsks.
type AsksNotice struct {
	Run       string                `json:"run"`
	Namespace string                `json:"namespace"`
	Policy    policies.NoticePolicy `json:"policy"`
	Version   int64                 `json:"version"`
	Would     int64                 `json:"tags_would_delete"`
	Most      int64                 `json:"may_delete"`
}

// asks returns the policies of the list that ask.
func (c *caps) asks(l *policies.Set, list []policies.Saved) (asks []RunAsk) {
	if c == nil || c.Counting {
		return nil
	}
	for _, s := range list {
		if own := c.of(s); own != nil && own.Asks && !own.Partial {
			asks = append(asks, RunAsk{Policy: s.ID, Scope: l.Notice(s).Scope, Version: s.Version, Would: own.Selected, Most: own.Cap})
		}
	}
	return asks
}

// asksJSON returns the policies that ask as the database stores them.
func (u *timeSlice) asksJSON() (string, error) {
	list := u.caps.asks(u.policies, u.policies.WithCaps())
	if list == nil {
		return "[]", nil
	}
	b, err := json.Marshal(list)
	return string(b), err
}

// asking says in the status of the task how many policies ask.
func (u *timeSlice) asking() string {
	switch n := len(u.caps.asks(u.policies, u.policies.WithCaps())); n {
	case 0:
		return ""
	case 1:
		return "; 1 policy asks for an approval"
	default:
		return fmt.Sprintf("; %d policies ask for approvals", n)
	}
}

// storedAsk is a row of autopruneasks.
type storedAsk struct {
	Version, Would, Most, Told int64
	Used                       bool // its approval
}

// ask stores which policies ask, in the transaction that ends the run, and deletes the
// questions and approvals that are of no use any more. `told` says whether it sent notices. Each
// row of autopruneasks is changed only in transactions that have locked the task.
func (u *timeSlice) ask(ctx context.Context, tx pgx.Tx) (told bool, err error) {
	if u.caps == nil || u.caps.Counting {
		return false, nil
	}
	stored, err := storedAsks(ctx, tx, u.task.namespace)
	if err != nil {
		return false, err
	}
	for _, s := range u.policies.WithCaps() {
		own := u.caps.of(s)
		if own == nil || own.Partial {
			continue
		}
		old, known := stored[s.ID]
		again := !known || old.Version != s.Version || old.Used
		switch {
		case own.Asks:
			if again || own.Selected*10 >= old.Told*11 {
				one, err := u.askFor(ctx, tx, s, own, again)
				if told = told || one; err != nil {
					return told, err
				}
				continue
			}
		case known && (own.Selected <= own.Cap && !own.Undecided || again):
			if _, err := tx.Exec(ctx, "DELETE FROM autopruneasks WHERE policy = $1 AND namespace_id = $2", s.ID, u.task.namespace); err != nil {
				return told, fmt.Errorf("deleting the question of policy %s: %w", s.ID, err)
			}
			continue
		}
		if known && !again && !own.Undecided && (old.Would != own.Selected || old.Most != own.Cap) {
			_, err := tx.Exec(ctx, "UPDATE autopruneasks SET tags = $3, most = $4 WHERE policy = $1 AND namespace_id = $2",
				s.ID, u.task.namespace, own.Selected, own.Cap)
			if err != nil {
				return told, fmt.Errorf("storing the question of policy %s: %w", s.ID, err)
			}
		}
	}
	return told, nil
}

// storedAsks returns the namespace's rows of autopruneasks by policy.
func storedAsks(ctx context.Context, tx pgx.Tx, namespace int64) (map[string]storedAsk, error) {
	rows, err := tx.Query(ctx, "SELECT policy, version, tags, most, told, approved_run IS NOT NULL FROM autopruneasks WHERE namespace_id = $1", namespace)
	if err != nil {
		return nil, fmt.Errorf("looking for questions: %w", err)
	}
	stored := make(map[string]storedAsk)
	var id string
	var s storedAsk
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Version, &s.Would, &s.Most, &s.Told, &s.Used}, func() error {
		stored[id] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for questions: %w", err)
	}
	return stored, nil
}

// askFor stores that a policy asks, and tells it in the audit log and a notice. `again` says
// that an approval that the policy had is of no use any more. `told` says whether a notice was
// queued.
func (u *timeSlice) askFor(ctx context.Context, tx pgx.Tx, s policies.Saved, own *cappedPolicy, again bool) (told bool, err error) {
	_, err = tx.Exec(ctx, `
		INSERT INTO autopruneasks AS a (policy, namespace_id, version, tags, most, told) VALUES ($1, $2, $3, $4, $5, $4)
		ON CONFLICT (policy, namespace_id) DO UPDATE SET
			version = EXCLUDED.version, tags = EXCLUDED.tags, most = EXCLUDED.most, told = EXCLUDED.told, asked_at = now(),
			approved = CASE WHEN NOT $6 THEN a.approved END, approved_until = CASE WHEN NOT $6 THEN a.approved_until END, approved_run = NULL`,
		s.ID, u.task.namespace, s.Version, own.Selected, own.Cap, again)
	if err != nil {
		return false, fmt.Errorf("storing the question of policy %s: %w", s.ID, err)
	}
	of := u.policies.Notice(s)
	e := audit.Entry{Kind: audit.AskAutoprune, Namespace: u.task.name, Run: u.task.run,
		Detail: map[string]any{"version": s.Version, "tags_would_delete": own.Selected, "may_delete": own.Cap}}
	e.Policy, _ = uuid.Parse(s.ID) // ids of ours are uuids
	if err := audit.Append(ctx, tx, e); err != nil || u.p.opt.Notify == nil {
		return false, err
	}
	return true, u.p.opt.Notify(ctx, tx, EventAsks, AsksNotice{
		Run: u.task.run.String(), Namespace: u.task.name, Policy: of, Version: s.Version, Would: own.Selected, Most: own.Cap,
	})
}

// Ask is a policy that asked in the last run of a namespace, because it would have deleted more
// than its cap allows.
type Ask struct {
	RunAsk
	Repository string     `json:"repository,omitempty" doc:"Name of the repository, if the policy is a repository's"`
	Asked      time.Time  `json:"asked_at" doc:"When the last notice was sent: the first one, or one after the number grew by a tenth"`
	Approved   *int64     `json:"approved,omitempty" doc:"Tags that were approved: so many the policy may delete in one run"`
	Until      *time.Time `json:"approved_until,omitempty" doc:"When the approval ends"`
}

// Asks lists the policies of a namespace that ask, in the order in which they apply. It returns
// the error NAME_UNKNOWN if the namespace doesn't exist.
func (p *Pruner) Asks(ctx context.Context, namespace string) ([]Ask, error) {
	o, err := policies.Target{Namespace: namespace}.Find(ctx, p.db.Pool, false)
	if err != nil {
		return nil, err
	}
	return asksOf(ctx, p.db.Pool, o)
}

// asksOf is Asks by q alone.
func asksOf(ctx context.Context, q db.Querier, o policies.Owner) ([]Ask, error) {
	l, err := policies.Read(ctx, q, o.Namespace)
	if err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, `
		SELECT a.policy, a.version, a.tags, a.most, a.asked_at,
			CASE WHEN a.approved_until > clock_timestamp() THEN a.approved END,
			CASE WHEN a.approved_until > clock_timestamp() THEN a.approved_until END, COALESCE(r.path, '')
		FROM autopruneasks a
		LEFT JOIN repositoryautoprunepolicy p ON p.uuid = a.policy
		LEFT JOIN repositories r ON r.id = p.repository_id
		WHERE a.namespace_id = $1 AND a.approved_run IS NULL AND r.deleted_at IS NULL`, o.Namespace)
	if err != nil {
		return nil, fmt.Errorf("listing the policies of namespace %s that ask: %w", o.Name, err)
	}
	asks := make(map[string]Ask)
	var a Ask
	_, err = pgx.ForEachRow(rows, []any{&a.Policy, &a.Version, &a.Would, &a.Most, &a.Asked, &a.Approved, &a.Until, &a.Repository}, func() error {
		asks[a.Policy] = a
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the policies of namespace %s that ask: %w", o.Name, err)
	}
	list := []Ask{}
	for _, s := range l.WithCaps() {
		if a, ok := asks[s.ID]; ok && a.Version == s.Version {
			a.Scope = l.Notice(s).Scope
			list = append(list, a)
		}
	}
	return list, nil
}

// Approve lets a policy that asks in a namespace delete up to `tags` tags in one run, within a
// week and as long as the policy has this version. It puts the namespace's task at the head of
// the queue. It returns NAME_UNKNOWN if the namespace doesn't exist or the policy doesn't ask
// there, and UNSUPPORTED with status 409 if the policy has another version or asks for more
// tags.
func (p *Pruner) Approve(ctx context.Context, namespace, policy string, version, tags int64) (Ask, error) {
	var out Ask
	err := p.db.Tx(ctx, func(tx pgx.Tx) error {
		o, err := policies.Target{Namespace: namespace}.Find(ctx, tx, true)
		if err != nil {
			return err
		}
		// The task is locked before the question, as in the transaction that ends a run.
		if _, err := tx.Exec(ctx, requestRun, o.Namespace); err != nil {
			return err
		}
		list, err := asksOf(ctx, tx, o)
		if err != nil {
			return err
		}
		asks := false
		for _, a := range list {
			if a.Policy == policy {
				asks, out = true, a
			}
		}
		detail := map[string]any{"policy": policy, "version": out.Version, "tags_would_delete": out.Would}
		switch {
		case !asks:
			return oci.NotFound("policy %q doesn't ask in namespace %s", policy, namespace).WithDetail(map[string]string{"policy": policy})
		case out.Version != version:
			return oci.Errorf(oci.Unsupported, "policy %s has version %d, and version %d was approved: look at it once more", policy, out.Version, version).
				WithStatus(409).WithDetail(detail)
		case tags < out.Would:
			return oci.Errorf(oci.Unsupported, "policy %s would delete %d tags, more than the %d that were approved", policy, out.Would, tags).
				WithStatus(409).WithDetail(detail)
		}
		done, err := tx.Exec(ctx, `
			UPDATE autopruneasks SET approved = $4, approved_until = clock_timestamp() + $5::interval
			WHERE policy = $1 AND namespace_id = $2 AND version = $3 AND approved_run IS NULL`,
			policy, o.Namespace, version, tags, approvalLasts)
		if err != nil {
			return err
		}
		if done.RowsAffected() == 0 {
			return oci.NotFound("policy %q doesn't ask in namespace %s any more", policy, namespace).WithDetail(map[string]string{"policy": policy})
		}
		until := time.Now().Add(approvalLasts).UTC()
		out.Approved, out.Until = &tags, &until
		e := audit.Entry{Kind: audit.ApproveAutoprune, Namespace: namespace,
			Detail: map[string]any{"version": version, "tags_would_delete": out.Would, "approved": tags}}
		e.Policy, _ = uuid.Parse(policy) // ids of ours are uuids
		return audit.Append(ctx, tx, e)
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return Ask{}, fmt.Errorf("approving policy %s in namespace %s: %w", policy, namespace, err)
	}
	if err != nil {
		return Ask{}, err
	}
	p.loop.Wake()
	return out, nil
}

// NamespaceAsks says how many policies ask in a namespace.
type NamespaceAsks struct {
	Namespace string    `json:"namespace"`
	Policies  int64     `json:"policies" doc:"Policies that ask and have no approval. A policy that was changed or deleted since the last run may be among them"`
	Tags      int64     `json:"tags_would_delete" doc:"Tags that they would delete"`
	Asked     time.Time `json:"asked_at" doc:"The oldest of their notices"`
}

// AsksPlace is the place of a namespace in the list.
type AsksPlace struct {
	Asked     time.Time
	Namespace string
}

// WaitingAsks lists up to n namespaces in which policies ask and nobody has approved, the namespace
// that has waited longest first, after the place `after`, whose zero value is before the first. It
// says whether there are more. It doesn't look at the policies themselves: Asks
// tells for one namespace which of them still ask.
func (p *Pruner) WaitingAsks(ctx context.Context, after AsksPlace, n int) (list []NamespaceAsks, more bool, err error) {
	rows, err := p.db.Pool.Query(ctx, `
		SELECT n.name, count(*), sum(a.tags)::bigint, min(a.asked_at)
		FROM autopruneasks a JOIN top_level_namespaces n ON n.id = a.namespace_id AND n.deleted_at IS NULL
		WHERE a.approved_run IS NULL AND (a.approved_until IS NULL OR a.approved_until <= clock_timestamp())
		GROUP BY n.name HAVING (min(a.asked_at), n.name) > ($1, $2) ORDER BY min(a.asked_at), n.name LIMIT $3`, after.Asked, after.Namespace, n+1)
	list, more, err = db.Page(rows, err, n, func(row pgx.CollectableRow) (a NamespaceAsks, err error) {
		err = row.Scan(&a.Namespace, &a.Policies, &a.Tags, &a.Asked)
		return a, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("listing the namespaces whose policies ask: %w", err)
	}
	return list, more, nil
}
