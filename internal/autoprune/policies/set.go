package policies

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
	"github.com/purser-registry/purser/internal/protection"
)

// Set has the policies and protection rules of a namespace and its repositories, before
// judge.Combine selects those of one repository, with all that says whether they may delete now.
type Set struct {
	defaults, namespace []Saved
	repositories        map[int64][]Saved
	off                 bool // the namespace refuses the defaults
	protection          []protection.Rule
	exceptions          map[int64]bool         // repositories in which the policies of the namespace and the registry delete nothing
	announcements       map[string]int64       // versions of policies that were announced, see grace.go
	rests               map[string]Known       // by policy, see rests.go
	absent              map[string]hold.Absent // required reporters that aren't live, by name
	uncovered           map[int64]time.Time    // until when policies wait, see uncovered.go

	// Pulls says how far the pull statistics can be trusted.
	Pulls judge.PullRecord
	// Capped returns why a policy deletes nothing because of its cap, in a run or preview; "" if it may
	// delete. Nil: each may.
	Capped func(Saved) string
	// Free is the request to free bytes that a run carries out; nil: none.
	Free *Free
}

// Load reads the policies, protection rules and state of the statistics that a time slice
// needs for a namespace. It uses connections of the main pool, one after the other, so its caller has
// none of them.
func (p *Store) Load(ctx context.Context, namespace int64) (*Set, error) {
	out, err := Read(ctx, p.DB.Pool, namespace)
	if err != nil {
		return nil, err
	}
	if out.protection, err = protection.In(ctx, p.Catalog.DB().Pool, namespace); err != nil {
		return nil, err
	}
	if p.Pulls != nil {
		if out.Pulls, err = p.Pulls(ctx); err != nil {
			return nil, fmt.Errorf("asking how far the pull statistics are: %w", err)
		}
	}
	return out, nil
}

// Read reads what Load reads, but protection rules and the state of the statistics, by q alone. It
// reads all policies in one round trip to the database: in most namespaces there is nothing to
// prune, and these reads are most of what a time slice costs.
func Read(ctx context.Context, q db.Querier, namespace int64) (*Set, error) {
	out := &Set{repositories: make(map[int64][]Saved), announcements: make(map[string]int64), exceptions: make(map[int64]bool)}
	b := new(pgx.Batch)
	queuePolicies(b, policy.DefaultScope, Owner{}, &out.defaults)
	queuePolicies(b, policy.NamespaceScope, Owner{Namespace: namespace}, &out.namespace)
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

func queuePolicies(b *pgx.Batch, scope policy.Scope, o Owner, list *[]Saved) {
	b.Queue(policyTables[scope].list(), o.id()).Query(func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, scanPolicy)
		return err
	})
}

func (l *Set) queueRepositories(b *pgx.Batch, namespace int64) {
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

// None says that no policy applies anywhere in the namespace.
func (l *Set) None() bool {
	return l.Free == nil && len(l.namespace) == 0 && len(l.repositories) == 0 && (l.off || len(l.defaults) == 0)
}

// ReadUses says whether any of the policies needs to know when tags were last used.
func (l *Set) ReadUses() bool {
	reads := func(s Saved) bool { return s.Policy.ReadsUses() }
	for _, list := range l.repositories {
		if slices.ContainsFunc(list, reads) {
			return true
		}
	}
	return l.Free != nil || slices.ContainsFunc(l.defaults, reads) || slices.ContainsFunc(l.namespace, reads)
}

// Unreadable returns the ids of the policies that this version of the program can't read,
// each with the reason.
func (l *Set) Unreadable() map[string]string {
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

// Of returns the rules by which a repository is judged, and the saved policies that the
// rules contain, in the order of Rules.Policies. The caller sets Rules.Now.
func (l *Set) Of(t catalog.Repository) (judge.Rules, []Saved) {
	own := l.repositories[t.ID]
	r := judge.Rules{
		Policies: judge.Combine(l.except(t, l.applied(policy.DefaultScope, l.defaults)), l.except(t, l.applied(policy.NamespaceScope, l.namespace)), l.applied(policy.RepositoryScope, own), l.off),
		Pulls:    l.Pulls,
	}
	for _, rule := range l.protection {
		if rule.HoldsIn(t.NamespaceID, t.ID) {
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
	uncovered := l.UncoveredIn(t.ID)
	saved := make([]Saved, len(r.Policies))
	for i, a := range r.Policies {
		saved[i] = byID[a.ID]
		r.Policies[i].Uncovered = uncovered
	}
	return l.withFree(t, r, saved)
}

func (l *Set) applied(scope policy.Scope, list []Saved) []judge.Applied {
	out := make([]judge.Applied, len(list))
	for i, s := range list {
		out[i] = judge.Applied{
			ID: s.ID, Scope: scope, Policy: s.Policy, Everywhere: s.Setting, Problem: s.Problem, Counts: s.Counts, MayKeep: s.MayKeep,
			ActiveFrom: s.ActiveFrom, RuleVersion: s.rule,
			Announced: l.Announced(s), Unconfirmed: l.Unconfirmed(s), Unreported: l.Unreported(&s.Policy),
		}
		if l.Capped != nil {
			out[i].Capped = l.Capped(s)
		}
	}
	return out
}

// All returns the policies that apply somewhere in the namespace.
func (l *Set) All() (list []Saved) {
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

// WithCaps returns the policies with a cap that apply somewhere in the namespace.
func (l *Set) WithCaps() []Saved {
	return slices.DeleteFunc(l.All(), func(s Saved) bool { return !s.Policy.Capped() })
}

// NoticePolicy is a policy as notices name it.
type NoticePolicy struct {
	ID         string        `json:"uuid"`
	Scope      policy.Scope  `json:"scope"`
	Repository int64         `json:"repository_id,omitempty"`
	Policy     policy.Policy `json:"policy"`
}

// Notice describes a policy of the namespace for notices.
func (l *Set) Notice(s Saved) NoticePolicy {
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

// Last returns whether the namespace has no other policy of its own.
func (l *Set) Last(id string) bool { return len(l.namespace) == 1 && l.namespace[0].ID == id }

// Replace returns the policies with another one in place of one of them; nil: without that.
func (l *Set) Replace(id string, with *policy.Policy) *Set {
	out := *l
	change := func(list []Saved) (changed []Saved) {
		for _, s := range list {
			switch {
			case s.ID != id:
			case with == nil:
				continue
			default:
				s.Policy, s.Problem, s.Stored, s.Counts, s.MayKeep = *with, "", "", false, false
			}
			changed = append(changed, s)
		}
		return changed
	}
	out.defaults, out.namespace = change(l.defaults), change(l.namespace)
	out.repositories = make(map[int64][]Saved, len(l.repositories))
	for repository, list := range l.repositories {
		if list = change(list); len(list) > 0 {
			out.repositories[repository] = list
		}
	}
	return &out
}

// UsesDefaults returns whether the namespace accepts the registry's defaults.
func (l *Set) UsesDefaults() bool { return !l.off }

// WithDefaults returns the policies as they are once the namespace accepts or refuses the registry's defaults.
func (l *Set) WithDefaults(on bool) *Set {
	out := *l
	out.off = !on
	return &out
}
