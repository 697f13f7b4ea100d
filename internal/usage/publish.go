package usage

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/worker"
)

// days stores the sums of the day, UTC, for a slice of namespaces: of those whose sums changed since the last
// day that is stored. One that has nothing any more changed to 0. The last slice publishes the pass. A namespace
// that is or is being deleted is left out. OFFSET 0 makes PostgreSQL look rows up by an index: see "Plans" in
// package db.
func (m *Meter) days(ctx context.Context, tx pgx.Tx, s state) error {
	var read int
	var last int64
	err := tx.QueryRow(ctx, `
		WITH slice AS MATERIALIZED (
			SELECT id FROM top_level_namespaces WHERE id > $2 AND deleted_at IS NULL ORDER BY id LIMIT $3
		), changed AS MATERIALIZED (
			SELECT slice.id, COALESCE(u.bytes, 0) AS bytes, COALESCE(u.own_bytes, 0) AS own_bytes FROM slice
			LEFT JOIN LATERAL (
				SELECT bytes, own_bytes FROM usage_namespaces WHERE pass = $1 AND namespace_id = slice.id OFFSET 0) u ON true
			LEFT JOIN LATERAL (
				SELECT bytes, own_bytes FROM usage_days WHERE namespace_id = slice.id AND day <= purser_today() ORDER BY day DESC LIMIT 1) d ON true
			WHERE (u.bytes IS NOT NULL OR d.bytes IS NOT NULL)
				AND (COALESCE(u.bytes, 0) IS DISTINCT FROM d.bytes OR COALESCE(u.own_bytes, 0) IS DISTINCT FROM d.own_bytes)
		), stored AS (
			INSERT INTO usage_days (namespace_id, day, bytes, own_bytes)
			SELECT changed.id, purser_today(), bytes, own_bytes FROM changed
			CROSS JOIN LATERAL (
				SELECT FROM top_level_namespaces n WHERE n.id = changed.id AND n.deleted_at IS NULL FOR KEY SHARE SKIP LOCKED) n
			ON CONFLICT (namespace_id, day) DO UPDATE SET bytes = EXCLUDED.bytes, own_bytes = EXCLUDED.own_bytes
		)
		SELECT count(*), COALESCE(max(id), 0) FROM slice`, s.pass, s.at.Namespace, m.opt.Slice).Scan(&read, &last)
	if err != nil {
		return err
	}
	if read == m.opt.Slice {
		return move(ctx, tx, "days", position{Namespace: last})
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO usage_registry_days (day, bytes, trash_bytes, unreferenced_bytes)
		SELECT purser_today(), bytes, trash_bytes, unreferenced_bytes FROM usage_registry WHERE pass = $1
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

// forget deletes a slice of days that nobody needs, unless nothing may be deleted for its age now, and returns
// whether there may be more: days that are too old, and those of the future, which a clock that was ahead has
// made. The last of the old days of a namespace stays: it says what a namespace at rest stores.
func (m *Meter) forget(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`DELETE FROM usage_days WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM usage_days d WHERE day > purser_today() OR day < purser_today() - $1::int AND EXISTS (
					SELECT FROM usage_days newer
					WHERE newer.namespace_id = d.namespace_id AND newer.day > d.day AND newer.day <= purser_today() - $1::int OFFSET 0)
				LIMIT $2))`,
			`DELETE FROM usage_registry_days WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM usage_registry_days WHERE day > purser_today() OR day < purser_today() - $1::int LIMIT $2))`,
		} {
			done, err := tx.Exec(ctx, sql, keptDays, m.opt.Slice)
			if err != nil {
				return err
			}
			more = more || done.RowsAffected() == int64(m.opt.Slice)
		}
		return clock.CheckTx(ctx, tx, m.opt.CheckTime)
	})
	if errors.Is(err, worker.ErrRest) {
		return false, nil
	}
	return more, err
}
