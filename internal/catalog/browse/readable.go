package browse

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// The lists in this file are for viewers who may not read every repository. Each statement is a
// UNION of the reasons for which the viewer may read a repository: it may read all that match a
// pattern; the repository is public; it is public by default; the viewer may read its whole
// namespace, or the repository itself. Each part of the UNION reads at most one page, or a page
// of each namespace, by an index that has only what the viewer may read. So the time for a page
// depends on the viewer's rights, and not on how many repositories are hidden from the viewer.
// There are two exceptions: a viewer with a pattern may cause all of a namespace to be read, or
// everything if it may read everything that matches. OFFSET 0 in the SQL makes PostgreSQL look
// rows up by an index: see "Plans" in package db. A comparison of (top_level_namespace_id, path)
// can use only the index that begins with the namespace; a comparison of the path alone would let
// the planner choose the index of all paths, and so read the repositories of other namespaces.

// readableByName is like repositoriesByName, for a viewer who may not read every repository.
func (b *Browser) readableByName(ctx context.Context, v Viewer, q RepositoryQuery, namespace int64, limit int) ([]foundRepository, error) {
	from, to := q.Prefix, q.Prefix+afterNames
	if q.Namespace != "" {
		from, to = max(from, q.Namespace), min(to, q.Namespace+"0") // 0 comes after /
	}
	compare, order, after := ">", "ASC", ""
	if q.Descending {
		compare, order, after = "<", "DESC", afterNames
	}
	if q.After != nil {
		after = q.After.Path
	}
	rows, err := b.db.Pool.Query(ctx, fmt.Sprintf(`
		SELECT path, f.id, COALESCE(s.is_public, @public_by_default), CASE WHEN @account::bigint = 0 THEN s.starred_at IS NOT NULL
			ELSE f.id IN (SELECT repository_id FROM stars WHERE account_id = @account) END
		FROM (
			(SELECT path, id FROM live_repositories
			WHERE @all AND path %[1]s @after AND path >= @from AND path < @to
				AND (@within::bigint = 0 OR top_level_namespace_id = @within) AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY path %[2]s LIMIT @limit)
			UNION
			(SELECT path, id FROM live_repositories
			WHERE @public AND is_public AND path %[1]s @after AND path >= @from AND path < @to
				AND (@within::bigint = 0 OR top_level_namespace_id = @within) AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY path %[2]s LIMIT @limit)
			UNION
			(SELECT path, id FROM live_repositories
			WHERE @public AND @public_by_default AND is_public IS NULL AND path %[1]s @after AND path >= @from AND path < @to
				AND (@within::bigint = 0 OR top_level_namespace_id = @within) AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY path %[2]s LIMIT @limit)
			UNION
			(SELECT path, r.id FROM unnest(@namespaces::bigint[]) AS own (id)
			CROSS JOIN LATERAL (
				SELECT path, id FROM live_repositories
				WHERE top_level_namespace_id = own.id AND (top_level_namespace_id, path) %[1]s (own.id, @after)
					AND (top_level_namespace_id, path) >= (own.id, @from) AND (top_level_namespace_id, path) < (own.id, @to)
					AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
				ORDER BY path %[2]s LIMIT @limit) r
			WHERE @within::bigint = 0 OR own.id = @within
			ORDER BY path %[2]s LIMIT @limit)
			UNION
			(SELECT path, r.id FROM unnest(@repositories::bigint[]) AS own (id)
			CROSS JOIN LATERAL (SELECT path, id, top_level_namespace_id FROM live_repositories WHERE id = own.id OFFSET 0) r
			WHERE path %[1]s @after AND path >= @from AND path < @to
				AND (@within::bigint = 0 OR top_level_namespace_id = @within) AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY path %[2]s LIMIT @limit)) f
		CROSS JOIN LATERAL (SELECT is_public, starred_at FROM repositories WHERE id = f.id OFFSET 0) s
		ORDER BY path %[2]s LIMIT @limit`, compare, order),
		v.args(db.SharedArgs{"after": after, "from": from, "to": to, "within": namespace, "limit": limit}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[foundRepository])
}

// readableByCreation is like repositoriesByCreation, for a viewer who may not read every
// repository.
func (b *Browser) readableByCreation(ctx context.Context, v Viewer, q RepositoryQuery, namespace int64, limit int) ([]foundRepository, error) {
	compare, order, after := ">", "ASC", int64(0)
	if q.Descending {
		compare, order, after = "<", "DESC", math.MaxInt64
	}
	if q.After != nil {
		after = q.After.ID
	}
	rows, err := b.db.Pool.Query(ctx, fmt.Sprintf(`
		SELECT path, f.id, COALESCE(s.is_public, @public_by_default), CASE WHEN @account::bigint = 0 THEN s.starred_at IS NOT NULL
			ELSE f.id IN (SELECT repository_id FROM stars WHERE account_id = @account) END
		FROM (
			(SELECT path, id FROM live_repositories
			WHERE @all AND id %[1]s @after AND (@within::bigint = 0 OR top_level_namespace_id = @within)
				AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY id %[2]s LIMIT @limit)
			UNION
			(SELECT path, id FROM live_repositories
			WHERE @public AND is_public AND id %[1]s @after AND (@within::bigint = 0 OR top_level_namespace_id = @within)
				AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY id %[2]s LIMIT @limit)
			UNION
			(SELECT path, id FROM live_repositories
			WHERE @public AND @public_by_default AND is_public IS NULL AND id %[1]s @after
				AND (@within::bigint = 0 OR top_level_namespace_id = @within)
				AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY id %[2]s LIMIT @limit)
			UNION
			(SELECT path, r.id FROM unnest(@namespaces::bigint[]) AS own (id)
			CROSS JOIN LATERAL (
				SELECT path, id FROM live_repositories
				WHERE top_level_namespace_id = own.id AND id %[1]s @after AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
				ORDER BY id %[2]s LIMIT @limit) r
			WHERE @within::bigint = 0 OR own.id = @within
			ORDER BY r.id %[2]s LIMIT @limit)
			UNION
			(SELECT path, r.id FROM unnest(@repositories::bigint[]) AS own (id)
			CROSS JOIN LATERAL (SELECT path, id, top_level_namespace_id FROM live_repositories WHERE id = own.id OFFSET 0) r
			WHERE r.id %[1]s @after AND (@within::bigint = 0 OR top_level_namespace_id = @within)
				AND (@patterns::text[] IS NULL OR path ~ ANY (@patterns::text[]))
			ORDER BY r.id %[2]s LIMIT @limit)) f
		CROSS JOIN LATERAL (SELECT is_public, starred_at FROM repositories WHERE id = f.id OFFSET 0) s
		ORDER BY f.id %[2]s LIMIT @limit`, compare, order),
		v.args(db.SharedArgs{"after": after, "within": namespace, "limit": limit}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[foundRepository])
}

// readableNamespaces returns the names of up to `limit` namespaces in which the viewer has a
// role or may read a repository, in the order of their names.
func (b *Browser) readableNamespaces(ctx context.Context, v Viewer, f NameFilter, after string, limit int) ([]string, error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT name FROM (
			(SELECT n.name FROM live_namespaces n
			WHERE n.id = ANY (@namespaces::bigint[]) AND n.name > @after AND n.name >= @from AND n.name < @to
				AND (@patterns::text[] IS NULL OR EXISTS (
					SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL AND r.path ~ ANY (@patterns::text[]) OFFSET 0))
			ORDER BY n.name LIMIT @limit)
			UNION
			(SELECT n.name FROM unnest(@repositories::bigint[]) AS own (id)
			CROSS JOIN LATERAL (SELECT top_level_namespace_id, path FROM live_repositories WHERE id = own.id OFFSET 0) r
			CROSS JOIN LATERAL (SELECT name FROM live_namespaces WHERE id = r.top_level_namespace_id OFFSET 0) n
			WHERE n.name > @after AND n.name >= @from AND n.name < @to AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
			ORDER BY n.name LIMIT @limit)
			UNION
			(SELECT n.name FROM live_namespaces n
			WHERE (@all OR @public) AND n.name > @after AND n.name >= @from AND n.name < @to AND (
				EXISTS (
					SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL AND r.is_public
						AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])) OFFSET 0)
				OR (@all OR @public_by_default) AND EXISTS (
					SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL AND (@all OR r.is_public IS NULL)
						AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])) OFFSET 0))
			ORDER BY n.name LIMIT @limit)) found
		ORDER BY name LIMIT @limit`,
		v.args(db.SharedArgs{"after": after, "from": f.Prefix, "to": f.Prefix + afterNames, "limit": limit}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// countReadable returns for each of the namespaces, in their order, how many of its repositories
// the viewer may read, counted up to catalog.MostCounted + 1.
func (b *Browser) countReadable(ctx context.Context, v Viewer, names []string) (infos []NamespaceInfo, err error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT n.name, n.created_at, (
			SELECT count(*) FROM (
				(SELECT r.id FROM repositories r
				WHERE (@all OR n.id = ANY (@namespaces::bigint[])) AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
					AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
				ORDER BY r.id LIMIT @most)
				UNION
				(SELECT r.id FROM repositories r
				WHERE @public AND r.is_public AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
					AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
				ORDER BY r.id LIMIT @most)
				UNION
				(SELECT r.id FROM repositories r
				WHERE @public AND @public_by_default AND r.is_public IS NULL AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
					AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
				ORDER BY r.id LIMIT @most)
				UNION
				(SELECT r.id FROM unnest(@repositories::bigint[]) AS own (id)
				CROSS JOIN LATERAL (SELECT id, top_level_namespace_id, path FROM live_repositories WHERE id = own.id OFFSET 0) r
				WHERE r.top_level_namespace_id = n.id AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
				LIMIT @most)) counted)
		FROM unnest(@names::text[]) WITH ORDINALITY AS want (name, nth)
		JOIN live_namespaces n ON n.name = want.name
		ORDER BY want.nth`, v.args(db.SharedArgs{"names": names, "most": catalog.MostCounted + 1}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanNamespace)
}

// describeReadable sets the number of the repositories in the namespace that the viewer may
// read, and the size of what the first `links` links to blobs lead to, without OwnBytes.
func (b *Browser) describeReadable(ctx context.Context, v Viewer, namespace int64, links int, d *NamespaceDetails) error {
	return b.db.Pool.QueryRow(ctx, `
		WITH readable AS MATERIALIZED (
			SELECT r.id FROM repositories r
			WHERE (@all OR @namespace = ANY (@namespaces::bigint[])) AND r.top_level_namespace_id = @namespace AND r.deleted_at IS NULL
				AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
			UNION
			SELECT r.id FROM repositories r
			WHERE @public AND r.is_public AND r.top_level_namespace_id = @namespace AND r.deleted_at IS NULL
				AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
			UNION
			SELECT r.id FROM repositories r
			WHERE @public AND @public_by_default AND r.is_public IS NULL AND r.top_level_namespace_id = @namespace AND r.deleted_at IS NULL
				AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
			UNION
			SELECT r.id FROM unnest(@repositories::bigint[]) AS own (id)
			CROSS JOIN LATERAL (SELECT id, top_level_namespace_id, path FROM live_repositories WHERE id = own.id OFFSET 0) r
			WHERE r.top_level_namespace_id = @namespace AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
		), links AS MATERIALIZED (
			SELECT l.blob_digest FROM readable r
			CROSS JOIN LATERAL (
				SELECT blob_digest FROM repository_blobs
				WHERE repository_id = r.id AND top_level_namespace_id = @namespace OFFSET 0) l
			LIMIT @most)
		SELECT (SELECT count(*) FROM readable), count(*), LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint,
			(SELECT count(*) FROM links) < @most
		FROM (SELECT DISTINCT blob_digest FROM links) l
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = l.blob_digest OFFSET 0) b`,
		v.args(db.SharedArgs{"namespace": namespace, "most": links + 1})).
		Scan(&d.Repositories, &d.Size.Blobs, &d.Size.Bytes, &d.Size.Exact)
}
