package catalog

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A sparse index lists manifests that its repository doesn't have. Each of these is a row of
// missing_children until the manifest is pushed; then a trigger on manifests turns the row
// into one of manifest_references, an ordinary reference from index to child. If an index
// and its child are put at the same time, neither transaction may see the other, and the row
// stays. So the review of a manifest also looks for such rows, makes them references, and
// decides after that. Its statements begin after both commits, so it sees both. A put can
// rely on this: a manifest is locked before it is deleted, so an index that is put meanwhile
// waits, and then finds the manifest there or missing.

// requiredChildren returns the children that must exist when an index is stored.
func (c *Catalog) requiredChildren(rows manifestColumns) [][]byte {
	if c.opt.SparseIndexes {
		return nil
	}
	return rows.children
}

// listedManifests handles an index that lists a manifest under a media type that isn't a
// manifest's. It moves such entries, if the repository has them as manifests, from rows'
// blobs to its children, and returns whether there were any.
func (c *Catalog) listedManifests(ctx context.Context, p NewManifest, rows *manifestColumns) (bool, error) {
	if len(p.Manifest.Manifests) == 0 || len(rows.layers) == 0 {
		return false, nil
	}
	found, err := c.db.Pool.Query(ctx, `
		SELECT want.digest FROM live_repositories r CROSS JOIN unnest($2::bytea[]) AS want (digest)
		WHERE r.path = $1 AND EXISTS (
			SELECT FROM manifests m
			WHERE m.top_level_namespace_id = r.top_level_namespace_id AND m.repository_id = r.id
				AND m.digest = want.digest OFFSET 0)
			AND NOT EXISTS (
				SELECT FROM repository_blobs l
				WHERE l.top_level_namespace_id = r.top_level_namespace_id AND l.repository_id = r.id
					AND l.blob_digest = want.digest OFFSET 0)`, p.Repository, rows.layers)
	if err != nil {
		return false, fmt.Errorf("looking for what index %s lists: %w", p.Digest, err)
	}
	digests, err := pgx.CollectRows(found, pgx.RowTo[[]byte])
	if err != nil || len(digests) == 0 {
		return false, err
	}
	for _, d := range digests {
		is := func(other []byte) bool { return bytes.Equal(d, other) }
		i := slices.IndexFunc(rows.layers, is)
		rows.layers = slices.Delete(slices.Clone(rows.layers), i, i+1)
		rows.layerSizes = slices.Delete(slices.Clone(rows.layerSizes), i, i+1)
		rows.layerTypes = slices.Delete(slices.Clone(rows.layerTypes), i, i+1)
		rows.blobs = slices.DeleteFunc(slices.Clone(rows.blobs), is)
	}
	rows.children = sortedSet(slices.Concat(rows.children, digests))
	return true, nil
}
