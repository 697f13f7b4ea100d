package browse

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	// MaxSized is the maximum number of tags in a list in the order of size.
	MaxSized = 200_000
	// maxSizedManifests is the same of the manifests in their repository, with and without tags.
	maxSizedManifests = 400_000
	// maxSizedReferences is the same of the references from indexes to their manifests. An index may have
	// 10,000, and many indexes may have the same. Reading so many takes about four seconds.
	maxSizedReferences = 2_000_000
)

// sizedTags is rankedTags for the order of size in a repository with more than maxRanked tags. It reads
// each manifest of the repository once, and not each tag's manifest with its children. Error:
// UNSUPPORTED if there are too many tags, manifests or references.
func (b *Browser) sizedTags(ctx context.Context, path string, r repository, q TagQuery) (page []foundTag, next *TagPlace, err error) {
	var tags, manifests, references int
	err = b.db.Pool.QueryRow(ctx, `
		SELECT
			(SELECT count(*) FROM (
				SELECT FROM tags WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name >= $3 AND name < $4 ORDER BY name LIMIT $5) t),
			(SELECT count(*) FROM (
				SELECT FROM manifests WHERE repository_id = $2 AND top_level_namespace_id = $1 ORDER BY digest LIMIT $6) m),
			(SELECT count(*) FROM (
				SELECT FROM manifest_references WHERE repository_id = $2 AND top_level_namespace_id = $1 ORDER BY parent_id, child_id LIMIT $7) r)`,
		r.namespace, r.id, q.Prefix, q.Prefix+afterNames, MaxSized+1, maxSizedManifests+1, b.references+1).Scan(&tags, &manifests, &references)
	if err != nil {
		return nil, nil, err
	}
	if tags > MaxSized || manifests > maxSizedManifests || references > b.references {
		return nil, nil, oci.Errorf(oci.Unsupported,
			"repository %s has more than %d tags, %d manifests, or %d references from indexes to manifests, to be sorted by size: "+
				"sort by name or pushed, or list those with a longer prefix",
			path, MaxSized, maxSizedManifests, b.references).WithStatus(http.StatusBadRequest)
	}
	// Without nested loops: of a repository the planner expects a hundred rows, and would search one list
	// of manifests from the beginning to the end for each tag.
	err = pgx.BeginTxFunc(ctx, b.db.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL enable_nestloop = off"); err != nil {
			return err
		}
		page, next, err = readSizedTags(ctx, tx, r, q)
		return err
	})
	return page, next, err
}

// readSizedTags reads the page. The column total_size of an index has what its payload, its blobs, and the
// payloads of those children take that were there when it was pushed; each child's own total_size has
// its payload, too.
func readSizedTags(ctx context.Context, tx pgx.Tx, r repository, q TagQuery) (page []foundTag, next *TagPlace, err error) {
	compare, order, after := ">", "ASC", TagPlace{Rank: -1}
	if q.Descending {
		compare, order, after = "<", "DESC", TagPlace{Name: afterNames, Rank: 1<<63 - 1}
	}
	if q.After != nil {
		after = *q.After
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		WITH m AS MATERIALIZED (
			SELECT id, total_size, octet_length(payload) AS length FROM manifests
			WHERE repository_id = @repository AND top_level_namespace_id = @namespace
		), children AS MATERIALIZED (
			SELECT r.parent_id AS id, sum(c.total_size - CASE WHEN c.id < r.parent_id THEN c.length ELSE 0 END) AS size
			FROM manifest_references r JOIN m c ON c.id = r.child_id
			WHERE r.repository_id = @repository AND r.top_level_namespace_id = @namespace
			GROUP BY r.parent_id
		), sized AS (
			SELECT t.name, t.manifest_id, t.created_at, COALESCE(t.updated_at, t.created_at) AS pushed, t.expires_at, t.immutable,
				LEAST(m.total_size + COALESCE(c.size, 0), 9223372036854775807)::bigint AS size
			FROM tags t JOIN m ON m.id = t.manifest_id LEFT JOIN children c ON c.id = m.id
			WHERE t.repository_id = @repository AND t.top_level_namespace_id = @namespace
				AND t.name >= @from AND t.name < @to AND position(@contains IN t.name) > 0
		)
		SELECT name, manifest_id, created_at, pushed, expires_at, immutable, size FROM sized
		WHERE (size, name) %[1]s (@size, @name)
		ORDER BY size %[2]s, name %[2]s LIMIT @limit OFFSET @skip`, compare, order), db.SharedArgs{
		"repository": r.id, "namespace": r.namespace, "from": q.Prefix, "to": q.Prefix + afterNames, "contains": q.Contains,
		"size": after.Rank, "name": after.Name, "limit": q.Limit + 1, "skip": q.Skip,
	})
	if err != nil {
		return nil, nil, err
	}
	var places []TagPlace
	page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t foundTag, err error) {
		var size int64
		err = row.Scan(&t.name, &t.manifest, &t.created, &t.pushed, &t.expires, &t.immutable, &size)
		places = append(places, TagPlace{t.name, size})
		return t, err
	})
	if err != nil || len(page) <= q.Limit {
		return page, nil, err
	}
	return page[:q.Limit], &places[q.Limit-1], nil
}
