package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Doomed is an object, or every object of an upload, that is to be deleted.
type Doomed struct {
	StorageKey string
	OfUpload   bool   // StorageKey is a prefix; everything below it goes
	Keep       string // but this one; "" for none
	Size       int64  // bytes; what an upload may have written
	Attempts   int    // failed ones so far
	// HeldUntil marks the claim: another one has another time.
	HeldUntil time.Time
}

// claims are the keys and marks of a list.
func claims(list []Doomed) (keys []string, held []time.Time) {
	for _, d := range list {
		keys, held = append(keys, d.StorageKey), append(held, d.HeldUntil)
	}
	return keys, held
}

// ClaimDoomed returns up to n doomed objects that are due, and puts each off by
// hold, so that no other process takes it meanwhile and one that its claimer
// forgets comes back. Deleting an object twice is harmless: its name is never
// used again. An object that was a blob's is due Options.KeepDoomed later than its
// row says, until it is claimed first; an upload's never had a row that could name
// it after a restore.
func (c *Catalog) ClaimDoomed(ctx context.Context, n int, hold time.Duration) ([]Doomed, error) {
	rows, err := c.db.Pool.Query(ctx, `
		WITH others AS MATERIALIZED (
			SELECT storage_key FROM gc_doomed_objects
			WHERE (of_upload OR sweeping) AND delete_after <= now()
			ORDER BY delete_after LIMIT $1 FOR UPDATE SKIP LOCKED
		), kept AS MATERIALIZED (
			SELECT storage_key FROM gc_doomed_objects
			WHERE NOT (of_upload OR sweeping) AND delete_after <= now() - $3::interval
			ORDER BY delete_after LIMIT $1 - (SELECT count(*) FROM others) FOR UPDATE SKIP LOCKED
		)
		UPDATE gc_doomed_objects d SET delete_after = now() + $2::interval, sweeping = true,
			again_at = CASE WHEN again_at > now() THEN again_at END
		WHERE storage_key = ANY (ARRAY(SELECT storage_key FROM others UNION ALL SELECT storage_key FROM kept))
		RETURNING storage_key, of_upload, COALESCE(keep, ''), size, attempts, delete_after`, n, hold, c.opt.KeepDoomed)
	if err != nil {
		return nil, fmt.Errorf("claiming doomed objects: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Doomed])
	if err != nil {
		return nil, fmt.Errorf("claiming doomed objects: %w", err)
	}
	return list, nil
}

// SettleDoomed forgets doomed objects that were deleted. One of an upload whose
// deletion began before the longest request was over comes back once more after
// it, in case a writer was late.
// What another process has claimed since is left to it.
func (c *Catalog) SettleDoomed(ctx context.Context, list []Doomed) error {
	keys, held := claims(list)
	b := new(batch)
	b.exec(`DELETE FROM gc_doomed_objects d USING unnest($1::text[], $2::timestamptz[]) AS mine (storage_key, held)
		WHERE d.storage_key = mine.storage_key AND d.delete_after = mine.held AND d.again_at IS NULL`, keys, held)
	b.exec(`UPDATE gc_doomed_objects d SET delete_after = again_at, attempts = 0, last_error = NULL, size = 0
		FROM unnest($1::text[], $2::timestamptz[]) AS mine (storage_key, held)
		WHERE d.storage_key = mine.storage_key AND d.delete_after = mine.held`, keys, held)
	if err := b.send(ctx, c.db.Pool); err != nil {
		return fmt.Errorf("settling doomed objects: %w", err)
	}
	return nil
}

// PostponeDoomed puts doomed objects off by delay after a failure to delete
// them, unless another process has claimed them since.
func (c *Catalog) PostponeDoomed(ctx context.Context, list []Doomed, delay time.Duration, cause error) error {
	keys, held := claims(list)
	_, err := c.db.Pool.Exec(ctx, `
		UPDATE gc_doomed_objects d SET delete_after = now() + $3::interval, attempts = attempts + 1, last_error = $4
		FROM unnest($1::text[], $2::timestamptz[]) AS mine (storage_key, held)
		WHERE d.storage_key = mine.storage_key AND d.delete_after = mine.held`, keys, held, delay, cause.Error())
	if err != nil {
		return fmt.Errorf("postponing doomed objects: %w", err)
	}
	return nil
}

// NextDoomed is how long it is until the next doomed object is due, at most
// limit.
func (c *Catalog) NextDoomed(ctx context.Context, limit time.Duration) (time.Duration, error) {
	var d time.Duration
	err := c.db.Pool.QueryRow(ctx, `
		SELECT GREATEST('0', LEAST($1::interval,
			(SELECT delete_after - now() FROM gc_doomed_objects
				WHERE of_upload OR sweeping ORDER BY delete_after LIMIT 1),
			(SELECT delete_after - now() + $2::interval FROM gc_doomed_objects
				WHERE NOT (of_upload OR sweeping) ORDER BY delete_after LIMIT 1)))`, limit, c.opt.KeepDoomed).Scan(&d)
	if err != nil {
		return 0, fmt.Errorf("looking for doomed objects: %w", err)
	}
	return d, nil
}

// Reclaims says whether something is known to be stored below the name. If not, it is
// swept a second time, or an upload has written nothing.
func (d Doomed) Reclaims() bool { return d.Size > 0 }

// KeepDoomed is how long objects of deleted blobs are kept.
func (c *Catalog) KeepDoomed() time.Duration { return c.opt.KeepDoomed }
