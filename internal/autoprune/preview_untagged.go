package autoprune

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// PreviewUntagged is an untagged manifest that garbage collection will delete, as far as is known now.
type PreviewUntagged struct {
	Repository string    `json:"repository"`
	Digest     string    `json:"digest"`
	Since      time.Time `json:"since" doc:"From when the time counts"`
	Deleted    time.Time `json:"deleted_at" doc:"When garbage collection deletes it at the earliest, if nothing references it until then"`
	Policy     string    `json:"policy,omitempty" doc:"uuid of the policy that keeps it until then. Absent: the review delay of garbage collection does, or a policy that isn't saved"`
	Reason     string    `json:"reason"`
}

// previewedReviews is how many of the next reviews of garbage collection a preview looks at.
const previewedReviews = 20_000

// plannedReview is a review of an untagged manifest.
type plannedReview struct {
	repository, manifest int64
	digest               []byte
	since, due           time.Time
}

// untagged adds the untagged manifests of the target to the preview, if a policy keeps any. It looks
// at the next reviews of the whole registry, so its time doesn't depend on how many manifests there
// are.
func (v *previewing) untagged(ctx context.Context, namespace int64) error {
	if len(v.seen) == 0 {
		return nil
	}
	targets := make(map[int64]catalog.Repository)
	for _, t := range v.seen {
		targets[t.ID] = t
	}
	reviews, err := plannedReviews(ctx, v.p.db.Pool, namespace, slices.Sorted(maps.Keys(targets)))
	if err != nil {
		return err
	}
	byRepository := make(map[int64][]plannedReview)
	for _, r := range reviews {
		byRepository[r.repository] = append(byRepository[r.repository], r)
	}
	var list []PreviewUntagged
	for id, planned := range byRepository {
		if err := v.alive(ctx); err != nil {
			v.out.Complete = false
			return ctx.Err()
		}
		found, err := v.retained(ctx, targets[id], planned)
		if err != nil {
			return err
		}
		list = append(list, found...)
	}
	slices.SortFunc(list, func(a, b PreviewUntagged) int {
		return cmp.Or(a.Deleted.Compare(b.Deleted), cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Digest, b.Digest))
	})
	v.out.Untagged, v.out.UntaggedMore = list[:min(len(list), v.o.Limit)], len(list) > v.o.Limit
	return nil
}

// plannedReviews returns those of the next reviews that are of untagged manifests in these
// repositories of a namespace: that no tag names, no index lists, and that aren't attached to a
// manifest that exists.
func plannedReviews(ctx context.Context, q db.Querier, namespace int64, repositories []int64) ([]plannedReview, error) {
	rows, err := q.Query(ctx, `
		SELECT q.repository_id, q.manifest_id, m.digest, purser_unused_since(q.event, COALESCE(q.unused_since, q.created_at), q.review_after), q.review_after
		FROM (
			SELECT top_level_namespace_id, repository_id, manifest_id, event, unused_since, created_at, review_after
			FROM gc_manifest_review_queue WHERE set_aside_at IS NULL ORDER BY review_after LIMIT $3) q
		CROSS JOIN LATERAL (
			SELECT digest, subject_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = q.repository_id AND id BETWEEN q.manifest_id AND q.manifest_id
			ORDER BY id LIMIT 1) m
		WHERE q.top_level_namespace_id = $1 AND q.repository_id = ANY ($2)
			AND NOT EXISTS (
				SELECT FROM tags WHERE top_level_namespace_id = $1 AND repository_id = q.repository_id AND manifest_id = q.manifest_id OFFSET 0)
			AND NOT EXISTS (
				SELECT FROM manifest_references
				WHERE top_level_namespace_id = $1 AND repository_id = q.repository_id AND child_id = q.manifest_id OFFSET 0)
			AND NOT EXISTS (
				SELECT FROM manifests s
				WHERE s.top_level_namespace_id = $1 AND s.repository_id = q.repository_id AND s.digest = m.subject_digest OFFSET 0)`,
		namespace, repositories, previewedReviews)
	if err != nil {
		return nil, fmt.Errorf("reading the planned reviews of manifests: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r plannedReview, err error) {
		return r, row.Scan(&r.repository, &r.manifest, &r.digest, &r.since, &r.due)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the planned reviews of manifests: %w", err)
	}
	return list, nil
}

// retained returns the untagged manifests of a repository with the times at which they go.
func (v *previewing) retained(ctx context.Context, target catalog.Repository, planned []plannedReview) (list []PreviewUntagged, err error) {
	rules, saved := v.judged(target)
	ids := make([]int64, len(planned))
	for i, r := range planned {
		ids[i] = r.manifest
	}
	kept := make(map[int64]Retention)
	err = snapshot.Read(ctx, v.p.db.Pool, target, func(s *snapshot.Snapshot) error { return retain(ctx, s, rules.Policies, saved, ids, kept) })
	if err != nil {
		return nil, err
	}
	for _, r := range planned {
		digest, err := oci.DigestFromBytes(r.digest)
		if err != nil {
			return nil, fmt.Errorf("manifest %d of %s: %w", r.manifest, target.Path, err)
		}
		one := PreviewUntagged{Repository: target.Path, Digest: digest.String(), Since: r.since.UTC(), Deleted: r.due.UTC(), Reason: "the review delay of garbage collection"}
		if k, ok := kept[r.manifest]; ok {
			if end := r.since.Add(k.For).UTC(); end.After(one.Deleted) {
				one.Deleted, one.Policy, one.Reason = end, k.Policy, k.String()
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// warnUntagged adds warnings to the policies that keep untagged manifests for less than garbage
// collection does.
func (v *previewing) warnUntagged(ctx context.Context) error {
	for i := range v.out.Policies {
		told := &v.out.Policies[i]
		if told.Policy == nil {
			continue
		}
		warnings, err := v.p.Policies.UntaggedWarnings(ctx, *told.Policy)
		if err != nil {
			return err
		}
		told.Warnings = append(told.Warnings, warnings...)
	}
	return nil
}
