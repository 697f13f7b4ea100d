package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// AnalyzeGrown runs ANALYZE on each of Purser's tables in which more rows were changed since
// the table's last ANALYZE than half of its rows plus 500. It returns the names of these
// tables.
//
// While the planner's statistics of a table are from a time when the table was nearly empty,
// the planner takes an index that leads to a whole repository to be as cheap as an index that
// leads to a single row. So it makes bad plans, also for foreign key checks, whose SQL is part
// of PostgreSQL and can't be changed. Autovacuum would analyze the tables within a minute, but
// it may be off or busy with other tables.
//
// A table that another connection is vacuuming or analyzing isn't analyzed, although its name
// is returned. AnalyzeGrown leaves out tables whose owner is a role of which the connection's
// role isn't a member.
func (d *DB) AnalyzeGrown(ctx context.Context) ([]string, error) {
	rows, err := d.Pool.Query(ctx, `
		SELECT format('%I.%I', n.nspname, c.relname)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname IN (current_schema(), 'partitions')
			AND pg_has_role(c.relowner, 'USAGE')
			AND pg_stat_get_mod_since_analyze(c.oid) > 500 + pg_stat_get_live_tuples(c.oid) / 2
		ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("looking for tables that have grown: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("looking for tables that have grown: %w", err)
	}
	ctx = Unhurried(ctx)
	for _, table := range tables {
		err := pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error {
			if err := LiftLimits(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "ANALYZE (SKIP_LOCKED) "+table, pgx.QueryExecModeSimpleProtocol)
			return err
		})
		if err != nil && Code(err) != CodeUndefinedTable { // it may have been dropped meanwhile
			return nil, fmt.Errorf("analyzing table %s: %w", table, err)
		}
	}
	return tables, nil
}
