package autoprune

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// This file is about the member keepUntagged of policies, and the method untagged: how long garbage collection keeps a
// manifest that nothing references. It only ever makes such a manifest stay longer.

// unreadableRetention is for how long a policy with keepUntagged that this version can't read
// keeps manifests: until somebody saves or deletes it.
const unreadableRetention = 100 * 365 * 24 * time.Hour

// Retention says for how long a policy keeps a manifest from when nothing references it.
type Retention struct {
	For    time.Duration
	Policy string // the policy's id
	Scope  policy.Scope
	// Text is the policy's keepUntagged; "" if this version can't read the policy.
	Text string
}

// String says which policy keeps the manifest and for how long.
func (r Retention) String() string {
	if r.Text == "" {
		return fmt.Sprintf("policy %s of the %s keeps untagged manifests, and can't be read by this version", r.Policy, r.Scope)
	}
	return fmt.Sprintf("policy %s of the %s keeps untagged manifests for %s", r.Policy, r.Scope, r.Text)
}

// Untagged returns, by the manifest's id, the longest retention of a policy for each of the
// manifests that a policy keeps when nothing references them. Manifest i has the id manifests[i]
// and is in namespaces[i] and repositories[i]. Untagged reads the policies in the given
// transaction. If it isn't known whether a policy's selectors select a manifest, the policy
// keeps it. Patterns of tags play no role.
func Untagged(ctx context.Context, tx pgx.Tx, namespaces, repositories, manifests []int64) (map[int64]Retention, error) {
	byRepository := make(map[int64][]int64)
	for i, id := range manifests {
		byRepository[repositories[i]] = append(byRepository[repositories[i]], id)
	}
	targets, found, err := policies.OfRepositories(ctx, tx, namespaces, slices.Sorted(maps.Keys(byRepository)))
	if err != nil {
		return nil, fmt.Errorf("reading the policies that keep untagged manifests: %w", err)
	}
	out := make(map[int64]Retention)
	for _, t := range targets {
		rules, saved := found[t.NamespaceID].Of(t)
		if err := retain(ctx, snapshot.In(tx, t), rules.Policies, saved, byRepository[t.ID], out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// retain adds the retentions of manifests of a repository to `out`. `applied` and `saved` are the policies that
// apply there, in the same order.
func retain(ctx context.Context, s *snapshot.Snapshot, applied []judge.Applied, saved []policies.Saved, ids []int64, out map[int64]Retention) (err error) {
	tags := make(map[int64]*judge.Tag, len(ids))
	for _, id := range ids {
		tags[id] = new(judge.Tag)
	}
	reading := slices.Clone(applied)
	for i := range saved {
		if !saved[i].KeepsUntagged() {
			reading[i] = judge.Applied{} // selects nothing, and reads nothing
		}
	}
	if !slices.ContainsFunc(saved, func(k policies.Saved) bool { return k.KeepsUntagged() }) {
		return nil
	}
	if slices.ContainsFunc(reading, func(a judge.Applied) bool { return a.Policy.ReadsManifests() }) {
		rows, err := s.Sizes(ctx, ids)
		if err != nil {
			return err
		}
		for id, m := range rows {
			tags[id].MediaType, tags[id].ArtifactType, tags[id].Size = m.MediaType, m.ArtifactType, m.Size
		}
	}
	if judge := snapshot.NewAttributeJudge(reading); judge != nil {
		attributes, err := s.Attributes(ctx, ids, judge)
		if err != nil {
			return err
		}
		for id, m := range attributes {
			tags[id].Matched, tags[id].Unmatched = m.Matched, m.Unmatched
		}
	}
	for id, t := range tags {
		for i := range saved {
			if r, ok := retention(&saved[i], i, t); ok && r.For > out[id].For {
				r.Scope = applied[i].Scope
				out[id] = r
			}
		}
	}
	return nil
}

// retention returns the policy's retention of a manifest without tags, which has the properties
// of t. `place` is the policy's index in Rules.Policies.
func retention(s *policies.Saved, place int, t *judge.Tag) (Retention, bool) {
	switch {
	case !s.KeepsUntagged():
		return Retention{}, false
	case s.Problem != "":
		return Retention{For: unreadableRetention, Policy: s.ID}, true
	case t.Unmatched.Has(place) || !t.SelectedBy(&s.Policy):
		return Retention{}, false
	}
	age := s.Policy.Retains()
	return Retention{For: age.Duration(), Policy: s.ID, Text: age.String()}, true
}
