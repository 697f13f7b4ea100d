package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// AnalyzeGrown has PostgreSQL analyze Purser's tables that are mostly new since they were
// last analyzed, and returns their names. Statistics of a table that was nearly empty make
// an index that leads to all of a repository look as good as the one that leads to a row,
// also to the checks of foreign keys, whose text nobody can change. Autovacuum does the
// same within a minute as long as it is on and isn't busy with other tables.
//
// A table that another session analyzes or vacuums is passed over. Tables of other owners
// are theirs.
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
