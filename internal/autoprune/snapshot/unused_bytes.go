package snapshot

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// scanFrom is how many bytes of the table gc_blobs_layers per deleted manifest are read from
// beginning to end rather than by looking up each blob. To look up the ten layers of a usual
// image takes about as long as to read the rows of 100 layers, which need 90 bytes each; the
// other tables that are read have about the same size.
const scanFrom = 4096

// UnusedBytes returns the sum of the sizes of all blobs that nothing would use any more if the given
// manifests were deleted now: the bytes that garbage collection would free. manifests[i] are ids of
// manifests in repositories[i].
//
// A blob is unused if the given manifests have as many references to it as there are in the
// registry; sharedBlobs judges the others. The references are in the tables by which garbage collection finds them, since
// these are partitioned by digest: a look-up reads one partition. In layers and manifests it
// would read all of them.
func (r *Reader) UnusedBytes(ctx context.Context, repositories []catalog.Repository, manifests [][]int64) (bytes int64, err error) {
	var list manifestList
	for i, t := range repositories {
		for _, m := range manifests[i] {
			list.namespaces, list.repositories, list.ids = append(list.namespaces, t.NamespaceID), append(list.repositories, t.ID), append(list.ids, m)
		}
	}
	if len(list.ids) == 0 {
		return 0, nil
	}
	err = pgx.BeginTxFunc(ctx, r.DB.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := HashInMemory(ctx, tx); err != nil {
			return err
		}
		var size int64
		err := tx.QueryRow(ctx, `
			SELECT COALESCE(sum(pg_relation_size(inhrelid)), 0)::bigint FROM pg_inherits
			WHERE inhparent = 'gc_blobs_layers'::regclass`).Scan(&size)
		if err != nil {
			return err
		}
		var shared [][]byte
		if size/scanFrom <= int64(len(list.ids)) {
			bytes, shared, err = scanUnused(ctx, tx, list)
		} else {
			bytes, shared, err = lookUpUnused(ctx, tx, list)
		}
		if err != nil || len(shared) == 0 {
			return err
		}
		gone := make(map[int64]bool, len(list.ids))
		for _, id := range list.ids {
			gone[id] = true
		}
		more, err := (&sharedBlobs{tx: tx, gone: gone, needs: make(map[int64]*needed)}).freed(ctx, shared)
		bytes = oci.AddSizes(bytes, more)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("adding up what the manifests of pruned tags hold: %w", err)
	}
	return bytes, nil
}

// manifestList names manifests by the ids of their namespaces and repositories and their own.
type manifestList struct{ namespaces, repositories, ids []int64 }

// HashInMemory lets PostgreSQL hash half a million digests in memory in this transaction. By default
// it would write most of them to temporary files.
func HashInMemory(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT set_config('work_mem', '48MB', true)")
	return err
}

// lookUpUnused looks up the references to each blob of the given manifests. It returns the bytes of
// the blobs that have no others, and the digests of those that have. It does so in the
// order of the digests, so that successive look-ups read the same pages of the indexes; and it
// reads at most one reference more than the manifests have, since a blob may have millions.
// Section "Plans" of package db says why the query has OFFSET 0.
func lookUpUnused(ctx context.Context, q db.Querier, list manifestList) (bytes int64, shared [][]byte, err error) {
	err = q.QueryRow(ctx, `
		WITH deleted AS MATERIALIZED (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d (namespace_id, repository_id, id)
		), used AS MATERIALIZED (
			SELECT digest, max(size) AS size, sum(layer) AS layers, sum(1 - layer) AS configurations FROM (
				SELECT l.digest, l.blob_size AS size, 1 AS layer FROM deleted d
				CROSS JOIN LATERAL (
					SELECT digest, blob_size FROM layers
					WHERE top_level_namespace_id = d.namespace_id AND repository_id = d.repository_id AND manifest_id = d.id
					ORDER BY digest OFFSET 0) l
				UNION ALL
				SELECT m.digest, m.size, 0 FROM deleted d
				CROSS JOIN LATERAL (
					SELECT configuration_blob_digest AS digest, configuration_blob_size AS size FROM manifests
					WHERE top_level_namespace_id = d.namespace_id AND repository_id = d.repository_id AND id BETWEEN d.id AND d.id
						AND configuration_blob_digest IS NOT NULL ORDER BY id LIMIT 1) m) needed
			GROUP BY digest ORDER BY digest
		)
		SELECT LEAST(COALESCE(sum(COALESCE(u.size, (SELECT size FROM blobs WHERE digest = u.digest OFFSET 0))) FILTER (WHERE u.alone), 0),
				9223372036854775807)::bigint,
			array_agg(u.digest) FILTER (WHERE NOT u.alone)
		FROM (
			SELECT digest, size, layers = (SELECT count(*) FROM (SELECT FROM gc_blobs_layers r WHERE r.digest = u.digest LIMIT u.layers + 1) r)
				AND configurations = (SELECT count(*) FROM (
					SELECT FROM gc_blobs_configurations r WHERE r.digest = u.digest LIMIT u.configurations + 1) r) AS alone
			FROM used u OFFSET 0) u`,
		list.namespaces, list.repositories, list.ids).Scan(&bytes, &shared)
	return bytes, shared, err
}

// scanUnused counts the references to all blobs of the registry. It is faster than lookUpUnused
// if a good part of the registry's manifests is given. It changes settings of the transaction,
// so that PostgreSQL, which doesn't know how many manifests there are, reads the tables of
// references in their physical order and hashes, instead of looking up each blob.
// Without sorts, it still has to read the layers of a manifest by an index.
func scanUnused(ctx context.Context, tx pgx.Tx, list manifestList) (bytes int64, shared [][]byte, err error) {
	_, err = tx.Exec(ctx, "SELECT set_config('enable_nestloop', 'off', true), set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'on', true)")
	if err != nil {
		return 0, nil, err
	}
	var unsized [][]byte
	err = tx.QueryRow(ctx, `
		WITH deleted AS MATERIALIZED (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d (namespace_id, repository_id, id)
		), used AS (
			SELECT digest, max(size) AS size, sum(others) AS others FROM (
				SELECT l.digest, l.blob_size AS size, -1 AS others FROM deleted d
				CROSS JOIN LATERAL (
					SELECT digest, blob_size FROM layers
					WHERE top_level_namespace_id = d.namespace_id AND repository_id = d.repository_id AND manifest_id = d.id
					ORDER BY digest OFFSET 0) l
				UNION ALL
				SELECT m.digest, m.size, -1 FROM deleted d
				CROSS JOIN LATERAL (
					SELECT configuration_blob_digest AS digest, configuration_blob_size AS size FROM manifests
					WHERE top_level_namespace_id = d.namespace_id AND repository_id = d.repository_id AND id BETWEEN d.id AND d.id
						AND configuration_blob_digest IS NOT NULL ORDER BY id LIMIT 1) m
				UNION ALL SELECT digest, NULL, 1 FROM gc_blobs_layers
				UNION ALL SELECT digest, NULL, 1 FROM gc_blobs_configurations) r
			GROUP BY digest HAVING min(others) < 0
		)
		SELECT LEAST(COALESCE(sum(size) FILTER (WHERE others = 0), 0), 9223372036854775807)::bigint,
			array_agg(digest) FILTER (WHERE others = 0 AND size IS NULL), array_agg(digest) FILTER (WHERE others > 0)
		FROM used`, list.namespaces, list.repositories, list.ids).Scan(&bytes, &unsized, &shared)
	if err != nil {
		return 0, nil, err
	}
	_, err = tx.Exec(ctx, "SELECT set_config('enable_nestloop', 'on', true), set_config('enable_sort', 'on', true), set_config('enable_seqscan', 'off', true)")
	if err != nil {
		return 0, nil, err
	}
	more, err := sizeOf(ctx, tx, unsized)
	return oci.AddSizes(bytes, more), shared, err
}

// sizeOf returns the sum of the sizes of blobs.
func sizeOf(ctx context.Context, q db.Querier, digests [][]byte) (bytes int64, err error) {
	if len(digests) == 0 {
		return 0, nil
	}
	err = q.QueryRow(ctx, `
		SELECT LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint FROM unnest($1::bytea[]) AS w (digest)
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = w.digest OFFSET 0) b`, digests).Scan(&bytes)
	return bytes, err
}
