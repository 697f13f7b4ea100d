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
	// worker that is slower than that has its keys counted by others, and finds out
	// when it applies them.
	batchLease = time.Minute
	// batchesFor is how long the states of batches are kept: no claim in Redis is
	// older that isn't an error.
	batchesFor = 30 * 24 * time.Hour
)

// States of a batch. It is open until, once and for all, it is one of the others.
const (
	batchOpen      = "open"
	batchApplied   = "applied"
	batchAbandoned = "abandoned"
	batchUnknown   = "unknown"
)

// batches are those of flushes, in the statistics' database.
type batches struct{ stats *db.DB }

// open makes a batch and returns its number, which is greater than all before, and
// the newest one that Redis should remember.
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

// apply takes a batch as applied, in the transaction that adds what it claimed, and
// returns its state if it isn't open any more.
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

// abandon gives a batch up unless it is applied, and returns what it is then.
func (b batches) abandon(ctx context.Context, n int64) (state string, err error) {
	err = b.stats.Pool.QueryRow(ctx, `
		WITH put AS (
			UPDATE redisflushbatches SET state = 'abandoned' WHERE id = $1 AND state = 'open' RETURNING state)
		SELECT COALESCE((SELECT state FROM put), (SELECT state FROM redisflushbatches WHERE id = $1), 'unknown')`, n).Scan(&state)
	if err == nil && state == batchOpen {
		// It was applied while the statement waited: its snapshot had it open.
		err = b.stats.Pool.QueryRow(ctx, "SELECT state FROM redisflushbatches WHERE id = $1", n).Scan(&state)
	}
	if err != nil {
		return "", fmt.Errorf("giving up flush %d: %w", n, err)
	}
	return state, nil
}

// states are those of batches that have claims. What is open for too long is abandoned
// first, locked in the order of their numbers, since workers ask for several at a time;
// what still is open isn't told.
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

// abandonOpen gives up every open batch, whatever its lease, locked in the order of their
// numbers, as states does: the two wait for each other else.
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

// sweep forgets the states of old batches, some at a time, but not the newest.
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

// appliedSince is up to which number each key has been applied by batches since a time.
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

// forgetApplied forgets what batches have applied that were complete long ago. It passes
// over those that another worker has locked, which forgets or deletes them itself.
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

// newest is the greatest number of a batch, 0: there is none.
func (b batches) newest(ctx context.Context) (n int64, err error) {
	if err = b.stats.Pool.QueryRow(ctx, "SELECT COALESCE(max(id), 0) FROM redisflushbatches").Scan(&n); err != nil {
		return 0, fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	return n, nil
}

// beyond abandons the batches after newest up to n, which Redis knows and which were
// made after what the database was restored from: what they applied isn't there either.
// Batches to come have greater numbers, or keys would take them for some that they are
// done with.
func (b batches) beyond(ctx context.Context, newest, n int64) error {
	// First what can't be found out to be missing.
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
