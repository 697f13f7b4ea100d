package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// retryBatch bounds the rows that one transaction of RetrySetAside handles.
const retryBatch = 1000

// RetrySetAside makes those reviews of a kind due now that had failed for good ("set aside")
// before it was called, and resets their count of failures. It returns their number, even
// with an error. It skips rows that another transaction has locked: that transaction brings
// the row back with the event that it writes.
func (c *Catalog) RetrySetAside(ctx context.Context, kind, queue string) (int64, error) {
	key, same := "top_level_namespace_id, repository_id, manifest_id",
		"q.top_level_namespace_id = b.top_level_namespace_id AND q.repository_id = b.repository_id AND q.manifest_id = b.manifest_id"
	if kind == "blob" {
		key, same = "digest", "q.digest = b.digest"
	}
	sql := fmt.Sprintf(`
		WITH b AS MATERIALIZED (
			SELECT %s FROM %[2]s WHERE set_aside_at <= @before
			ORDER BY set_aside_at LIMIT @batch FOR UPDATE SKIP LOCKED
		), back AS (
			UPDATE %[2]s q SET set_aside_at = NULL, review_count = 0, review_after = now()
			FROM b WHERE %[3]s RETURNING 1
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, detail)
			SELECT 'retry_gc', @actor, @address, @user_agent, @request_id, jsonb_build_object('kind', @kind::text, 'reviews', count(*))
			FROM back HAVING count(*) > 0
		)
		SELECT count(*) FROM back`, key, queue, same)
	var total int64
	var before time.Time
	err := c.db.Pool.QueryRow(ctx, "SELECT now()").Scan(&before)
	for n := int64(1); err == nil && n > 0; total += n {
		n = 0
		err = db.Retry(ctx, func() error {
			return c.db.Pool.QueryRow(ctx, sql, audit.Args(ctx, db.Args{"batch": retryBatch, "before": before, "kind": kind})).Scan(&n)
		})
	}
	if err != nil {
		return total, fmt.Errorf("bringing back the %ss that were set aside: %w", kind, err)
	}
	return total, nil
}
