package browse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// sourcesScan is the number of a blob's links that are read to find public repositories that
// have the blob.
const sourcesScan = 10_000

// Sources lists up to n repositories that the viewer may read and that have a blob, for a mount
// request without a source repository. For a blob that is linked to more than sourcesScan
// repositories, a public repository among the others is missing, and so is any repository for a
// viewer who may read all that match a pattern. OFFSET 0 in its SQL makes PostgreSQL look rows
// up by an index: see "Plans" in package db.
func (b *Browser) Sources(ctx context.Context, v Viewer, d oci.Digest, n int) ([]string, error) {
	if v.Unlimited() {
		return b.allSources(ctx, d, n)
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT path FROM (
			(SELECT r.id, r.path FROM unnest(@namespaces::bigint[]) AS own (id)
			CROSS JOIN LATERAL (
				SELECT r.id, r.path FROM (
					SELECT repository_id FROM repository_blobs
					WHERE blob_digest = @digest AND top_level_namespace_id = own.id ORDER BY repository_id OFFSET 0) l
				CROSS JOIN LATERAL (SELECT id, path FROM live_repositories WHERE id = l.repository_id OFFSET 0) r
				WHERE @patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])
				LIMIT @limit) r
			LIMIT @limit)
			UNION
			(SELECT r.id, r.path FROM unnest(@repositories::bigint[]) AS own (id)
			CROSS JOIN LATERAL (SELECT * FROM live_repositories WHERE id = own.id OFFSET 0) r
			CROSS JOIN LATERAL (
				SELECT FROM repository_blobs
				WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id AND blob_digest = @digest OFFSET 0) l
			WHERE @patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])
			LIMIT @limit)
			UNION
			(SELECT r.id, r.path FROM (
				SELECT repository_id FROM repository_blobs
				WHERE blob_digest = @digest AND (@all OR @public) ORDER BY repository_id LIMIT @scan) l
			CROSS JOIN LATERAL (SELECT * FROM live_repositories WHERE id = l.repository_id OFFSET 0) r
			WHERE (@all OR COALESCE(r.is_public, @public_by_default)) AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
			LIMIT @limit)) found
		ORDER BY id LIMIT @limit`, v.args(db.SharedArgs{"digest": d.Bytes(), "limit": n, "scan": sourcesScan}))
	if err != nil {
		return nil, fmt.Errorf("looking for repositories with blob %s: %w", d, err)
	}
	paths, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("looking for repositories with blob %s: %w", d, err)
	}
	return paths, nil
}

func (b *Browser) allSources(ctx context.Context, d oci.Digest, n int) ([]string, error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT r.path FROM (
			SELECT repository_id FROM repository_blobs WHERE blob_digest = $1 ORDER BY repository_id OFFSET 0) l
		CROSS JOIN LATERAL (SELECT path FROM live_repositories WHERE id = l.repository_id OFFSET 0) r
		ORDER BY l.repository_id LIMIT $2`, d.Bytes(), n)
	if err != nil {
		return nil, fmt.Errorf("looking for repositories with blob %s: %w", d, err)
	}
	paths, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("looking for repositories with blob %s: %w", d, err)
	}
	return paths, nil
}
