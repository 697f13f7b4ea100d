package loosefk

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// failBatch is how many records one statement marks as failed at most. failBatches is how
// many such statements a run executes at most for each partition.
const (
	failBatch   = 1000
	failBatches = 100
)

// fail marks pending deleted records as failed if no definition names their table and the
// database has no such table: it was temporary, it was dropped, or the name is invalid. No
// worker can process these records, and they would keep their partition attached for ever.
// fail returns how many records it has marked.
func (d *Database) fail(ctx context.Context, parents []pg.Table) (failed int, err error) {
	list, _, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return 0, err
	}
	for _, p := range list {
		for range failBatches {
			n, err := d.failIn(ctx, p, parents)
			if err != nil {
				return failed, fmt.Errorf("marking records that name no table as failed: %w", err)
			}
			if failed += n; n < failBatch {
				break
			}
		}
	}
	return failed, nil
}

// failIn marks up to failBatch pending records of one partition as failed, if their table
// doesn't exist, and returns their number. To find the distinct table names in the
// partition, the SQL searches the database index of pending records once for each name,
// however many records have the name.
func (d *Database) failIn(ctx context.Context, p pg.Partition, parents []pg.Table) (failed int, err error) {
	names := make([]string, len(parents))
	for i, t := range parents {
		names[i] = t.String()
	}
	within := "true" // the default partition, with few rows or none
	if !p.Default {
		within = fmt.Sprintf("d.partition IN (%s)", strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Values), " ", ", "), "[]"))
	}
	err = indexed(ctx, d.Pool, fmt.Sprintf(`
		WITH RECURSIVE recorded (name) AS (
			(SELECT d.fully_qualified_table_name FROM %[1]s d WHERE d.status = 1 AND %[2]s
				ORDER BY d.fully_qualified_table_name LIMIT 1)
			UNION ALL
			SELECT (SELECT d.fully_qualified_table_name FROM %[1]s d
				WHERE d.status = 1 AND d.fully_qualified_table_name > recorded.name AND %[2]s
				ORDER BY d.fully_qualified_table_name LIMIT 1)
			FROM recorded WHERE recorded.name IS NOT NULL
		), unknown AS MATERIALIZED (
			SELECT name FROM recorded
			WHERE name IS NOT NULL AND name <> ALL ($1::text[]) AND NOT EXISTS (
				SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname || '.' || c.relname = recorded.name AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't')
		), failed AS (
			UPDATE %[1]s SET status = %[3]d
			WHERE ctid = ANY (ARRAY(
				SELECT d.ctid FROM unknown CROSS JOIN LATERAL (
					SELECT d.ctid FROM %[1]s d
					WHERE d.status = 1 AND d.fully_qualified_table_name = unknown.name AND %[2]s
					LIMIT %[4]d FOR UPDATE SKIP LOCKED) d
				LIMIT %[4]d))
			RETURNING 1
		)
		SELECT count(*)::int FROM failed`, d.table(p.Table).Quoted(), within, pg.StatusFailed, failBatch), []any{names},
		func(rows pgx.Rows) error {
			failed, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
			return err
		})
	return failed, err
}
