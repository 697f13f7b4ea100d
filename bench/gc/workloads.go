package gc

import (
	"context"
	"fmt"
	"strings"

	"github.com/purser-registry/purser/internal/gc"
)

// workload is one kind of review.
type workload struct {
	name    string
	kind    gc.ReviewKind
	deletes bool   // each row's object is deleted; otherwise each stays
	prepare string // SQL that makes SAMPLE objects to be reviewed, and queues them
	limit   string // SQL that deletes the same rows in one statement, for comparison
}

// An image in these workloads is like one in a registry: it has a configuration and a layer of
// its own, and two layers that it shares with other images.
var workloads = []workload{
	{
		name: "blobs in use", kind: gc.ReviewOfBlobs,
		prepare: `INSERT INTO gc_blob_review_queue (digest, review_after, event)
			SELECT digest, now(), 'blob_upload' FROM (SELECT DISTINCT digest FROM layers LIMIT SAMPLE) l`,
	},
	{
		name: "blobs, deleted", kind: gc.ReviewOfBlobs, deletes: true,
		prepare: `INSERT INTO blobs (digest, size, storage_key)
			SELECT '\x01'::bytea || sha256(('stray' || random() || i)::bytea), 1000, 'stray-' || gen_random_uuid()
			FROM generate_series(1, SAMPLE) i;
			INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT r.top_level_namespace_id, r.id, b.digest
			FROM (SELECT digest, row_number() OVER () AS n FROM blobs WHERE storage_key LIKE 'stray-%') b
			JOIN (SELECT top_level_namespace_id, id, row_number() OVER () AS n FROM repositories) r
				ON r.n = 1 + b.n % (SELECT count(*) FROM repositories);
			UPDATE gc_blob_review_queue SET review_after = now();
			ANALYZE gc_blob_review_queue`,
		limit: "DELETE FROM blobs WHERE storage_key LIKE 'stray-%'",
	},
	{
		name: "manifests in use", kind: gc.ReviewOfManifests,
		prepare: `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
			SELECT top_level_namespace_id, repository_id, id, now(), 'tag_delete' FROM manifests LIMIT SAMPLE`,
	},
	{
		name: "images, deleted", kind: gc.ReviewOfManifests, deletes: true,
		prepare: `INSERT INTO blobs (digest, size, storage_key)
			SELECT '\x01'::bytea || sha256((kind || 'image' || i)::bytea), 1000, 'image-' || gen_random_uuid()
			FROM generate_series(1, SAMPLE) i, unnest(ARRAY['c', 'l']) AS kind ON CONFLICT DO NOTHING;
			INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, payload, total_size)
			SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256(('m' || i || random())::bytea), 'untagged',
				'\x01'::bytea || sha256(('cimage' || i)::bytea), repeat('x', 600)::bytea, 3000
			FROM generate_series(1, SAMPLE) i
			JOIN (SELECT top_level_namespace_id, id, row_number() OVER () - 1 AS n FROM repositories) r
				ON r.n = i % (SELECT count(*) FROM repositories);
			INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
			SELECT m.top_level_namespace_id, m.repository_id, m.id, d.digest, 1000, 'layer'
			FROM (SELECT *, row_number() OVER () AS n FROM manifests WHERE media_type = 'untagged') m,
				LATERAL (SELECT '\x01'::bytea || sha256(('limage' || m.n)::bytea) AS digest
					UNION ALL SELECT '\x01'::bytea || sha256(('shared' || m.n % 1000 + k)::bytea) FROM generate_series(1, 2) k) d;
			UPDATE gc_manifest_review_queue SET review_after = now();
			ANALYZE gc_manifest_review_queue`,
		limit: "DELETE FROM manifests WHERE media_type = 'untagged'",
	},
}

// fill inserts tagged images until the registry has n of them, 100 in each repository. The
// inserts fire no triggers and check no foreign keys. fill returns an error if the registry
// already has more than n images.
func (m *measure) fill(ctx context.Context, n int) error {
	if n < m.filled {
		return fmt.Errorf("there are %d manifests already", m.filled)
	}
	conn, err := m.main.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	const chunk = 50_000
	for from := m.filled; from < n; from += chunk {
		to := min(from+chunk, n)
		for _, sql := range append([]string{"SET session_replication_role = replica"}, fillStatements...) {
			args := []any{}
			if strings.Contains(sql, "$1") {
				args = append(args, from+1, to)
			}
			if _, err := conn.Exec(ctx, sql, args...); err != nil {
				return fmt.Errorf("%s: %w", strings.Join(strings.Fields(sql), " "), err)
			}
		}
	}
	m.filled = n
	_, err = conn.Exec(ctx, "RESET session_replication_role")
	if err == nil {
		_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	}
	return err
}

var fillStatements = []string{
	`INSERT INTO top_level_namespaces (name) SELECT 'n' || i FROM generate_series(1, 100) i ON CONFLICT DO NOTHING`,
	`INSERT INTO repositories (top_level_namespace_id, path)
		SELECT n.id, n.name || '/r' || r FROM generate_series(($1::int - 1) / 100, ($2::int - 1) / 100) r
		JOIN top_level_namespaces n ON n.name = 'n' || r % 100 + 1
		ON CONFLICT DO NOTHING`,
	`INSERT INTO blobs (digest, size, storage_key)
		SELECT '\x01'::bytea || sha256((kind || i)::bytea), 1000, gen_random_uuid() || '-0'
		FROM generate_series($1::int, $2::int) i, unnest(ARRAY['c', 'l']) AS kind`,
	`INSERT INTO blobs (digest, size, storage_key)
		SELECT '\x01'::bytea || sha256(('shared' || i)::bytea), 1000, gen_random_uuid() || '-0'
		FROM generate_series(0, 1001) i ON CONFLICT DO NOTHING`,
	`CREATE TEMP TABLE IF NOT EXISTS filling (n int, namespace bigint, repository bigint, id bigint)`,
	`TRUNCATE filling`,
	`INSERT INTO filling
		SELECT i, r.top_level_namespace_id, r.id, nextval('manifests_id_seq')
		FROM generate_series($1::int, $2::int) i
		JOIN top_level_namespaces n ON n.name = 'n' || ((i - 1) / 100) % 100 + 1
		JOIN repositories r ON r.path = n.name || '/r' || (i - 1) / 100`,
	`INSERT INTO manifests (top_level_namespace_id, repository_id, id, digest, media_type, configuration_blob_digest, payload, total_size)
		SELECT namespace, repository, id, '\x01'::bytea || sha256(('m' || n)::bytea), 'application/vnd.oci.image.manifest.v1+json',
			'\x01'::bytea || sha256(('c' || n)::bytea), repeat('x', 600)::bytea, 3000
		FROM filling`,
	`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT namespace, repository, 't' || n, id FROM filling`,
	`INSERT INTO gc_blobs_configurations (top_level_namespace_id, repository_id, manifest_id, digest)
		SELECT namespace, repository, id, '\x01'::bytea || sha256(('c' || n)::bytea) FROM filling`,
	`WITH l AS (
			INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
			SELECT namespace, repository, id, d.digest, 1000, 'layer'
			FROM filling, LATERAL (SELECT '\x01'::bytea || sha256(('l' || n)::bytea) AS digest
				UNION ALL SELECT '\x01'::bytea || sha256(('shared' || n % 1000 + k)::bytea) FROM generate_series(0, 1) k) d
			RETURNING *)
		INSERT INTO gc_blobs_layers (top_level_namespace_id, repository_id, layer_id, digest)
		SELECT top_level_namespace_id, repository_id, id, digest FROM l`,
	`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT namespace, repository, d.digest
		FROM filling, LATERAL (SELECT '\x01'::bytea || sha256((kind || n)::bytea) AS digest FROM unnest(ARRAY['c', 'l']) AS kind
			UNION ALL SELECT '\x01'::bytea || sha256(('shared' || n % 1000 + k)::bytea) FROM generate_series(0, 1) k) d
		ON CONFLICT DO NOTHING`,
}
