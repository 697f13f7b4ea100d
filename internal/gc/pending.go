package gc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/clock"
)

// PendingDeletion is a row of gc_doomed_objects: an object, or all objects of an upload, that
// is to be deleted from the store.
type PendingDeletion struct {
	StorageKey string
	OfUpload   bool   // StorageKey is a prefix; all objects below it are deleted
	Keep       string // the key of an object of the upload to be kept; "" for none
	Size       int64  // bytes; of an upload, what it may have written
	Attempts   int    // failed attempts so far
	// ClaimedUntil is when the claim of the row by this process expires. The time also
	// identifies the claim, since a later claim of the same row has a later time.
	ClaimedUntil time.Time
}

// claims returns the storage keys of the pending deletions in `list`, and the times when
// the claims of these rows expire.
func claims(list []PendingDeletion) (keys []string, until []time.Time) {
	for _, d := range list {
		keys, until = append(keys, d.StorageKey), append(until, d.ClaimedUntil)
	}
	return keys, until
}

// ClaimPending claims up to `n` due pending deletions and returns them. Until `claimTime`
// has passed, no other process can claim them. After this time they become due again, in
// case this process has died; deleting an object twice is harmless, since storage keys are
// never reused. The object of a deleted blob can be claimed for the first time only when
// Options.KeepDoomed has passed since delete_after, so that a restored older database
// still finds it. An upload's objects needn't wait so long, since no blob row of a
// restored database names them.
//
// Half of the n is for objects of blobs that nobody has claimed yet, as far as such are due, and half
// for the others; what one half doesn't need is for the other. So a client that begins and cancels
// uploads all the time can't keep sweepers from the objects of blobs.
//
// While a backup holds the lock of PauseSweeps, ClaimPending claims nothing and returns
// ErrSweepsPaused. The statement that claims rows has the lock in shared mode until it
// commits.
func (c *Collector) ClaimPending(ctx context.Context, n int, claimTime time.Duration) ([]PendingDeletion, error) {
	var list []PendingDeletion
	err := pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		if list, err = c.claimPending(ctx, tx, n, claimTime); err != nil {
			return err
		}
		return clock.CheckTx(ctx, tx, c.opt.CheckTime)
	})
	if err != nil && !errors.Is(err, ErrSweepsPaused) {
		return nil, fmt.Errorf("claiming pending deletions: %w", err)
	}
	return list, err
}

func (c *Collector) claimPending(ctx context.Context, tx pgx.Tx, n int, claimTime time.Duration) ([]PendingDeletion, error) {
	half := (n + rand.IntN(2)) / 2 // chance gives the odd one to either half: n may be 1
	rows, err := tx.Query(ctx, `
		WITH free AS MATERIALIZED (
			SELECT pg_try_advisory_xact_lock_shared($4) AS free
		), share AS MATERIALIZED (
			SELECT count(*) AS of_kept FROM (
				SELECT FROM gc_doomed_objects
				WHERE NOT (of_upload OR sweeping) AND delete_after <= now() - $3::interval AND (SELECT free FROM free)
				ORDER BY delete_after LIMIT $5) k
		), others AS MATERIALIZED (
			SELECT storage_key FROM gc_doomed_objects
			WHERE (of_upload OR sweeping) AND delete_after <= now() AND (SELECT free FROM free)
			ORDER BY delete_after LIMIT $1 - (SELECT of_kept FROM share) FOR UPDATE SKIP LOCKED
		), kept AS MATERIALIZED (
			SELECT storage_key FROM gc_doomed_objects
			WHERE NOT (of_upload OR sweeping) AND delete_after <= now() - $3::interval AND (SELECT free FROM free)
			ORDER BY delete_after LIMIT $1 - (SELECT count(*) FROM others) FOR UPDATE SKIP LOCKED
		), claimed AS (
			UPDATE gc_doomed_objects d SET delete_after = now() + $2::interval, sweeping = true,
				again_at = CASE WHEN again_at > now() THEN again_at END
			WHERE storage_key = ANY (ARRAY(SELECT storage_key FROM others UNION ALL SELECT storage_key FROM kept))
			RETURNING storage_key, of_upload, COALESCE(keep, '') AS keep, size, attempts, delete_after
		)
		SELECT f.free, c.* FROM free f LEFT JOIN claimed c ON true`, n, claimTime, c.opt.KeepDoomed, sweepLock, half)
	if err != nil {
		return nil, err
	}
	return claimed(rows)
}

// claimed reads the result of ClaimPending's statement. Each row says whether the statement
// got the lock. If it claimed nothing, it returns one row whose other columns are NULL.
func claimed(rows pgx.Rows) (list []PendingDeletion, err error) {
	var free bool
	var key, keep *string
	var ofUpload *bool
	var size *int64
	var attempts *int
	var until *time.Time
	_, err = pgx.ForEachRow(rows, []any{&free, &key, &ofUpload, &keep, &size, &attempts, &until}, func() error {
		if key != nil {
			list = append(list, PendingDeletion{*key, *ofUpload, *keep, *size, *attempts, *until})
		}
		return nil
	})
	if err == nil && !free {
		err = ErrSweepsPaused
	}
	return list, err
}

// SettlePending removes the rows of pending deletions whose objects the store has deleted.
// A row may have a time for a second sweep (again_at), because a request might still write
// the object after the first sweep. SettlePending reschedules such a row to that time
// instead of removing it. It skips a row if the caller's claim has expired and another
// process has claimed the row.
func (c *Collector) SettlePending(ctx context.Context, list []PendingDeletion) error {
	keys, until := claims(list)
	b := new(pgx.Batch)
	b.Queue(`DELETE FROM gc_doomed_objects d USING unnest($1::text[], $2::timestamptz[]) AS mine (storage_key, until)
		WHERE d.storage_key = mine.storage_key AND d.delete_after = mine.until AND d.again_at IS NULL`, keys, until)
	b.Queue(`UPDATE gc_doomed_objects d SET delete_after = again_at, attempts = 0, last_error = NULL, size = 0
		FROM unnest($1::text[], $2::timestamptz[]) AS mine (storage_key, until)
		WHERE d.storage_key = mine.storage_key AND d.delete_after = mine.until`, keys, until)
	if err := c.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("settling pending deletions: %w", err)
	}
	return nil
}

// PostponePending is called after the store failed to delete the objects of pending
// deletions. It postpones their rows by `delay`, counts the failed attempt, and stores
// `cause` as the last error. It skips a row if the caller's claim has expired and another
// process has claimed the row.
func (c *Collector) PostponePending(ctx context.Context, list []PendingDeletion, delay time.Duration, cause error) error {
	keys, until := claims(list)
	_, err := c.db.Pool.Exec(ctx, `
		UPDATE gc_doomed_objects d SET delete_after = now() + $3::interval, attempts = attempts + 1, last_error = $4
		FROM unnest($1::text[], $2::timestamptz[]) AS mine (storage_key, until)
		WHERE d.storage_key = mine.storage_key AND d.delete_after = mine.until`, keys, until, delay, cause.Error())
	if err != nil {
		return fmt.Errorf("postponing pending deletions: %w", err)
	}
	return nil
}

// NextPending returns the time until the next pending deletion is due, at most `limit`.
func (c *Collector) NextPending(ctx context.Context, limit time.Duration) (time.Duration, error) {
	var d time.Duration
	err := c.db.Pool.QueryRow(ctx, `
		SELECT GREATEST('0', LEAST($1::interval,
			(SELECT delete_after - now() FROM gc_doomed_objects
				WHERE of_upload OR sweeping ORDER BY delete_after LIMIT 1),
			(SELECT delete_after - now() + $2::interval FROM gc_doomed_objects
				WHERE NOT (of_upload OR sweeping) ORDER BY delete_after LIMIT 1)))`, limit, c.opt.KeepDoomed).Scan(&d)
	if err != nil {
		return 0, fmt.Errorf("looking for pending deletions: %w", err)
	}
	return d, nil
}

// Reclaims says whether the deletion is known to free space in the store. It is false for
// the second sweep of an object, and for an upload that has written nothing.
func (d PendingDeletion) Reclaims() bool { return d.Size > 0 }
