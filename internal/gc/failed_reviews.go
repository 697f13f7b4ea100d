package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// FailReview counts a failed review; `e` must be the error of a batch of one queue row. If
// reviews of the row have failed n times now, FailReview postpones the row by delay(n). If
// n reaches `most`, it marks the row as failed for good (set_aside_at) and returns true: no
// review claims the row until an event or RetryFailed makes it due again. If the row has
// changed since the failed review, or is locked, FailReview does nothing.
func (c *Collector) FailReview(ctx context.Context, e *ReviewError, most int, delay func(attempts int) time.Duration) (failed bool, err error) {
	if len(e.rows) != 1 {
		return false, fmt.Errorf("counting a failed review: it was of %d rows and not of one", len(e.rows))
	}
	row := e.rows[0]
	where, key := "digest = $1", []any{row.digest}
	if e.kind == ReviewOfManifests {
		where = "top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3"
		key = []any{row.namespace, row.repository, row.id}
	}
	err = pgx.BeginTxFunc(ctx, c.opt.Reviews.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var attempts int
		err := tx.QueryRow(ctx, "SELECT review_count + 1 FROM "+e.kind.queue()+
			" WHERE "+where+" AND set_aside_at IS NULL AND review_after <= now() FOR UPDATE SKIP LOCKED", key...).Scan(&attempts)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // an event or another reviewer has changed the row since, or has locked it
		}
		if err != nil {
			return err
		}
		failed = attempts >= most
		_, err = tx.Exec(ctx, fmt.Sprintf(`UPDATE %s SET review_count = $%d, review_after = now() + $%d::interval,
			last_error = $%d, set_aside_at = CASE WHEN $%d THEN now() END WHERE %s`,
			e.kind.queue(), len(key)+1, len(key)+2, len(key)+3, len(key)+4, where),
			append(key, attempts, delay(attempts), e.Err.Error(), failed)...)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("counting a failed review of %s: %w", row.name(e.kind), err)
	}
	return failed, nil
}

// PostponeReview postpones the queue rows of the failed batch `e` by PostponeDelay, because
// other transactions have locked something that the batch needed. If another transaction
// has given a row a longer delay since, PostponeReview doesn't shorten it. If another
// transaction has locked a row, PostponeReview waits for the lock timeout of
// Options.Reviews, and then skips the row.
func (c *Collector) PostponeReview(ctx context.Context, e *ReviewError) error {
	for _, row := range e.rows {
		sql, args := postponeBlobs, []any{[][]byte{row.digest}, PostponeDelay}
		if e.kind == ReviewOfManifests {
			sql, args = postponeManifests, []any{[]int64{row.namespace}, []int64{row.repository}, []int64{row.id}, PostponeDelay}
		}
		if _, err := c.opt.Reviews.Pool.Exec(ctx, sql, args...); err != nil && db.Code(err) != db.CodeLockNotAvailable {
			return fmt.Errorf("postponing the review of %s: %w", row.name(e.kind), err)
		}
	}
	return nil
}

// retryBatch bounds the rows that one transaction of RetryFailed makes due.
const retryBatch = 1000

// RetryFailed takes the reviews of a kind that were marked as failed for good before the
// call, makes them due now, and resets their counts of failures. It returns their number,
// even with an error. It skips queue rows that another transaction has locked. Such a
// transaction is writing an event to the row, or belongs to another call of RetryFailed; in
// either case it removes the row's mark itself.
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
