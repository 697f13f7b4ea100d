package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// listedBlobs is how many blobs are added up for the sizes of the repositories on a page of a list.
const listedBlobs = 10_000

// NamedRepositories describes those of the repositories with the given paths that exist and that
// the viewer may read, in the order of the paths. OFFSET 0 in its SQL makes PostgreSQL look rows
// up by an index: see "Plans" in package db.
func (c *Catalog) NamedRepositories(ctx context.Context, v Viewer, paths []string) ([]RepositoryInfo, error) {
	rows, err := c.db.Pool.Query(ctx, `
		SELECT r.path, r.id, COALESCE(s.is_public, @public_by_default), CASE WHEN @account::bigint = 0 THEN s.starred_at IS NOT NULL
			ELSE r.id IN (SELECT repository_id FROM stars WHERE account_id = @account) END
		FROM unnest(@paths::text[]) WITH ORDINALITY AS want (path, nth)
		CROSS JOIN LATERAL (SELECT path, id, top_level_namespace_id, is_public FROM live_repositories WHERE path = want.path OFFSET 0) r
		CROSS JOIN LATERAL (SELECT is_public, starred_at FROM repositories WHERE id = r.id OFFSET 0) s
		WHERE (@all OR r.top_level_namespace_id = ANY (@namespaces::bigint[]) OR r.id = ANY (@repositories::bigint[])
				OR @public AND COALESCE(r.is_public, @public_by_default))
			AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
		ORDER BY want.nth`, v.args(db.SharedArgs{"paths": paths}))
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[foundRepository])
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	list, err := c.repositoryInfos(ctx, found)
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	return list, nil
}

// SizesOfRepositories returns the sizes of the repositories with the given ids, without OwnBytes,
// by their ids. Deleted repositories are left out. It adds up about listedBlobs blobs in all, the
// same number for each repository at most. Of a repository with more blobs only these are counted,
// and Exact is false; DescribeRepository counts more. OFFSET 0 in its SQL makes PostgreSQL look
// rows up by an index: see "Plans" in package db.
func (c *Catalog) SizesOfRepositories(ctx context.Context, ids []int64) (map[int64]Size, error) {
	most := min(max(listedBlobs/max(len(ids), 1), 100), browseCount)
	rows, err := c.db.Pool.Query(ctx, `
		SELECT r.id, l.blobs, l.bytes, l.blobs <= $2
		FROM unnest($1::bigint[]) AS want (id)
		CROSS JOIN LATERAL (SELECT id, top_level_namespace_id FROM live_repositories WHERE id = want.id OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT count(*) AS blobs, LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint AS bytes
			FROM (
				SELECT blob_digest FROM repository_blobs
				WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				ORDER BY blob_digest LIMIT $2 + 1) k -- ordered as an index is, else the planner may read the table
			CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = k.blob_digest OFFSET 0) b) l`, ids, most)
	if err != nil {
		return nil, fmt.Errorf("adding up the blobs of repositories: %w", err)
	}
	sizes := make(map[int64]Size, len(ids))
	var id int64
	var s Size
	if _, err := pgx.ForEachRow(rows, []any{&id, &s.Blobs, &s.Bytes, &s.Exact}, func() error {
		sizes[id] = s
		return nil
	}); err != nil {
		return nil, fmt.Errorf("adding up the blobs of repositories: %w", err)
	}
	return sizes, nil
}
