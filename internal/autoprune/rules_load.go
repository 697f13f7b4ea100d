package autoprune

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// policies has the policies and protection rules of a namespace and its repositories,
// before Combine selects those of one repository.
type policies struct {
	defaults, namespace []Saved
	repositories        map[int64][]Saved
	off                 bool // the namespace refuses the defaults
	protection          []catalog.ProtectionRule
	caps                *caps            // of the run or preview; nil: no policy has a cap
	exceptions          map[int64]bool   // repositories in which the policies of the namespace and the registry delete nothing
	free                *freeRequest     // of the run; nil: none
	announcements       map[string]int64 // versions of policies that were announced, see grace.go
	pulls               judge.PullRecord
	rests               map[string]rest        // by policy, see rests.go
	absent              map[string]hold.Absent // required reporters that aren't live, by name
	uncovered           map[int64]time.Time    // until when policies wait, see uncovered.go
}

// load reads the policies, protection rules and state of the statistics that a time slice
// needs for a namespace. It uses connections of the main pool, one after the other, so its caller has
// none of them.
func (p *Pruner) load(ctx context.Context, namespace int64) (*policies, error) {
	out, err := loadPolicies(ctx, p.db.Pool, namespace)
	if err != nil {
		return nil, err
	}
	if out.protection, err = p.catalog.ProtectionIn(ctx, namespace); err != nil {
		return nil, err
	}
	if p.opt.Pulls != nil {
		if out.pulls, err = p.opt.Pulls(ctx); err != nil {
			return nil, fmt.Errorf("asking how far the pull statistics are: %w", err)
		}
	}
	return out, nil
}

// loadPolicies reads what load reads, but protection rules and the state of the statistics, by q alone. It
// reads all policies in one round trip to the database: in most namespaces there is nothing to
// prune, and these reads are most of what a time slice costs.
func loadPolicies(ctx context.Context, q db.Querier, namespace int64) (*policies, error) {
	out := &policies{repositories: make(map[int64][]Saved), announcements: make(map[string]int64), exceptions: make(map[int64]bool)}
	b := new(pgx.Batch)
	queuePolicies(b, policy.DefaultScope, owner{}, &out.defaults)
	queuePolicies(b, policy.NamespaceScope, owner{namespace: namespace}, &out.namespace)
	b.Queue("SELECT EXISTS (SELECT FROM autoprunewithoutdefaults WHERE namespace_id = $1)", namespace).
		QueryRow(func(row pgx.Row) error { return row.Scan(&out.off) })
	out.queueRepositories(b, namespace)
	out.queueExceptions(b, namespace)
	b.Queue("SELECT policy, version FROM autopruneannouncements WHERE namespace_id = $1", namespace).Query(func(rows pgx.Rows) error {
		var id string
		var version int64
		_, err := pgx.ForEachRow(rows, []any{&id, &version}, func() error {
			out.announcements[id] = version
			return nil
		})
		return err
	})
	out.queueRests(b, namespace)
	out.queueUncovered(b, namespace)
	err := q.SendBatch(ctx, b).Close()
	if err != nil {
		return nil, fmt.Errorf("listing auto-prune policies: %w", err)
	}
	return out, out.loadReporters(ctx, q, namespace)
}

func queuePolicies(b *pgx.Batch, scope policy.Scope, o owner, list *[]Saved) {
	b.Queue(policyTables[scope].list(), o.id()).Query(func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, scanPolicy)
		return err
	})
}

func (l *policies) queueRepositories(b *pgx.Batch, namespace int64) {
	b.Queue(`
		SELECT uuid, policy, version, rule_version, created_at, updated_at, active_from, confirmed, repository_id FROM repositoryautoprunepolicy
		WHERE namespace_id = $1 ORDER BY created_at, uuid`, namespace).Query(func(rows pgx.Rows) error {
		var s Saved
		var text string
		var repository int64
		_, err := pgx.ForEachRow(rows, []any{&s.ID, &text, &s.Version, &s.rule, &s.Created, &s.Updated, &s.ActiveFrom, &s.Confirmed, &repository}, func() error {
			s.read(text)
			l.repositories[repository] = append(l.repositories[repository], s)
			return nil
		})
		return err
	})
}

// none says that no policy applies anywhere in the namespace.
func (l *policies) none() bool {
	return l.free == nil && len(l.namespace) == 0 && len(l.repositories) == 0 && (l.off || len(l.defaults) == 0)
}

// readUses says whether any of the policies needs to know when tags were last used.
func (l *policies) readUses() bool {
	reads := func(s Saved) bool { return s.Policy.ReadsUses() }
	for _, list := range l.repositories {
		if slices.ContainsFunc(list, reads) {
			return true
		}
	}
	return l.free != nil || slices.ContainsFunc(l.defaults, reads) || slices.ContainsFunc(l.namespace, reads)
}

// unreadable returns the ids of the policies that this version of the program can't read,
// each with the reason.
func (l *policies) unreadable() map[string]string {
	out := make(map[string]string)
	add := func(list []Saved) {
		for _, s := range list {
			if s.Problem != "" {
				out[s.ID] = judge.Unreadable + s.Problem
			}
		}
	}
	if !l.off {
		add(slices.DeleteFunc(slices.Clone(l.defaults), func(s Saved) bool { return !s.Setting && len(l.namespace) > 0 }))
	}
	add(l.namespace)
	for _, list := range l.repositories {
		add(list)
	}
	return out
}

// of returns the rules by which a repository is judged, and the saved policies that the
// rules contain, in the order of Rules.Policies. The caller sets Rules.Now.
func (l *policies) of(t catalog.Repository) (judge.Rules, []Saved) {
	own := l.repositories[t.ID]
	r := judge.Rules{
		Policies: judge.Combine(l.except(t, l.applied(policy.DefaultScope, l.defaults)), l.except(t, l.applied(policy.NamespaceScope, l.namespace)), l.applied(policy.RepositoryScope, own), l.off),
		Pulls:    l.pulls,
	}
	for _, rule := range l.protection {
		if rule.HoldsIn(t) {
			r.Protection = append(r.Protection, judge.Protection{ID: rule.ID.String(), Pattern: rule.Pattern, Problem: rule.Problem})
		}
	}
	byID := make(map[string]Saved)
	for _, list := range [][]Saved{l.defaults, l.namespace, own} {
		for _, s := range list {
			byID[s.ID] = s
		}
	}
	r.Policies = slices.DeleteFunc(r.Policies, func(a judge.Applied) bool { return !a.Policy.AppliesIn(t.Path) })
	uncovered := l.uncoveredIn(t.ID)
	saved := make([]Saved, len(r.Policies))
	for i, a := range r.Policies {
		saved[i] = byID[a.ID]
		r.Policies[i].Uncovered = uncovered
	}
	return l.withFree(t, r, saved)
}

func (l *policies) applied(scope policy.Scope, list []Saved) []judge.Applied {
	out := make([]judge.Applied, len(list))
	for i, s := range list {
		out[i] = judge.Applied{
			ID: s.ID, Scope: scope, Policy: s.Policy, Everywhere: s.Setting, Problem: s.Problem, Counts: s.Counts, MayKeep: s.MayKeep,
			ActiveFrom: s.ActiveFrom, Announced: l.announced(s), Capped: l.caps.waits(s),
			Unconfirmed: l.unconfirmed(s), Unreported: l.unreported(&s.Policy),
		}
	}
	return out
}
