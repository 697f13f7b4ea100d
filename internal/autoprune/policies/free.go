package policies

import (
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// Free is a stored request to free bytes, which one run of a namespace carries out.
type Free struct {
	ID    string
	Age   policy.Age
	Bound judge.FreePlace
	Since time.Time
}

// withFree adds the policy of a request to free, unless the repository is an exception or as many
// policies apply as may.
func (l *Set) withFree(t catalog.Repository, r judge.Rules, saved []Saved) (judge.Rules, []Saved) {
	if l.Free == nil || l.exceptions[t.ID] || len(r.Policies) >= judge.MaxPolicies {
		return r, saved
	}
	frees := policy.Policy{Method: policy.LastPulled, OlderThan: l.Free.Age}
	frees.RequireReporter = RequiredReporters(r.Policies)
	bound := &judge.FreeBound{Place: l.Free.Bound, Since: l.Free.Since, Repository: t.ID}
	r.Policies = append(r.Policies, judge.Applied{ID: l.Free.ID, Scope: policy.NamespaceScope, Policy: frees, Bound: bound, Uncovered: l.UncoveredIn(t.ID), Unreported: l.Unreported(&frees)})
	// Somebody has seen in the plan what it deletes.
	return r, append(saved, Saved{ID: l.Free.ID, Policy: frees, Confirmed: []policy.WarningCode{Everything}})
}

// RequiredReporters returns the reporters that a repository's policies require, also those that only
// observe. Whoever requires a reporter says that nothing is known to be unused without it, so bytes are
// freed in the repository only while all of them are live.
func RequiredReporters(list []judge.Applied) (names []string) {
	for _, a := range list {
		if a.Policy.Mode != policy.Off {
			names = append(names, a.Policy.RequireReporter...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
