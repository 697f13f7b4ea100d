package policies

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// UntaggedWarnings returns texts that say where garbage collection keeps untagged manifests for
// longer than the policy says, so that the policy changes nothing.
func (p *Store) UntaggedWarnings(ctx context.Context, of policy.Policy) ([]string, error) {
	age := of.Retains()
	if age.Duration() == 0 {
		return nil, nil
	}
	rows, err := p.DB.Pool.Query(ctx, `
		SELECT e, extract(epoch FROM COALESCE(d.value, interval '1 day'))::bigint
		FROM unnest(ARRAY['manifest_upload', 'manifest_list_delete', 'tag_delete', 'tag_prune', 'tag_switch', 'subject_delete']) AS e
		LEFT JOIN gc_review_after_defaults d ON d.event = e`)
	if err != nil {
		return nil, fmt.Errorf("reading the review delays of garbage collection: %w", err)
	}
	delays := make(map[time.Duration][]string)
	var event string
	var seconds int64
	_, err = pgx.ForEachRow(rows, []any{&event, &seconds}, func() error {
		if delay := time.Duration(seconds) * time.Second; delay > age.Duration() {
			delays[delay] = append(delays[delay], event)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the review delays of garbage collection: %w", err)
	}
	var warnings []string
	for _, delay := range slices.Sorted(maps.Keys(delays)) {
		slices.Sort(delays[delay])
		warnings = append(warnings, fmt.Sprintf("garbage collection keeps untagged manifests for %s after %s, which is longer than %s: there the policy changes nothing",
			ageText(delay), strings.Join(delays[delay], ", "), age))
	}
	return warnings, nil
}

// ageText writes a duration as an age.
func ageText(d time.Duration) string {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= unit.of && d%unit.of == 0 {
			return fmt.Sprintf("%d%s", d/unit.of, unit.name)
		}
	}
	return d.String()
}

// KeepsUntagged returns whether a policy may keep manifests that nothing references.
func (s *Saved) KeepsUntagged() bool {
	if s.Problem != "" {
		return policy.MayRetain(s.Stored)
	}
	return s.Policy.Mode != policy.Off && s.Policy.Retains().Duration() > 0
}

// OfRepositories returns those of the repositories that aren't deleted, and the policies of
// their namespaces by the namespace's id.
func OfRepositories(ctx context.Context, tx pgx.Tx, namespaces, repositories []int64) (targets []catalog.Repository, found map[int64]*Set, err error) {
	found = make(map[int64]*Set)
	for _, id := range namespaces {
		found[id] = &Set{repositories: make(map[int64][]Saved)}
	}
	var defaults []Saved
	b := new(pgx.Batch)
	b.Queue("SELECT top_level_namespace_id, id, path FROM live_repositories WHERE id = ANY ($1) ORDER BY id", repositories).
		Query(func(rows pgx.Rows) (err error) {
			targets, err = pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.Repository])
			return err
		})
	queuePolicies(b, policy.DefaultScope, Owner{}, &defaults)
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
