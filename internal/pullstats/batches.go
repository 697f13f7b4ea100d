package pullstats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

const (
	// batchLease is how long a batch may be open before another worker abandons it. A
	// slower worker fails when it applies its batch; others have counted its keys then.
	batchLease = time.Minute
	// batchesFor is how long the states of batches are kept. No valid claim in Redis is
	// older.
	batchesFor = 30 * 24 * time.Hour
)

// States of a batch. It begins as open and becomes applied or abandoned once and for all.
// batchUnknown is returned for numbers that the database doesn't have.
const (
	batchOpen      = "open"
	batchApplied   = "applied"
	batchAbandoned = "abandoned"
	batchUnknown   = "unknown"
)

// batches accesses the batches of flushes in the statistics' database.
type batches struct{ stats *db.DB }

// open makes a batch and returns its number, which is greater than all before, and the
// epoch that Redis should have.
func (b batches) open(ctx context.Context) (n, kept int64, err error) {
	err = b.stats.Pool.QueryRow(ctx, `
		INSERT INTO redisflushbatches (lease_until) VALUES (clock_timestamp() + $1::bigint * interval '1 microsecond')
		RETURNING id, (SELECT redis_epoch FROM redisprocessingstate)`,
		batchLease.Microseconds()).Scan(&n, &kept)
	if err != nil {
		return 0, 0, fmt.Errorf("beginning to flush pulls: %w", err)
	}
	return n, kept, nil
}

// apply sets an open batch to applied, in the transaction that adds its claims to the
// statistics. If the batch isn't open it changes nothing and returns the batch's state.
func (b batches) apply(ctx context.Context, tx pgx.Tx, n int64, list []claimed) (other string, err error) {
	names, seqs := make([]int64, len(list)), make([]int64, len(list))
	for i, c := range list {
		names[i], seqs[i] = keyName(c.key), c.seq
	}
	done, err := tx.Exec(ctx, `
		UPDATE redisflushbatches SET state = 'applied', keys = $2, key_names = $3, key_seqs = $4 WHERE id = $1 AND state = 'open'`,
		n, len(list), names, seqs)
	if err != nil {
		return "", fmt.Errorf("applying flush %d: %w", n, err)
	}
	if done.RowsAffected() == 1 {
		return "", nil
	}
	err = tx.QueryRow(ctx, "SELECT state FROM redisflushbatches WHERE id = $1", n).Scan(&other)
	if errors.Is(err, pgx.ErrNoRows) {
		return batchUnknown, nil
	}
	if err != nil {
		return "", fmt.Errorf("applying flush %d: %w", n, err)
	}
	return other, nil
}

// abandon sets a batch to abandoned if it is open, and returns its state.
func (b batches) abandon(ctx context.Context, n int64) (state string, err error) {
	err = b.stats.Pool.QueryRow(ctx, `
		WITH put AS (
			UPDATE redisflushbatches SET state = 'abandoned' WHERE id = $1 AND state = 'open' RETURNING state)
		SELECT COALESCE((SELECT state FROM put), (SELECT state FROM redisflushbatches WHERE id = $1), 'unknown')`, n).Scan(&state)
	if err == nil && state == batchOpen {
		// The statement's snapshot has it open, but it was applied while the statement
		// waited for its row.
		err = b.stats.Pool.QueryRow(ctx, "SELECT state FROM redisflushbatches WHERE id = $1", n).Scan(&state)
	}
	if err != nil {
		return "", fmt.Errorf("giving up flush %d: %w", n, err)
	}
	return state, nil
}

// states returns the states of batches that have claims, without those that are open. First
// it abandons those whose lease has ended. It locks them in the order of their numbers,
// since several workers may do so at once.
func (b batches) states(ctx context.Context, ids []int64) (map[int64]string, error) {
	if _, err := b.stats.Pool.Exec(ctx, `
		WITH late AS MATERIALIZED (
			SELECT id FROM redisflushbatches
			WHERE id = ANY ($1) AND state = 'open' AND lease_until < clock_timestamp()
			ORDER BY id FOR UPDATE)
		UPDATE redisflushbatches b SET state = 'abandoned' FROM late WHERE b.id = late.id AND b.state = 'open'`, ids); err != nil {
		return nil, fmt.Errorf("reading the states of flushes: %w", err)
	}
	rows, err := b.stats.Pool.Query(ctx, `
		SELECT want.id, COALESCE(b.state, 'unknown')
		FROM unnest($1::bigint[]) AS want (id) LEFT JOIN redisflushbatches b ON b.id = want.id`, ids)
	if err != nil {
		return nil, fmt.Errorf("reading the states of flushes: %w", err)
	}
	states := map[int64]string{}
	var id int64
	var state string
	if _, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		if state != batchOpen {
			states[id] = state
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading the states of flushes: %w", err)
	}
	return states, nil
}

// abandonOpen abandons every open batch, whatever its lease. It locks them in the order of
// their numbers, as states does; otherwise the two could deadlock.
func (b batches) abandonOpen(ctx context.Context) error {
	_, err := b.stats.Pool.Exec(ctx, `
		WITH open AS MATERIALIZED (
			SELECT id FROM redisflushbatches WHERE state = 'open' ORDER BY id FOR UPDATE)
		UPDATE redisflushbatches b SET state = 'abandoned' FROM open WHERE b.id = open.id AND b.state = 'open'`)
	if err != nil {
		return fmt.Errorf("giving up flushes: %w", err)
	}
	return nil
}

// sweep deletes old batches, up to 10,000 at a time, but never the newest.
func (b batches) sweep(ctx context.Context) error {
	_, err := b.stats.Pool.Exec(ctx, `
		DELETE FROM redisflushbatches WHERE id = ANY (ARRAY(
			SELECT id FROM redisflushbatches
			WHERE state <> 'open' AND created_at < now() - $1::bigint * interval '1 microsecond'
				AND id < (SELECT max(id) FROM redisflushbatches)
			ORDER BY created_at LIMIT 10000 FOR UPDATE SKIP LOCKED))`, batchesFor.Microseconds())
	if err != nil {
		return fmt.Errorf("forgetting old flushes: %w", err)
	}
	return nil
}

// appliedSince returns, for each key (by keyName), the highest sequence number that batches
// made since a time have applied.
func (b batches) appliedSince(ctx context.Context, since time.Time) (map[int64]int64, error) {
	rows, err := b.stats.Pool.Query(ctx, `
		SELECT k.name, k.seq FROM redisflushbatches, unnest(key_names, key_seqs) AS k (name, seq)
		WHERE state = 'applied' AND created_at >= $1`, since)
	if err != nil {
		return nil, fmt.Errorf("reading what was flushed: %w", err)
	}
	list := map[int64]int64{}
	var name, seq int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &seq}, func() error {
		list[name] = max(list[name], seq)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading what was flushed: %w", err)
	}
	return list, nil
}

// forgetApplied deletes the record of what old batches have applied, once a flush has been
// complete long enough after them. It skips batches that another worker has locked, since
// that worker does the same.
func (b batches) forgetApplied(ctx context.Context) error {
	_, err := b.stats.Pool.Exec(ctx, `
		UPDATE redisflushbatches SET key_names = NULL, key_seqs = NULL
		WHERE id = ANY (ARRAY(
			SELECT id FROM redisflushbatches
			WHERE state <> 'open' AND key_names IS NOT NULL
				AND created_at < (SELECT last_processed_timestamp FROM redisprocessingstate) - $1::bigint * interval '1 microsecond'
			FOR UPDATE SKIP LOCKED))`, appliedFor.Microseconds())
	if err != nil {
		return fmt.Errorf("forgetting what was flushed: %w", err)
	}
	return nil
}

// newest returns the highest number of a batch, 0: there is none.
func (b batches) newest(ctx context.Context) (n int64, err error) {
	if err = b.stats.Pool.QueryRow(ctx, "SELECT COALESCE(max(id), 0) FROM redisflushbatches").Scan(&n); err != nil {
		return 0, fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	return n, nil
}

// beyond adds, as abandoned, the batches after newest up to n: Redis knows them, but the
// database was restored to a state before them, so what they applied is lost too. It also
// makes future numbers greater than n, since a key ignores claims of numbers that it has
// settled already.
func (b batches) beyond(ctx context.Context, newest, n int64) error {
	// The sequence first: if only this succeeds, the next run still finds the batches
	// missing.
	_, err := b.stats.Pool.Exec(ctx, `
		SELECT setval(seq, $1) FROM pg_get_serial_sequence('redisflushbatches', 'id') seq
		WHERE COALESCE(pg_sequence_last_value(seq::regclass), 0) < $1`, n)
	if err == nil {
		_, err = b.stats.Pool.Exec(ctx, `
			INSERT INTO redisflushbatches (id, state, lease_until) OVERRIDING SYSTEM VALUE
			SELECT id, 'abandoned', now() FROM generate_series($1::bigint + 1, $2::bigint) id
			ON CONFLICT DO NOTHING`, newest, n)
	}
	if err != nil {
		return fmt.Errorf("numbering flushes of a database that was restored: %w", err)
	}
	return nil
}
