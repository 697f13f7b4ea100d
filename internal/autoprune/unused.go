package autoprune

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/purser-registry/purser/internal/catalog"
)

// unused finds the manifests of a repository that garbage collection could delete once some
// tags are deleted. Such a manifest would have no tag, no index that stays, and, if it is a
// referrer, no subject that stays.
type unused struct {
	s     *snapshot
	stays map[int64]bool // manifests of tags, and whether any of their tags stays
}

func newUnused(s *snapshot) *unused {
	return &unused{s: s, stays: make(map[int64]bool)}
}

// tag records that a tag of the repository points to the manifest. `goes` says that the tag
// is to be deleted. The caller must record all tags of the repository.
func (u *unused) tag(manifest int64, goes bool) {
	u.stays[manifest] = u.stays[manifest] || !goes
}

// manifests returns the ids of the manifests that nothing would reference, in ascending
// order.
func (u *unused) manifests(ctx context.Context) ([]int64, error) {
	free := make(map[int64]bool) // candidates; at the end, the result
	var level []int64
	for id, stays := range u.stays {
		if !stays {
			free[id] = true
			level = append(level, id)
		}
	}
	kept := make(map[int64][]int64) // the candidates that a candidate references
	for len(level) > 0 {
		links, err := u.each(ctx, level, u.s.Children, u.s.Referrers)
		if err != nil {
			return nil, err
		}
		level = level[:0]
		for _, l := range links {
			kept[l.Keeper] = append(kept[l.Keeper], l.Kept)
			if _, tagged := u.stays[l.Kept]; !free[l.Kept] && !tagged {
				free[l.Kept] = true
				level = append(level, l.Kept)
			}
		}
	}
	links, err := u.each(ctx, slices.Collect(maps.Keys(free)), u.s.Parents, u.s.Subjects)
	if err != nil {
		return nil, err
	}
	var held []int64
	for _, l := range links {
		if !free[l.Keeper] {
			held = append(held, l.Kept)
		}
	}
	for len(held) > 0 { // a manifest that stays keeps those that it references
		id := held[len(held)-1]
		held = held[:len(held)-1]
		if free[id] {
			delete(free, id)
			held = append(held, kept[id]...)
		}
	}
	return slices.Sorted(maps.Keys(free)), nil
}

// each divides the manifests into parts of at most 10,000, calls each of the functions
// in `asks` with each part, and returns all links that these calls return.
func (u *unused) each(ctx context.Context, manifests []int64, asks ...func(context.Context, []int64) ([]link, error)) ([]link, error) {
	var all []link
	for part := range slices.Chunk(manifests, 10_000) {
		for _, ask := range asks {
			links, err := ask(ctx, part)
			if err != nil {
				return nil, err
			}
			all = append(all, links...)
		}
	}
	return all, nil
}

// unusedBytes returns the sum of the sizes of all blobs that only the given manifests
// use: the bytes that garbage collection would free if these manifests were deleted now.
// manifests[i] are ids of manifests in repositories[i]. Section "Plans" of package db
// says why the query has OFFSET 0.
func (p *Pruner) unusedBytes(ctx context.Context, repositories []catalog.Repository, manifests [][]int64) (bytes int64, err error) {
	var namespaces, ids, list []int64
	for i, t := range repositories {
		for _, m := range manifests[i] {
			namespaces, ids, list = append(namespaces, t.NamespaceID), append(ids, t.ID), append(list, m)
		}
	}
	if len(list) == 0 {
		return 0, nil
	}
	// Manifests' ids are unique in the registry.
	err = p.db.Pool.QueryRow(ctx, `
		WITH deleted AS MATERIALIZED (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d (namespace_id, repository_id, id)
		), used AS MATERIALIZED (
			SELECT l.digest FROM deleted d
			CROSS JOIN LATERAL (
				SELECT digest FROM layers
				WHERE top_level_namespace_id = d.namespace_id AND repository_id = d.repository_id AND manifest_id = d.id
				ORDER BY digest OFFSET 0) l
			UNION
			SELECT m.digest FROM deleted d
			CROSS JOIN LATERAL (
				SELECT configuration_blob_digest AS digest FROM manifests
				WHERE top_level_namespace_id = d.namespace_id AND repository_id = d.repository_id AND id BETWEEN d.id AND d.id
					AND configuration_blob_digest IS NOT NULL ORDER BY id LIMIT 1) m
		)
		SELECT LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint FROM used u
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = u.digest OFFSET 0) b
		WHERE NOT EXISTS (SELECT FROM layers l WHERE l.digest = u.digest AND l.manifest_id NOT IN (SELECT id FROM deleted))
			AND NOT EXISTS (SELECT FROM manifests m
				WHERE m.configuration_blob_digest = u.digest AND m.id NOT IN (SELECT id FROM deleted))`,
		namespaces, ids, list).Scan(&bytes)
	if err != nil {
		return 0, fmt.Errorf("adding up what the manifests of pruned tags hold: %w", err)
	}
	return bytes, nil
}
