package explain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// BlobExplanation says why a blob is kept, or when and why it will be deleted.
type BlobExplanation struct {
	AsOf       time.Time  `json:"as_of"` // by the database's clock
	Fate       Fate       `json:"fate"`
	Digest     oci.Digest `json:"digest"`
	Size       int64      `json:"size"` // bytes
	MediaType  string     `json:"media_type"`
	StorageKey string     `json:"storage_key"` // the object's name in the blob store
	CreatedAt  time.Time  `json:"created_at"`
	// LostAt is when a check found that the store no longer has the blob's object; nil if
	// the object isn't known to be lost.
	LostAt *time.Time `json:"lost_at"`
	// Garbage collection keeps the blob as long as these manifests use it, as configuration
	// or as layer.
	Configurations Some[BlobUse] `json:"configurations"`
	Layers         Some[BlobUse] `json:"layers"`
	// Linked is the number of repositories that serve the blob. Unused lists the
	// repositories among them in which no manifest uses the blob. The links of these
	// repositories to the blob don't keep it, and a review removes them.
	Linked catalog.Count  `json:"linked"`
	Unused Some[string]   `json:"unused"`
	Review *PlannedReview `json:"review"` // nil: none is planned
}

// BlobUse is a manifest that uses a blob.
type BlobUse struct {
	Repository string     `json:"repository"`         // "" if it was deleted and its rows aren't removed yet
	InTrash    bool       `json:"in_trash,omitempty"` // the repository was deleted, and can be restored under this name
	Digest     oci.Digest `json:"digest"`
}

// Blob explains which manifests use the blob with the digest `d`, and what garbage
// collection will do with it. It returns the error BLOB_UNKNOWN if there is no such blob;
// the error names repositories that have a manifest with the digest.
func Blob(ctx context.Context, c *gc.Collector, d oci.Digest) (BlobExplanation, error) {
	e := BlobExplanation{Digest: d}
	err := c.Snapshot(ctx, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			SELECT now(), size, media_type, storage_key, created_at, lost_at FROM blobs WHERE digest = $1`,
			d.Bytes()).Scan(&e.AsOf, &e.Size, &e.MediaType, &e.StorageKey, &e.CreatedAt, &e.LostAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return notABlob(ctx, tx, d)
		}
		if err != nil {
			return err
		}
		b := new(pgx.Batch)
		askUses(b, &e)
		askLinks(b, &e)
		askReview(b, &e.Review, `
			SELECT event, created_at, review_after, review_count, set_aside_at, COALESCE(last_error, '')
			FROM gc_blob_review_queue WHERE digest = $1`, d.Bytes())
		return tx.SendBatch(ctx, b).Close()
	})
	if _, known := errors.AsType[*oci.Error](err); err != nil && !known {
		err = fmt.Errorf("explaining blob %s: %w", d, err)
	}
	if err != nil {
		return e, err
	}
	e.Fate = fate(len(e.Configurations.First) > 0 || len(e.Layers.First) > 0, e.Review, e.AsOf)
	return e, nil
}

// askUses adds queries for the manifests that use the blob to the batch `b`. If a
// manifest's repository was deleted, and its rows aren't removed yet, the query returns the
// path "" for the repository. Each lookup names the namespace, so that it reads a single
// partition. "Plans" in the comment of package db says why lookups have OFFSET 0.
func askUses(b *pgx.Batch, e *BlobExplanation) {
	scan := func(row pgx.CollectableRow, total *int64) (u BlobUse, err error) {
		var digest []byte
		if err := row.Scan(total, &u.Repository, &u.InTrash, &digest); err != nil {
			return u, err
		}
		u.Digest, err = oci.DigestFromBytes(digest)
		return u, err
	}
	askSome(b, &e.Configurations, scan, fmt.Sprintf(`
		WITH list AS MATERIALIZED (
			SELECT top_level_namespace_id AS namespace, repository_id AS repository, manifest_id AS id
			FROM gc_blobs_configurations WHERE digest = $1 LIMIT %d)
		SELECT (SELECT count(*) FROM list), COALESCE(r.path, ''), COALESCE(r.in_trash, false), m.digest
		FROM (SELECT * FROM list ORDER BY id LIMIT %d) f
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = f.namespace AND repository_id = f.repository AND id BETWEEN f.id AND f.id ORDER BY id LIMIT 1) m
		LEFT JOIN LATERAL (SELECT path, in_trash FROM named_repositories WHERE id = f.repository OFFSET 0) r ON true
		ORDER BY f.id`, explainLimit+1, explainFirst), e.Digest.Bytes())
	askSome(b, &e.Layers, scan, fmt.Sprintf(`
		WITH list AS MATERIALIZED (
			SELECT top_level_namespace_id AS namespace, repository_id AS repository, layer_id AS id
			FROM gc_blobs_layers WHERE digest = $1 LIMIT %d)
		SELECT (SELECT count(*) FROM list), COALESCE(r.path, ''), COALESCE(r.in_trash, false), m.digest
		FROM (SELECT * FROM list ORDER BY id LIMIT %d) f
		CROSS JOIN LATERAL (
			SELECT manifest_id FROM layers
			WHERE top_level_namespace_id = f.namespace AND repository_id = f.repository AND id BETWEEN f.id AND f.id ORDER BY id LIMIT 1) l
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = f.namespace AND repository_id = f.repository AND id BETWEEN l.manifest_id AND l.manifest_id ORDER BY id LIMIT 1) m
		LEFT JOIN LATERAL (SELECT path, in_trash FROM named_repositories WHERE id = f.repository OFFSET 0) r ON true
		ORDER BY f.id`, explainLimit+1, explainFirst), e.Digest.Bytes())
}

// askLinks adds a query for the repositories that serve the blob to the batch `b`. Any
// namespace may have such repositories, so this query reads all partitions.
func askLinks(b *pgx.Batch, e *BlobExplanation) {
	b.Queue(fmt.Sprintf(`
		WITH rb AS MATERIALIZED (
			SELECT top_level_namespace_id, repository_id, blob_digest FROM repository_blobs
			WHERE blob_digest = $1 LIMIT %d
		), unused AS MATERIALIZED (
			SELECT * FROM rb WHERE NOT CASE
				WHEN EXISTS (
					SELECT FROM layers l
					WHERE l.top_level_namespace_id = rb.top_level_namespace_id AND l.repository_id = rb.repository_id
						AND l.digest = rb.blob_digest OFFSET 0)
				THEN true
				ELSE EXISTS (
					SELECT FROM manifests m
					WHERE m.top_level_namespace_id = rb.top_level_namespace_id AND m.repository_id = rb.repository_id
						AND m.configuration_blob_digest = rb.blob_digest OFFSET 0)
				END)
		SELECT (SELECT count(*) FROM rb), (SELECT count(*) FROM unused), ARRAY(
			SELECT r.path || CASE WHEN r.in_trash THEN ' (in the trash)' ELSE '' END
			FROM (SELECT * FROM unused ORDER BY repository_id LIMIT %d) u
			JOIN named_repositories r ON r.id = u.repository_id ORDER BY r.id)`,
		explainLimit+1, explainFirst), e.Digest.Bytes()).QueryRow(func(row pgx.Row) error {
		var links, unused int64
		err := row.Scan(&links, &unused, &e.Unused.First)
		e.Linked, e.Unused.Total = counted(links), counted(unused)
		e.Unused.Total.Exact = e.Linked.Exact
		return err
	})
}
