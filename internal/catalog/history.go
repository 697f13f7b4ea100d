package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// TagPlaces returns the positions of up to q.Limit tags, in the order of names or of pushes.
// `next` is the position after which the next page begins, nil if there is no next page.
// TagPlaces costs less than BrowseTags, for callers that don't need the tags' details. Error:
// NAME_UNKNOWN.
func (c *Catalog) TagPlaces(ctx context.Context, path string, q TagQuery) (places []TagPlace, next *TagPlace, err error) {
	r, err := c.browsed(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	found, next, err := c.indexedTags(ctx, r, q)
	if err != nil {
		return nil, nil, fmt.Errorf("listing tags of %s: %w", path, err)
	}
	for _, t := range found {
		places = append(places, *q.place(t))
	}
	return places, next, nil
}

// DescribeManifests returns the details of the given manifests, without names of tags and in
// no particular order. It leaves out manifests that the repository doesn't have. Error:
// NAME_UNKNOWN. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see "Plans" in
// package db.
func (c *Catalog) DescribeManifests(ctx context.Context, path string, digests []oci.Digest) ([]TagInfo, error) {
	r, err := c.browsed(ctx, path)
	if err != nil || len(digests) == 0 {
		return nil, err
	}
	wanted := make([][]byte, len(digests))
	for i, d := range digests {
		wanted[i] = d.Bytes()
	}
	rows, err := c.db.Pool.Query(ctx, `
		SELECT m.id FROM unnest($3::bytea[]) AS want (digest) CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest OFFSET 0) m`, r.namespace, r.id, wanted)
	if err != nil {
		return nil, fmt.Errorf("looking for manifests of %s: %w", path, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t foundTag, err error) {
		err = row.Scan(&t.manifest)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for manifests of %s: %w", path, err)
	}
	list, err := c.tagInfos(ctx, r, found)
	if err != nil {
		return nil, fmt.Errorf("describing manifests of %s: %w", path, err)
	}
	return list, nil
}

// RepositoryID returns the identifier of a repository. Error: NAME_UNKNOWN.
func (c *Catalog) RepositoryID(ctx context.Context, path string) (int64, error) {
	r, err := c.browsed(ctx, path)
	return r.id, err
}

// browsed returns the ids of a repository whose tags are to be listed, read from the database
// and not from a cache. Error: NAME_UNKNOWN.
func (c *Catalog) browsed(ctx context.Context, path string) (r repository, err error) {
	err = c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).
		Scan(&r.namespace, &r.id)
	switch {
	case isNoRows(err):
		return r, nameUnknown(path)
	case err != nil:
		return r, fmt.Errorf("listing tags of %s: %w", path, err)
	}
	return r, nil
}
