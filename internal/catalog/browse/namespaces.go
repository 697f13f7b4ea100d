package browse

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
)

// NamespaceInfo is a namespace in a list.
type NamespaceInfo struct {
	Name         string        `json:"name"`
	CreatedAt    time.Time     `json:"created_at"`
	Repositories catalog.Count `json:"repositories"`   // counted up to 1000
	Size         *Size         `json:"size,omitempty"` // nil: it wasn't asked for
}

// Namespaces lists up to n namespaces whose names come after the name `after`, in byte order.
// It lists the namespaces in which the viewer has a role or may read a repository, and counts
// the repositories that the viewer may read. `next` is the value of `after` for the next page,
// "" if there is no next page. The query for a page reads a bounded number of names, so with
// f.Contains the page may have fewer than n namespaces although there is a next page.
func (b *Browser) Namespaces(ctx context.Context, v Viewer, f NameFilter, after string, n int) (list []NamespaceInfo, next string, err error) {
	limit := bound(0, n, f.Contains == "")
	find, count := b.readableNamespaces, b.countReadable
	if v.Unlimited() {
		find, count = b.allNamespaces, b.countAll
	}
	names, err := find(ctx, v, f, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("listing namespaces: %w", err)
	}
	page, last := pick(names, f.selects, 0, n, limit)
	if last != nil {
		next = *last
	}
	if list, err = count(ctx, v, page); err != nil {
		return nil, "", fmt.Errorf("listing namespaces: %w", err)
	}
	return list, next, nil
}

func (b *Browser) allNamespaces(ctx context.Context, _ Viewer, f NameFilter, after string, limit int) ([]string, error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT name FROM live_namespaces WHERE name > $1 AND name >= $2 AND name < $3
		ORDER BY name LIMIT $4`, after, f.Prefix, f.Prefix+afterNames, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (b *Browser) countAll(ctx context.Context, _ Viewer, names []string) ([]NamespaceInfo, error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT n.name, n.created_at, (
			SELECT count(*) FROM (
				SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
				ORDER BY r.id LIMIT $2) counted) -- ordered as an index is, else the planner may read the table
		FROM unnest($1::text[]) WITH ORDINALITY AS want (name, nth)
		JOIN live_namespaces n ON n.name = want.name
		ORDER BY want.nth`, names, catalog.MostCounted+1)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanNamespace)
}

func scanNamespace(row pgx.CollectableRow) (i NamespaceInfo, err error) {
	var repositories int64
	err = row.Scan(&i.Name, &i.CreatedAt, &repositories)
	i.CreatedAt, i.Repositories = i.CreatedAt.UTC(), catalog.CountedUpTo(repositories)
	return i, err
}

// Size is the amount of content in a repository or a namespace.
type Size struct {
	// Blobs is the number of blobs linked to the repository or namespace.
	Blobs int64 `json:"blobs"`
	// Bytes is the size of these blobs, each counted once.
	Bytes int64 `json:"bytes"`
	// OwnBytes is the size of those blobs that aren't linked to any other repository or
	// namespace. Deleting this repository or namespace would free this space. It is nil for a
	// viewer who may not read every repository: whoever uploads a blob would otherwise see by
	// this number whether a hidden repository has the blob too.
	OwnBytes *int64 `json:"own_bytes,omitempty"`
	// Exact is false if the repository, or all repositories of the namespace together, have
	// more links to blobs than were to be read, which are 50,000 unless the caller asked for
	// fewer. Only the blobs of one more link were counted then, so the numbers may be too low.
	// In a list of namespaces it is also false for a namespace of so many repositories.
	Exact bool `json:"exact"`
}

// NamespaceDetails describes one namespace.
type NamespaceDetails struct {
	Name         string    `json:"name"`
	CreatedAt    time.Time `json:"created_at"`
	Repositories int64     `json:"repositories"`
	Size         Size      `json:"size"`
}

// DescribeNamespace returns the details of a namespace, of which it counts the repositories that
// the viewer may read. For its size, at most `links` links to blobs are read; 0: 50,000. Error:
// NAME_UNKNOWN, also if the namespace is hidden from the viewer.
// OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (b *Browser) DescribeNamespace(ctx context.Context, v Viewer, name string, links int) (d NamespaceDetails, err error) {
	n, err := b.namespaceFor(ctx, v, name)
	if err != nil {
		return d, err
	}
	d.Name, d.CreatedAt = name, n.created.UTC()
	if !n.whole {
		if err := b.describeReadable(ctx, v, n.id, cmp.Or(links, defaultLinks), &d); err != nil {
			return d, fmt.Errorf("describing namespace %s: %w", name, err)
		}
		return d, nil
	}
	err = b.db.Pool.QueryRow(ctx, "SELECT count(*) FROM repositories WHERE top_level_namespace_id = $1 AND deleted_at IS NULL", n.id).Scan(&d.Repositories)
	if err != nil {
		return d, fmt.Errorf("describing namespace %s: %w", name, err)
	}
	// If several repositories of the namespace have links to the same blob, the query reads
	// all these links, and counts the blob once.
	d.Size, err = b.size(ctx, `
		WITH links AS MATERIALIZED (
			SELECT l.blob_digest FROM repositories r
			CROSS JOIN LATERAL (
				SELECT blob_digest FROM repository_blobs
				WHERE repository_id = r.id AND top_level_namespace_id = $1 OFFSET 0) l
			WHERE r.top_level_namespace_id = $1 AND r.deleted_at IS NULL LIMIT $2)
		SELECT count(*), LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint,
			CASE WHEN $3 THEN LEAST(COALESCE(sum(b.size) FILTER (WHERE $3 AND NOT EXISTS (
				SELECT FROM repository_blobs o
				WHERE o.blob_digest = l.blob_digest AND o.top_level_namespace_id <> $1)), 0), 9223372036854775807)::bigint END,
			(SELECT count(*) FROM links) < $2
		FROM (SELECT DISTINCT blob_digest FROM links) l
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = l.blob_digest OFFSET 0) b`, n.id, cmp.Or(links, defaultLinks)+1, v.Unlimited())
	if err != nil {
		return d, fmt.Errorf("adding up the blobs of namespace %s: %w", name, err)
	}
	return d, nil
}

func (b *Browser) size(ctx context.Context, sql string, args ...any) (s Size, err error) {
	err = b.db.Pool.QueryRow(ctx, sql, args...).Scan(&s.Blobs, &s.Bytes, &s.OwnBytes, &s.Exact)
	return s, err
}
