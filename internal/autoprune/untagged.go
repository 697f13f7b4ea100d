package autoprune

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
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

// keepsUntagged returns whether a policy may keep manifests that nothing references.
func (s *Saved) keepsUntagged() bool {
	if s.Problem != "" {
		return policy.MayRetain(s.Stored)
	}
	return s.Policy.Mode != policy.Off && s.Policy.Retains().Duration() > 0
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
	targets, found, err := untaggedPolicies(ctx, tx, namespaces, slices.Sorted(maps.Keys(byRepository)))
	if err != nil {
		return nil, fmt.Errorf("reading the policies that keep untagged manifests: %w", err)
	}
	out := make(map[int64]Retention)
	for _, t := range targets {
		rules, saved := found[t.NamespaceID].of(t)
		for i := range saved {
			if !saved[i].keepsUntagged() {
				saved[i] = Saved{} // selects nothing, and reads nothing
			}
		}
		if err := retain(ctx, &snapshot{tx: tx, target: t}, rules, saved, byRepository[t.ID], out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// retain adds the retentions of manifests of a repository to `out`.
func retain(ctx context.Context, s *snapshot, rules judge.Rules, saved []Saved, ids []int64, out map[int64]Retention) (err error) {
	tags := make(map[int64]*judge.Tag, len(ids))
	for _, id := range ids {
		tags[id] = new(judge.Tag)
	}
	keep := slices.ContainsFunc(saved, func(k Saved) bool { return k.keepsUntagged() })
	if !keep {
		return nil
	}
	if slices.ContainsFunc(saved, func(k Saved) bool { return k.Policy.ReadsManifests() }) {
		rows, err := s.Sizes(ctx, ids)
		if err != nil {
			return err
		}
		for id, m := range rows {
			tags[id].MediaType, tags[id].ArtifactType, tags[id].Size = m.MediaType, m.ArtifactType, m.Size
		}
	}
	if judge := newAttributeJudge(saved); judge != nil {
		attributes, err := s.Attributes(ctx, ids, judge)
		if err != nil {
			return err
		}
		for id, m := range attributes {
			tags[id].Matched, tags[id].Unmatched = m.matched, m.unmatched
		}
	}
	for id, t := range tags {
		for i := range saved {
			if r, ok := saved[i].retention(i, t); ok && r.For > out[id].For {
				r.Scope = rules.Policies[i].Scope
				out[id] = r
			}
		}
	}
	return nil
}

// retention returns the policy's retention of a manifest without tags, which has the properties
// of t. `place` is the policy's index in Rules.Policies.
func (s *Saved) retention(place int, t *judge.Tag) (Retention, bool) {
	switch {
	case !s.keepsUntagged():
		return Retention{}, false
	case s.Problem != "":
		return Retention{For: unreadableRetention, Policy: s.ID}, true
	case t.Unmatched.Has(place) || !t.SelectedBy(&s.Policy):
		return Retention{}, false
	}
	age := s.Policy.Retains()
	return Retention{For: age.Duration(), Policy: s.ID, Text: age.String()}, true
}

// untaggedPolicies returns those of the repositories that aren't deleted, and the policies of
// their namespaces by the namespace's id.
func untaggedPolicies(ctx context.Context, tx pgx.Tx, namespaces, repositories []int64) (targets []catalog.Repository, found map[int64]*policies, err error) {
	found = make(map[int64]*policies)
	for _, id := range namespaces {
		found[id] = &policies{repositories: make(map[int64][]Saved)}
	}
	var defaults []Saved
	b := new(pgx.Batch)
	b.Queue("SELECT top_level_namespace_id, id, path FROM live_repositories WHERE id = ANY ($1) ORDER BY id", repositories).
		Query(func(rows pgx.Rows) (err error) {
			targets, err = pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.Repository])
			return err
		})
	queuePolicies(b, policy.DefaultScope, owner{}, &defaults)
	owned := func(add func(owner int64, s Saved)) func(pgx.Rows) error {
		return func(rows pgx.Rows) error {
			var s Saved
			var text string
			var owner int64
			_, err := pgx.ForEachRow(rows, []any{&owner, &s.ID, &text}, func() error {
				s.read(text)
				add(owner, s)
				return nil
			})
			return err
		}
	}
	b.Queue("SELECT namespace_id, uuid, policy FROM namespaceautoprunepolicy WHERE namespace_id = ANY ($1) ORDER BY created_at, uuid", namespaces).
		Query(owned(func(id int64, s Saved) { found[id].namespace = append(found[id].namespace, s) }))
	own := make(map[int64][]Saved)
	b.Queue("SELECT repository_id, uuid, policy FROM repositoryautoprunepolicy WHERE repository_id = ANY ($1) ORDER BY created_at, uuid", repositories).
		Query(owned(func(id int64, s Saved) { own[id] = append(own[id], s) }))
	b.Queue("SELECT namespace_id FROM autoprunewithoutdefaults WHERE namespace_id = ANY ($1)", namespaces).Query(func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			found[id].off = true
			return nil
		})
		return err
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, nil, err
	}
	for _, l := range found {
		l.defaults, l.repositories = defaults, own
	}
	return targets, found, nil
}

// policyPatience is how long a change of policies waits for reviews of garbage collection.
const policyPatience = 20 * time.Second

// waitForReviews makes the end of a transaction that has changed policies wait for the reviews
// and other deletions that are under way, if any policy keeps untagged manifests: see "The protocol" in
// package hold. So once the client has its answer, no review deletes what the new policies keep.
func waitForReviews(ctx context.Context, tx pgx.Tx) error {
	var needed bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM namespaceautoprunepolicy WHERE policy LIKE ANY (p))
			OR EXISTS (SELECT FROM repositoryautoprunepolicy WHERE policy LIKE ANY (p))
			OR EXISTS (SELECT FROM defaultautoprunepolicy WHERE policy LIKE ANY (p))
		FROM (VALUES (ARRAY['%"keepUntagged"%', '%"untagged"%'])) AS v (p)`).Scan(&needed)
	if err != nil || !needed {
		return err
	}
	b := new(pgx.Batch)
	b.Queue("SELECT set_config('lock_timeout', $1, true)", fmt.Sprintf("%dms", policyPatience.Milliseconds()))
	b.Queue("SELECT pg_advisory_xact_lock(1886745447, 0)")
	err = tx.SendBatch(ctx, b).Close()
	if db.Code(err) == db.CodeLockNotAvailable {
		return oci.Errorf(oci.Unavailable, "deletions that are under way took longer than %s: nothing was changed; try again", policyPatience).WithCause(err)
	}
	return err
}
