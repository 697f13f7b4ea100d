package gc

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// retryBatch bounds the rows that one transaction of RetryFailed handles.
const retryBatch = 1000

// RetryFailed makes those reviews of a kind due now that had failed too often before it was
// called, and resets their count of failures. It returns their number, even with an error.
// It skips rows that another transaction has locked: that transaction brings the row back
// with the event that it writes.
func (c *Collector) RetryFailed(ctx context.Context, kind ReviewKind) (int64, error) {
	sql := retryManifests
	if kind == ReviewOfBlobs {
		sql = retryBlobs
	}
	var total int64
	var before time.Time
	err := c.db.Pool.QueryRow(ctx, "SELECT now()").Scan(&before)
	for n := int64(1); err == nil && n > 0; total += n {
		n = 0
		err = db.Retry(ctx, func() error {
			return c.db.Pool.QueryRow(ctx, sql, audit.Args(ctx, db.Args{"batch": retryBatch, "before": before})).Scan(&n)
		})
	}
	if err != nil {
		return total, fmt.Errorf("making the failed reviews of %ss due again: %w", kind, err)
	}
	return total, nil
}

const retryManifests = `
	WITH failed AS MATERIALIZED (
		SELECT top_level_namespace_id, repository_id, manifest_id FROM gc_manifest_review_queue
		WHERE set_aside_at <= @before
		ORDER BY set_aside_at LIMIT @batch FOR UPDATE SKIP LOCKED
	), back AS (
		UPDATE gc_manifest_review_queue q SET set_aside_at = NULL, review_count = 0, review_after = now()
		FROM failed f
		WHERE q.top_level_namespace_id = f.top_level_namespace_id AND q.repository_id = f.repository_id
			AND q.manifest_id = f.manifest_id
		RETURNING 1
	), logged AS (
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, detail)
		SELECT 'retry_gc', @actor, @address, @user_agent, @request_id, jsonb_build_object('kind', 'manifest', 'reviews', count(*))
		FROM back HAVING count(*) > 0
	)
	SELECT count(*) FROM back`

const retryBlobs = `
	WITH failed AS MATERIALIZED (
		SELECT digest FROM gc_blob_review_queue
		WHERE set_aside_at <= @before
		ORDER BY set_aside_at LIMIT @batch FOR UPDATE SKIP LOCKED
	), back AS (
		UPDATE gc_blob_review_queue q SET set_aside_at = NULL, review_count = 0, review_after = now()
		FROM failed f WHERE q.digest = f.digest
		RETURNING 1
	), logged AS (
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, detail)
		SELECT 'retry_gc', @actor, @address, @user_agent, @request_id, jsonb_build_object('kind', 'blob', 'reviews', count(*))
		FROM back HAVING count(*) > 0
	)
	SELECT count(*) FROM back`
