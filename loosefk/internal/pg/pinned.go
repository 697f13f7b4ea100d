package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pinned runs each statement in a transaction whose search path has only pg_catalog. With
// another schema on the search path, PostgreSQL might choose an operator or function of
// another role, because it fits the arguments better than PostgreSQL's own, and run it with
// the caller's rights. Statements that fire an application's triggers don't use pinned,
// because the triggers may rely on the search path; such statements name the schema of
// their operators.
type pinned struct{ pool *pgxpool.Pool }

// PinPath is a statement that sets the search path until the end of the transaction. The
// schema pg_temp of temporary objects comes last; if it weren't named, PostgreSQL would
// search it first for tables.
const PinPath = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"

// ReadCommitted is a statement that gives the transaction that it begins the isolation on which
// the worker relies: each statement sees what was committed before it. The role, the database or
// the DSN may impose another one on the application's sessions.
const ReadCommitted = "SET transaction_isolation = 'read committed'"

// FiresTriggers is an expression that has the transaction's statements fire triggers. The role or
// the database may impose a session_replication_role with which they don't: then a clean-up
// would lose the deletions of children that are parents themselves. If the role may not change
// this setting, the expression fails with an error that names it.
const FiresTriggers = `CASE WHEN pg_catalog.current_setting('session_replication_role') OPERATOR(pg_catalog.=) 'replica'
				THEN pg_catalog.set_config('session_replication_role', 'origin', true) END`

// Exec implements DB.
func (p pinned) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	b := new(pgx.Batch)
	b.Queue(PinPath)
	b.Queue(sql, args...).Exec(func(t pgconn.CommandTag) error { tag = t; return nil })
	return tag, p.pool.SendBatch(ctx, b).Close()
}

// Query implements DB.
func (p pinned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b := new(pgx.Batch)
	b.Queue(PinPath)
	b.Queue(sql, args...)
	results := p.pool.SendBatch(ctx, b)
	_, err := results.Exec()
	var rows pgx.Rows
	if err == nil {
		rows, err = results.Query()
	}
	if err != nil {
		results.Close() //nolint:errcheck // the first error counts
		return nil, err
	}
	return &pinnedRows{Rows: rows, results: results}, nil
}

// QueryRow implements DB.
func (p pinned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...)
	return pinnedRow{rows, err}
}

// pinnedRows are rows that end the transaction when they are closed.
type pinnedRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
	closed  bool
}

// Next implements pgx.Rows.
func (r *pinnedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close implements pgx.Rows.
func (r *pinnedRows) Close() {
	if r.closed {
		return
	}
	r.closed = true
	r.Rows.Close()
	r.err = r.results.Close()
}

// Err implements pgx.Rows.
func (r *pinnedRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

type pinnedRow struct {
	rows pgx.Rows
	err  error
}

// Scan implements pgx.Row.
func (r pinnedRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
