package policies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/policy"
)

// If a policy is deleted, or keeps less than before, other policies may delete what it kept from
// them. This file lets these wait for the grace period, as a policy that is changed waits.

// queueUncovered reads until when policies wait: in the whole namespace, with the key 0, and in
// repositories.
func (l *Set) queueUncovered(b *pgx.Batch, namespace int64) {
	l.uncovered = make(map[int64]time.Time)
	b.Queue("SELECT namespace_id = 0, repository_id, until FROM autopruneuncovered WHERE namespace_id IN (0, $1) AND until > now()", namespace).
		Query(func(rows pgx.Rows) error {
			var defaults bool
			var repository int64
			var until time.Time
			_, err := pgx.ForEachRow(rows, []any{&defaults, &repository, &until}, func() error {
				// Where the defaults don't apply, nothing was taken away. That of the configuration
				// applies beside policies of the namespace.
				if !(defaults && l.off) && until.After(l.uncovered[repository]) {
					l.uncovered[repository] = until
				}
				return nil
			})
			return err
		})
}

// UncoveredIn returns until when policies wait in a repository; zero if they don't.
func (l *Set) UncoveredIn(repository int64) time.Time {
	until := l.uncovered[0]
	if own := l.uncovered[repository]; own.After(until) {
		until = own
	}
	return until
}

// uncover lets policies wait for the grace period of a policy that is deleted or changed, if that may
// let others delete what it kept. `now` is the policy as it shall be; nil: it is deleted.
func (p *Store) uncover(ctx context.Context, tx pgx.Tx, o Owner, old Saved, now *policy.Policy) error {
	if !old.Uncovers(now) {
		return nil
	}
	if old.Inert() {
		if alone, err := keepsDefaultsAway(ctx, tx, o); err != nil || !alone {
			return err
		}
	}
	waits := old.Policy
	if now != nil && now.GraceGiven() {
		waits = *now
	}
	waits.Mode, waits.Method = "", "" // others wait, whatever this one does
	if err := wait(ctx, tx, o, p.grace(waits)); err != nil {
		return fmt.Errorf("beginning the grace period of what policy %s kept: %w", old.ID, err)
	}
	return nil
}

// wait lets the policies of an owner wait for a grace period; nil: they don't.
func wait(ctx context.Context, tx pgx.Tx, o Owner, grace *time.Duration) error {
	if grace == nil {
		return nil
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO autopruneuncovered AS u (namespace_id, repository_id, until) VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (namespace_id, repository_id) DO UPDATE SET until = GREATEST(u.until, EXCLUDED.until)`, o.Namespace, o.Repository, *grace)
	return err
}

// keepsDefaultsAway returns whether the registry's defaults apply in a namespace once its only policy is
// deleted. A repository's policy, and the registry's own, keep none away.
func keepsDefaultsAway(ctx context.Context, tx pgx.Tx, o Owner) (alone bool, err error) {
	if o.Namespace == 0 || o.Repository != 0 {
		return false, nil
	}
	err = tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM namespaceautoprunepolicy WHERE namespace_id = $1) = 1
			AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = $1)
			AND EXISTS (SELECT FROM defaultautoprunepolicy WHERE NOT setting)`, o.Namespace).Scan(&alone)
	if err != nil {
		return false, fmt.Errorf("looking whether a policy keeps the registry's defaults away: %w", err)
	}
	return alone, nil
}

// uncoverDefaults is uncover for a namespace in which the registry's defaults are about to stop
// applying. That of the configuration goes on to apply there, unless the namespace refuses the
// defaults: then `all` is true.
func (p *Store) uncoverDefaults(ctx context.Context, tx pgx.Tx, namespace int64, all bool) error {
	list, err := listPolicies(ctx, tx, policy.DefaultScope, Owner{})
	if err != nil {
		return err
	}
	for _, s := range list {
		if (all || !s.Setting) && !s.Inert() {
			if err := p.uncover(ctx, tx, Owner{Namespace: namespace}, s, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// uncoverByDefaults begins the waiting in a namespace that accepts the registry's defaults again, so that
// they delete nothing there at once. It lasts as long as the longest grace period of those that apply.
func (p *Store) uncoverByDefaults(ctx context.Context, tx pgx.Tx, namespace int64) error {
	list, err := listPolicies(ctx, tx, policy.DefaultScope, Owner{})
	if err != nil {
		return err
	}
	var own bool
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = $1)", namespace).Scan(&own); err != nil {
		return err
	}
	return p.waitAs(ctx, tx, namespace, slices.DeleteFunc(list, func(s Saved) bool { return own && !s.Setting }))
}

// uncoverByLast is uncoverByDefaults for a namespace whose only policy is about to be deleted, after which
// the registry's defaults apply there.
func (p *Store) uncoverByLast(ctx context.Context, tx pgx.Tx, o Owner) error {
	alone, err := keepsDefaultsAway(ctx, tx, o)
	if err != nil || !alone {
		return err
	}
	list, err := listPolicies(ctx, tx, policy.DefaultScope, Owner{})
	if err != nil {
		return err
	}
	return p.waitAs(ctx, tx, o.Namespace, slices.DeleteFunc(list, func(s Saved) bool { return s.Setting }))
}

// waitAs lets the policies of a namespace wait for the longest grace period of the registry's defaults
// that begin to apply there.
func (p *Store) waitAs(ctx context.Context, tx pgx.Tx, namespace int64, defaults []Saved) error {
	for _, s := range defaults {
		if s.Problem != "" {
			continue
		}
		if err := wait(ctx, tx, Owner{Namespace: namespace}, p.grace(s.Policy)); err != nil {
			return err
		}
	}
	return nil
}

// uncoverByFirst begins the waiting for what the registry's defaults kept in a namespace that is about
// to get its first policy, after which they don't apply there.
func (p *Store) uncoverByFirst(ctx context.Context, tx pgx.Tx, o Owner) error {
	var apply bool
	err := tx.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE namespace_id = $1)
			AND NOT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = $1)`, o.Namespace).Scan(&apply)
	if err != nil || !apply {
		return err
	}
	return p.uncoverDefaults(ctx, tx, o.Namespace, false)
}

// cover ends the waiting that uncover has begun, if a policy of the same owner is saved with the
// grace period 0s.
func cover(ctx context.Context, tx pgx.Tx, o Owner, saved policy.Policy) error {
	if !saved.GraceGiven() || saved.Grace.Duration() > 0 {
		return nil
	}
	_, err := tx.Exec(ctx, "DELETE FROM autopruneuncovered WHERE namespace_id = $1 AND repository_id = $2", o.Namespace, o.Repository)
	return err
}

// Uncovers returns whether a change of the policy may let others delete what it kept from them. A policy
// that can't be read may keep everything. Any policy of a namespace keeps the registry's defaults away.
func (s *Saved) Uncovers(now *policy.Policy) bool {
	switch old := s.Policy; {
	case now == nil || s.Problem != "":
		return true
	case s.Inert():
		return false
	case now.Mode != old.Mode && now.Mode != "":
		return true
	case old.KeepsMore(now):
		return true
	default: // its keep rules look at the tags that it selects
		return old.Keeps() && !old.SameRule(*now)
	}
}

// Inert returns whether the policy neither deletes nor keeps tags. It only keeps the registry's defaults
// away, if it is a namespace's.
func (s *Saved) Inert() bool {
	return s.Problem == "" && (s.Policy.Mode == policy.Off || s.Policy.Method == policy.UntaggedManifests)
}
