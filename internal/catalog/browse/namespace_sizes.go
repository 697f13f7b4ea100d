package browse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// AddSizes sets the sizes of the namespaces in a list, without OwnBytes: of what the viewer may read in
// each. One statement reads about listedBlobs repositories and as many links to blobs in all, the same
// number for each namespace at most; Exact is false for a namespace with more of either. A namespace that
// was deleted meanwhile gets no size. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see
// "Plans" in package db.
func (b *Browser) AddSizes(ctx context.Context, v Viewer, list []NamespaceInfo) error {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	rows, err := b.db.Pool.Query(ctx, `
		WITH own AS MATERIALIZED (
			SELECT r.id, r.top_level_namespace_id FROM unnest(@repositories::bigint[]) AS granted (id)
			CROSS JOIN LATERAL (SELECT id, top_level_namespace_id, path FROM live_repositories WHERE id = granted.id OFFSET 0) r
			WHERE @patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
		SELECT want.nth, s.blobs, s.bytes, s.exact
		FROM unnest(@names::text[]) WITH ORDINALITY AS want (name, nth)
		CROSS JOIN LATERAL (SELECT id FROM live_namespaces WHERE name = want.name OFFSET 0) n
		CROSS JOIN LATERAL (
			WITH readable AS MATERIALIZED (
				SELECT id FROM (
					(SELECT r.id FROM repositories r
					WHERE (@all OR n.id = ANY (@namespaces::bigint[])) AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
						AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
					ORDER BY r.id LIMIT @most + 1)
					UNION
					(SELECT r.id FROM repositories r
					WHERE @public AND r.is_public AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
						AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
					ORDER BY r.id LIMIT @most + 1)
					UNION
					(SELECT r.id FROM repositories r
					WHERE @public AND @public_by_default AND r.is_public IS NULL AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
						AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
					ORDER BY r.id LIMIT @most + 1)
					UNION
					(SELECT own.id FROM own WHERE own.top_level_namespace_id = n.id ORDER BY own.id LIMIT @most + 1)) found
				ORDER BY id LIMIT @most + 1
			), links AS MATERIALIZED (
				SELECT l.blob_digest FROM (SELECT id FROM readable ORDER BY id LIMIT @most) r
				CROSS JOIN LATERAL (
					SELECT blob_digest FROM repository_blobs
					WHERE repository_id = r.id AND top_level_namespace_id = n.id ORDER BY blob_digest LIMIT @most + 1) l
				LIMIT @most + 1)
			SELECT count(*) AS blobs, LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint AS bytes,
				(SELECT count(*) FROM readable) <= @most AND (SELECT count(*) FROM links) <= @most AS exact
			FROM (SELECT DISTINCT blob_digest FROM links) d
			CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = d.blob_digest OFFSET 0) b) s`,
		v.args(db.SharedArgs{"names": names, "most": max(listedBlobs/max(len(list), 1), 100)}))
	if err != nil {
		return fmt.Errorf("adding up the blobs of namespaces: %w", err)
	}
	var nth int
	var s Size
	_, err = pgx.ForEachRow(rows, []any{&nth, &s.Blobs, &s.Bytes, &s.Exact}, func() error {
		size := s
		list[nth-1].Size = &size
		return nil
	})
	if err != nil {
		return fmt.Errorf("adding up the blobs of namespaces: %w", err)
	}
	return nil
}
