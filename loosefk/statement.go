package loosefk

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// found is how many children of a parent a statement has processed.
type found struct {
	place int // index of the parent in the given list
	rows  int
}

// statement is the query that cleans up children of the parents $1: at most
// limit rows, and perParent of each parent.
//
// Children are found and locked first, parent by parent through the index on
// their column, and then changed by their place in the table: the planner can
// neither read the table whole nor go past the limit. A row's place is only
// unique within a partition. A child that was changed between the statement's
// snapshot and its lock is found but not changed: then the counts differ, and
// the statement is to be repeated.
func (r Reference) statement(limit, perParent int, skipLocked bool) (sql string, args []any) {
	arg := func(value any) string {
		args = append(args, value)
		return fmt.Sprintf("$%d", len(args)+1)
	}
	where, value := r.Rows.Where(arg)
	var change string
	switch r.OnDelete {
	case AsyncDelete:
		change = "DELETE FROM " + r.ChildTable.Quoted() + " c"
	case AsyncNullify:
		change = fmt.Sprintf("UPDATE %s c SET %s = NULL", r.ChildTable.Quoted(), pg.Quote(r.Column))
	case UpdateColumnTo:
		change = fmt.Sprintf("UPDATE %s c SET %s = %s", r.ChildTable.Quoted(), pg.Quote(r.TargetColumn), value)
	}
	alive := ""
	if r.Local() { // OFFSET makes this one lookup in the key's index for each parent
		alive = fmt.Sprintf("WHERE NOT EXISTS (SELECT FROM %s x WHERE x.%s OPERATOR(pg_catalog.=) p.id OFFSET 0)", r.ParentTable.Quoted(), pg.Quote(r.Rows.Key.Column))
	}
	skip := ""
	if skipLocked {
		skip = " SKIP LOCKED"
	}
	return fmt.Sprintf(`
		WITH victims AS MATERIALIZED (
			SELECT p.place, v.part, v.tid
			FROM pg_catalog.unnest(%s) WITH ORDINALITY AS p (id, place)
			CROSS JOIN LATERAL (
				SELECT c.tableoid AS part, c.ctid AS tid FROM %s c
				WHERE %s
				LIMIT %d FOR UPDATE%s) v
			%s
			LIMIT %d
		), changed AS (
			%s
			WHERE c.ctid = ANY (ARRAY(SELECT tid FROM victims))
				AND (c.tableoid, c.ctid) IN (SELECT part, tid FROM victims)
			RETURNING 1
		)
		SELECT place - 1, count(*), (SELECT count(*) FROM changed) FROM victims GROUP BY place ORDER BY place`,
		r.Rows.Key.List("$1"), r.ChildTable.Quoted(), where, perParent, skip, alive, limit, change), args
}

// timeouts bound a statement on the server.
type timeouts struct{ lock, statement time.Duration }

// bound sends a statement with its timeouts in one round trip and one transaction, followed
// by an optional check whose failure rolls the statement back. Like pg.Collect, it fails
// where row security would hide rows. The statement's plan reads children one by one up to
// the limit, even if the planner expects so few that it would collect all of them first. If
// the server doesn't end the statement in time, bound gives the connection up, so that a
// silent server doesn't block a worker for ever.
func bound(ctx context.Context, pool *pgxpool.Pool, t timeouts, sql string, args []any, scan func(pgx.Rows) error, check ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*t.statement+answerTime) // the check is a statement too
	defer cancel()
	b := new(pgx.Batch)
	b.Queue(`SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true),
			pg_catalog.set_config('enable_bitmapscan', 'off', true), pg_catalog.set_config('enable_seqscan', 'off', true),
			pg_catalog.set_config('row_security', 'off', true)`,
		milliseconds(t.lock), milliseconds(t.statement))
	b.Queue(sql, args...).Query(scan)
	for _, sql := range check {
		b.Queue(sql, args[0])
	}
	return pool.SendBatch(ctx, b).Close()
}

// change runs the statement for the parents ids. It returns what was found for each parent,
// and how many rows were changed. If parent and child are in one database and one of the
// parents exists, nothing is changed and the error has the SQLSTATE 22012.
func (r Reference) change(ctx context.Context, t timeouts, ids []parentKey, limit, perParent int, skipLocked bool) (list []found, changed int, err error) {
	sql, args := r.statement(limit, perParent, skipLocked)
	var check []string
	if r.Local() { // a parent may have come back while the statement waited for its children
		check = []string{fmt.Sprintf("SELECT 1 / (NOT EXISTS (SELECT FROM %s WHERE %s OPERATOR(pg_catalog.=) ANY (%s)))::int", r.ParentTable.Quoted(), pg.Quote(r.Rows.Key.Column), r.Rows.Key.List("$1"))}
	}
	err = bound(ctx, r.ChildDatabase.Pool, t, sql, append([]any{ids}, args...), func(rows pgx.Rows) error {
		var f found
		_, err := pgx.ForEachRow(rows, []any{&f.place, &f.rows, &changed}, func() error {
			list = append(list, f)
			return nil
		})
		return err
	}, check...)
	if err != nil {
		return nil, 0, fmt.Errorf("cleaning up %s: %w", r.Definition, err)
	}
	return list, changed, nil
}
