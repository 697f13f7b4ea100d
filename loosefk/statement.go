package loosefk

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// found says how many children of one parent a query has found.
type found struct {
	place int // index of the parent in the given list
	rows  int
}

// statement returns the query that cleans up children of the parents whose keys are in $1:
// at most `limit` rows in total, and at most `perParent` rows of each parent.
//
// The query first finds and locks children, parent by parent, through the index on their
// column. Then it changes exactly these rows, identified by ctid. So no plan of PostgreSQL
// reads the whole table or exceeds the limit. A ctid is unique within one partition
// only, so the query compares tableoid too. If another transaction changed a child after
// the query's snapshot and before the query locked it, the query finds this child but
// doesn't change it. Then the numbers of found and changed rows differ, and the caller has
// to repeat the query.
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

// timeouts are the lock_timeout and statement_timeout of a query.
type timeouts struct{ lock, statement time.Duration }

// bound runs a statement with timeouts, in one round trip and one transaction. `check` is
// an optional second statement; if it fails, the transaction is rolled back.
//
// The transaction is READ COMMITTED and fires triggers, whatever the role, the database or the
// DSN impose. If row security would hide rows, the statement of bound fails, since the caller would take
// hidden rows for deleted ones. Bitmap and sequential scans are disabled, so that PostgreSQL
// reads children one by one and stops at the limit. If the server doesn't end the statement in
// time, bound closes the connection, so that a server that doesn't answer can't block a worker
// for ever.
func bound(ctx context.Context, pool *pgxpool.Pool, t timeouts, sql string, args []any, scan func(pgx.Rows) error, check ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*t.statement+answerTime) // the check is a statement too
	defer cancel()
	b := new(pgx.Batch)
	b.Queue(pg.ReadCommitted)
	b.Queue(`SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true),
			pg_catalog.set_config('enable_bitmapscan', 'off', true), pg_catalog.set_config('enable_seqscan', 'off', true),
			pg_catalog.set_config('row_security', 'off', true), `+pg.FiresTriggers,
		milliseconds(t.lock), milliseconds(t.statement))
	b.Queue(sql, args...).Query(scan)
	for _, sql := range check {
		b.Queue(sql, args[0])
	}
	return pool.SendBatch(ctx, b).Close()
}

// change runs r's statement for the parents `ids`. It returns how many children the
// statement found for each parent, and how many rows it changed in all. If parent and child
// are in one database and one of the parents exists after the statement, the transaction is
// rolled back, and the error has the SQLSTATE 22012 (division by zero).
func (r Reference) change(ctx context.Context, t timeouts, ids []parentKey, limit, perParent int, skipLocked bool) (list []found, changed int, err error) {
	sql, args := r.statement(limit, perParent, skipLocked)
	var check []string
	if r.Local() { // a parent may have been inserted again while the statement waited for locks on its children
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
