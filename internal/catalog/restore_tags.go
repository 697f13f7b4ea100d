package catalog

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// DeletedTag is a tag that was deleted, with the values that RestoreTags needs.
type DeletedTag struct {
	Name    string
	Digest  oci.Digest // of its manifest
	Created time.Time
	Updated time.Time // zero: the tag was never moved or pushed again
	Expires time.Time // zero: the tag had no expiration date
}

// RestoredTag is the result of RestoreTags for one tag.
type RestoredTag struct {
	Name string
	ID   int64 // of the tag's new row; 0 if no row was created
	// Exists says that a client has created a tag of the same name since, and Gone that the
	// manifest doesn't exist any more; in both cases the tag isn't restored.
	Exists, Gone bool
}

// RestoreTags creates the tags again with their old times, and expiration dates that aren't over,
// except tags whose manifest doesn't exist any more, and tags whose name is in use again. It returns
// the result for each tag. The caller has locked the repository, as ChangeTags does, and writes the
// entries of the audit log.
//
// RestoreTags locks the manifests before it creates tags that point to them, in the same way as
// [Catalog.RestoreTag].
func RestoreTags(ctx context.Context, tx pgx.Tx, r Repository, tags []DeletedTag) ([]RestoredTag, error) {
	var digests [][]byte
	var names []string
	var created []time.Time
	var updated, expires []*time.Time
	for i := range tags {
		digests, names = append(digests, tags[i].Digest.Bytes()), append(names, tags[i].Name)
		created = append(created, tags[i].Created)
		if updated = append(updated, nil); !tags[i].Updated.IsZero() {
			updated[i] = &tags[i].Updated
		}
		if expires = append(expires, nil); !tags[i].Expires.IsZero() {
			expires[i] = &tags[i].Expires
		}
	}
	if _, err := tx.Exec(ctx, `
		SELECT FROM (SELECT DISTINCT digest FROM unnest($3::bytea[]) AS digest ORDER BY digest) want
		CROSS JOIN LATERAL (
			SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN want.digest AND want.digest
			ORDER BY digest LIMIT 1 FOR KEY SHARE) m`, r.NamespaceID, r.ID, digests); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		WITH want AS MATERIALIZED (
			SELECT w.*, m.id AS manifest_id
			FROM unnest($3::bytea[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[]) AS w (digest, name, created, updated, expires)
			LEFT JOIN LATERAL (
				SELECT id FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN w.digest AND w.digest
				ORDER BY digest LIMIT 1) m ON true
		), made AS (
			INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at, updated_at, expires_at)
			SELECT $1, $2, name, manifest_id, created, updated, CASE WHEN expires > now() THEN expires END FROM want WHERE manifest_id IS NOT NULL
			ORDER BY name COLLATE "C"
			ON CONFLICT (repository_id, top_level_namespace_id, name) DO NOTHING
			RETURNING id, name
		)
		SELECT w.name, COALESCE(m.id, 0), m.id IS NULL AND w.manifest_id IS NOT NULL, w.manifest_id IS NULL
		FROM want w LEFT JOIN made m ON m.name = w.name`,
		r.NamespaceID, r.ID, digests, names, created, updated, expires)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[RestoredTag])
}
