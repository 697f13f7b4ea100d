package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// DigestsBelow returns, for each of the given manifests (ids in one repository), its
// digest and the digests of all manifests below it: a client that pulls an index may
// pull any of these. A manifest that doesn't exist has no entry in the map. Section
// "Plans" of package db says why the query has OFFSET 0.
func DigestsBelow(ctx context.Context, pool *db.DB, repository int64, manifests []int64) (map[int64][]oci.Digest, error) {
	failed := func(err error) error {
		return fmt.Errorf("looking for the manifests below others in repository %d: %w", repository, err)
	}
	var namespace int64
	err := pool.Pool.QueryRow(ctx, "SELECT top_level_namespace_id FROM live_repositories WHERE id = $1", repository).Scan(&namespace)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, failed(err)
	}
	// UNION drops a pair of root and manifest that the recursion has already found, so
	// the recursion ends even if image indexes form a cycle.
	rows, err := pool.Pool.Query(ctx, `
		WITH RECURSIVE below (root, id) AS (
			SELECT id, id FROM unnest($3::bigint[]) AS id
			UNION
			SELECT b.root, x.child_id FROM below b
			CROSS JOIN LATERAL (
				SELECT child_id FROM manifest_references
				WHERE repository_id = $2 AND top_level_namespace_id = $1 AND parent_id = b.id OFFSET 0) x
		)
		SELECT b.root, m.digest FROM below b
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN b.id AND b.id
			ORDER BY id LIMIT 1) m`,
		namespace, repository, manifests)
	if err != nil {
		return nil, failed(err)
	}
	found := make(map[int64][]oci.Digest, len(manifests))
	var root int64
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&root, &raw}, func() error {
		d, err := oci.DigestFromBytes(raw)
		found[root] = append(found[root], d)
		return err
	})
	if err != nil {
		return nil, failed(err)
	}
	return found, nil
}
