package catalog

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A sparse index lists manifests that its repository doesn't have. Each of these is a row of
// missing_children until the manifest is pushed. Then a trigger on the table manifests turns
// the row into a row of manifest_references, an ordinary reference from index to child. If an
// index and its child are pushed at the same time, neither transaction may see the other, and
// the row stays in missing_children. So the review of a manifest first turns such rows into
// references, and then decides whether the manifest is referenced. The review's statements
// begin after both pushes have committed, so they see both. A review locks a manifest before
// it deletes the manifest. So if an index that lists the manifest is pushed during the review,
// the push waits for the review, and then finds either that the child exists or that it is
// missing.

// requiredChildren returns the digests of the children that must exist before the index is
// stored: none if the configuration allows sparse indexes, else all.
func (c *Catalog) requiredChildren(rows manifestColumns) [][]byte {
	if c.opt.SparseIndexes {
		return nil
	}
	return rows.children
}

// listedManifests corrects `rows` for an index that lists a manifest under a media type that
// isn't a manifest's; manifestRows has taken such an entry for a blob. If the repository has a
// manifest with the entry's digest and no blob, listedManifests moves the digest from
// rows.blobs and rows.layers to rows.children. It returns whether it moved any. OFFSET 0 in
// its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
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
		return false, fmt.Errorf("looking up the children of index %s: %w", p.Digest, err)
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
