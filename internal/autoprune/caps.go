package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/worker"
)

// caps is what a run knows of the policies with a cap (maxDeleted, maxDeletedPercent). The run
// first goes through all repositories and counts what these policies would delete. Then it
// decides which policies must ask, and goes through the repositories again to delete tags.
type caps struct {
	Counting bool                     `json:"counting,omitempty"` // the run is in its first phase
	Next     int64                    `json:"next,omitempty"`     // repositories up to this id are counted
	Versions [3]int64                 `json:"versions"`           // task.versions when the count began
	Policies map[string]*cappedPolicy `json:"policies"`
}

// cappedPolicy is what a run knows of one policy with a cap.
type cappedPolicy struct {
	Version int64 `json:"version"`
	capCount
	Cap      int64 `json:"cap"`                // tags that its cap allows
	Most     int64 `json:"most"`               // tags that it may delete: Cap, or what was approved
	Approved bool  `json:"approved,omitempty"` // Most was approved
	Asks     bool  `json:"asks,omitempty"`     // it would delete more than Most
	Deleted  int64 `json:"deleted"`
	// Full says that a deletion would have made Deleted exceed Most, because further tags have
	// come since the count.
	Full bool `json:"full,omitempty"`
	// Partial says that the count lacks a repository, so the policy deletes nothing in this run.
	Partial bool `json:"partial,omitempty"`
}

// capCount is what a policy would delete if no policy waited.
type capCount struct {
	Considered int64 `json:"considered"` // tags that it looks at, and attached tags that it would delete
	Selected   int64 `json:"selected"`   // tags that it would delete
	// Undecided says that the policy can't be applied to some repository at present.
	Undecided bool `json:"undecided,omitempty"`
}

// newCaps returns the caps at the beginning of a count.
func newCaps(list []policies.Saved, versions [3]int64) *caps {
	c := &caps{Counting: true, Versions: versions, Policies: make(map[string]*cappedPolicy)}
	for _, s := range list {
		c.Policies[s.ID] = &cappedPolicy{Version: s.Version}
	}
	return c
}

// of returns what is known of the policy in its version; nil for nothing.
func (c *caps) of(s policies.Saved) *cappedPolicy {
	if c == nil || !s.Policy.Capped() {
		return nil
	}
	if own := c.Policies[s.ID]; own != nil && own.Version == s.Version {
		return own
	}
	return nil
}

// waits returns why the policy deletes nothing because of its cap; "" if it may delete.
func (c *caps) waits(s policies.Saved) string {
	if c == nil || c.Counting || !s.Policy.Capped() {
		return ""
	}
	switch own := c.of(s); {
	case own == nil || own.Partial:
		return "it has a cap, and what it would delete couldn't be counted"
	case own.Full:
		return fmt.Sprintf("further tags than were counted would exceed the %d that it may delete in this run", own.Most)
	case own.Asks && own.Approved:
		return fmt.Sprintf("it would delete %d tags, more than the %d that were approved: it asks for an approval", own.Selected, own.Most)
	case own.Asks:
		return fmt.Sprintf("it would delete %d tags, more than its cap of %d: it asks for an approval", own.Selected, own.Most)
	}
	return ""
}

// add adds the counts of a repository; counts[i] is of saved[i]. Nil counts say that the
// repository couldn't be counted.
func (c *caps) add(saved []policies.Saved, counts []capCount) {
	for i, s := range saved {
		own := c.of(s)
		switch {
		case own == nil:
		case counts == nil:
			own.Partial = true
		default:
			own.Considered += counts[i].Considered
			own.Selected += counts[i].Selected
			own.Undecided = own.Undecided || counts[i].Undecided
		}
	}
}

// json returns the caps as the database stores them; nil for none.
func (c *caps) json() (*string, error) {
	if c == nil {
		return nil, nil
	}
	b, err := json.Marshal(c)
	text := string(b)
	return &text, err
}

// loadCaps reads what earlier time slices of the run know of policies with caps. The count
// begins anew if policies have changed since it began, as long as nothing was deleted. Policies
// that were changed later wait for the next run.
func (u *timeSlice) loadCaps(ctx context.Context) error {
	list := u.policies.WithCaps()
	if len(list) == 0 {
		return nil
	}
	now := [3]int64{u.task.versions.policies, u.task.versions.defaults, u.task.versions.protection}
	c := newCaps(list, now)
	if u.task.resumed {
		var stored []byte
		err := u.p.db.Pool.QueryRow(ctx, "SELECT limits FROM autopruneruns WHERE id = $1", u.task.run).Scan(&stored)
		switch {
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("reading what a run has counted: %w", err)
		case stored == nil && u.task.next > 0:
			c.Counting, c.Policies = false, nil
		case stored != nil:
			old := new(caps)
			if err := json.Unmarshal(stored, old); err != nil {
				return fmt.Errorf("reading what a run has counted: %w", err)
			}
			if old.Versions == now || !old.Counting && (u.task.next > 0 || old.deleted()) {
				c = old
			}
		}
	}
	u.setCaps(c)
	return nil
}

// setCaps lets the run's policies wait as their caps say.
func (u *timeSlice) setCaps(c *caps) { u.caps, u.policies.Capped = c, c.waits }

// deleted returns whether the run has deleted tags by a policy with a cap.
func (c *caps) deleted() bool {
	for _, own := range c.Policies {
		if own.Deleted > 0 || own.Full {
			return true
		}
	}
	return false
}

// storeCaps stores the caps with the run.
func (u *timeSlice) storeCaps(ctx context.Context, tx pgx.Tx) error {
	limits, err := u.caps.json()
	if err != nil || limits == nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE autopruneruns SET limits = $2 WHERE id = $1", u.task.run, *limits); err != nil {
		return fmt.Errorf("recording what a run has counted: %w", err)
	}
	return nil
}

// count counts what policies with a cap would delete in a repository. If that fails, these
// policies delete nothing in this run.
func (u *timeSlice) count(ctx context.Context, target catalog.Repository) (done bool, err error) {
	if err := u.alive(ctx); err != nil {
		return false, err
	}
	rules, saved := u.policies.Of(target)
	if !slices.ContainsFunc(saved, func(s policies.Saved) bool { return s.Policy.Capped() }) {
		return true, nil
	}
	v := &repositoryRun{slice: u, target: target, saved: saved}
	var counts []capCount
	err = u.p.Repositories.ReadConfigurations(ctx, u.p.opt.Background.Pool, target, rules.Policies, u.p.opt.Turn/2, u.alive)
	if err == nil {
		err = snapshot.Read(ctx, u.p.opt.Background.Pool, target, func(s *snapshot.Snapshot) (err error) {
			if err := u.p.mayJudge(ctx, s.Now); err != nil {
				return err
			}
			r := v.reader(s, rules.Policies)
			defer func() { u.page = r.Memory }()
			counts, err = countCapped(ctx, s.Now, r, rules)
			return err
		})
	}
	switch {
	case errors.Is(err, errSliceOver):
		return false, nil
	case errors.Is(err, errGone):
		return true, nil
	case errors.Is(err, errLost), errors.Is(err, worker.ErrRest), ctx.Err() != nil:
		return false, err
	case err != nil:
		u.p.log.WarnContext(ctx, "the tags that policies with a cap would delete could not be counted",
			"repository", target.Path, "run", u.task.run, "error", err)
		counts = nil
	}
	u.caps.add(saved, counts)
	return true, nil
}

// countCapped counts what the policies of the rules that have a cap would delete in a
// repository at the time `now`, if no policy waited; the count of policy i is in element i.
func countCapped(ctx context.Context, now time.Time, r *snapshot.TagReader, rules judge.Rules) ([]capCount, error) {
	rules.Now, rules.IgnoreWaits = now, true
	verdict, err := judge.Evaluate(rules, r.Repository(ctx))
	if err != nil {
		return nil, err
	}
	r.Verdicts = []*judge.Verdict{verdict}
	counts := make([]capCount, len(rules.Policies))
	for i := range counts {
		counts[i].Undecided = verdict.Rests(i) != ""
	}
	for t, err := range r.Tags(ctx) {
		if err != nil {
			return nil, err
		}
		d := verdict.Decide(t.Judged)
		for i := range rules.Policies {
			p := &rules.Policies[i].Policy
			switch selected := d.Policies.Has(i); {
			case !p.Capped():
			case selected:
				counts[i].Considered++
				counts[i].Selected++
			case !t.Judged.Attached() && t.Judged.ConsideredBy(p, i):
				counts[i].Considered++
			}
		}
	}
	return counts, nil
}

// decideCaps ends the count: it decides which policies must ask.
func (p *Pruner) decideCaps(ctx context.Context, c *caps, list []policies.Saved, namespace int64) error {
	rows, err := p.db.Pool.Query(ctx, `
		SELECT policy, version, approved FROM autopruneasks
		WHERE namespace_id = $1 AND approved_until > clock_timestamp() AND approved_run IS NULL`, namespace)
	if err != nil {
		return fmt.Errorf("looking for approvals: %w", err)
	}
	approved := make(map[string]cappedPolicy)
	var id string
	var version, most int64
	_, err = pgx.ForEachRow(rows, []any{&id, &version, &most}, func() error {
		approved[id] = cappedPolicy{Version: version, Most: most}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking for approvals: %w", err)
	}
	for _, s := range list {
		own := c.of(s)
		if own == nil {
			continue
		}
		own.Cap = s.Policy.MayDelete(own.Considered)
		own.Most = own.Cap
		if by := approved[s.ID]; by.Version == own.Version && by.Most > own.Cap && own.Selected > own.Cap {
			own.Most, own.Approved = by.Most, true
		}
		own.Asks = own.Selected > own.Most
	}
	c.Counting, c.Next = false, 0
	return nil
}

// cappedError says that a deletion would exceed the caps of policies, or an approval that isn't
// valid any more.
type cappedError struct{ policies []string }

func (e *cappedError) Error() string {
	return "policies may delete no more tags in this run: " + strings.Join(e.policies, ", ")
}

// deletedBy returns the caps after a deletion: gone[i] tags were deleted by the policies
// sets[i]. It fails with cappedError if a policy has then deleted more than it may. It uses up
// approvals in the deletion's transaction, so an approval serves one run, and no deletion
// without the mark commits.
func (v *repositoryRun) deletedBy(ctx context.Context, tx pgx.Tx, sets []judge.PolicySet, gone []int64) (*caps, error) {
	u := v.slice
	if u.caps == nil {
		return nil, nil
	}
	after := *u.caps
	after.Policies = maps.Clone(after.Policies)
	touched := make(map[string]*cappedPolicy)
	for i, n := range gone {
		for place := range sets[i].All() {
			id, own := v.saved[place].ID, u.caps.of(v.saved[place])
			if own == nil || n == 0 {
				continue
			}
			if touched[id] == nil {
				copied := *own
				touched[id], after.Policies[id] = &copied, &copied
			}
			touched[id].Deleted += n
		}
	}
	var full []string
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		own := touched[id]
		ok := own.Deleted <= own.Most
		if ok && own.Approved {
			done, err := tx.Exec(ctx, `
				UPDATE autopruneasks SET approved_run = $4
				WHERE policy = $1 AND namespace_id = $2 AND version = $3 AND approved >= $5 AND (approved_run IS NULL OR approved_run = $4)`,
				id, u.task.namespace, own.Version, u.task.run, own.Most)
			if err != nil {
				return nil, fmt.Errorf("using the approval of policy %s: %w", id, err)
			}
			ok = done.RowsAffected() > 0
		}
		if !ok {
			full = append(full, id)
		}
	}
	if full != nil {
		return nil, &cappedError{full}
	}
	return &after, nil
}

// stopCapped lets the policies delete nothing more in this run.
func (u *timeSlice) stopCapped(e *cappedError) {
	for _, id := range e.policies {
		u.caps.Policies[id].Full = true
	}
}
