package usage

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/worker"
)

// days stores the sums of the day, UTC, for a slice of namespaces: of those whose sums changed since the last
// day that is stored. The last slice publishes the pass. A namespace that is or is being deleted is left out.
func (m *Meter) days(ctx context.Context, tx pgx.Tx, s state) error {
	var read int
	var last int64
	err := tx.QueryRow(ctx, `
		WITH slice AS MATERIALIZED (
			SELECT namespace_id, bytes, own_bytes FROM usage_namespaces WHERE pass = $1 AND namespace_id > $2 ORDER BY namespace_id LIMIT $3
		), live AS MATERIALIZED (
			SELECT n.id FROM top_level_namespaces n WHERE n.id IN (SELECT namespace_id FROM slice) AND n.deleted_at IS NULL FOR KEY SHARE SKIP LOCKED
		), stored AS (
			INSERT INTO usage_days (namespace_id, day, bytes, own_bytes)
			SELECT namespace_id, (now() AT TIME ZONE 'UTC')::date, bytes, own_bytes FROM slice
			WHERE namespace_id IN (SELECT id FROM live) AND NOT EXISTS (
				SELECT FROM (SELECT bytes, own_bytes FROM usage_days d WHERE d.namespace_id = slice.namespace_id ORDER BY day DESC LIMIT 1) d
				WHERE d.bytes = slice.bytes AND d.own_bytes = slice.own_bytes)
			ON CONFLICT (namespace_id, day) DO UPDATE SET bytes = EXCLUDED.bytes, own_bytes = EXCLUDED.own_bytes
		)
		SELECT count(*), COALESCE(max(namespace_id), 0) FROM slice`, s.pass, s.at.Namespace, m.opt.Slice).Scan(&read, &last)
	if err != nil {
		return err
	}
	if read == m.opt.Slice {
		return move(ctx, tx, "days", position{Namespace: last})
	}
	if err := m.forget(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO usage_registry_days (day, bytes, trash_bytes, unreferenced_bytes)
		SELECT (now() AT TIME ZONE 'UTC')::date, bytes, trash_bytes, unreferenced_bytes FROM usage_registry WHERE pass = $1
		ON CONFLICT (day) DO UPDATE SET bytes = EXCLUDED.bytes, trash_bytes = EXCLUDED.trash_bytes,
			unreferenced_bytes = EXCLUDED.unreferenced_bytes`, s.pass); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE usage_state SET phase = 'idle', position = '{}', published = pass, measured_from = begun_at, measured_at = clock_timestamp(),
			next_at = clock_timestamp() + LEAST(GREATEST((worked + (clock_timestamp() - now())) * $1::int, $2::interval), $3::interval)`,
		share, shortestPause, longestPause)
	return err
}

// forget deletes days that are too old, unless nothing may be deleted for its age now.
func (m *Meter) forget(ctx context.Context, tx pgx.Tx) error {
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		b := new(pgx.Batch)
		b.Queue(`
			DELETE FROM usage_days WHERE (namespace_id, day) IN (
				SELECT namespace_id, day FROM usage_days WHERE day < (now() AT TIME ZONE 'UTC')::date - $1::int ORDER BY day LIMIT $2)`, keptDays, m.opt.Slice)
		b.Queue("DELETE FROM usage_registry_days WHERE day < (now() AT TIME ZONE 'UTC')::date - $1::int", keptDays)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return clock.CheckTx(ctx, tx, m.opt.CheckTime)
	})
	if errors.Is(err, worker.ErrRest) {
		return nil
	}
	return err
}
