package db

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Batch collects statements that are sent to PostgreSQL in one round trip and run as one
// transaction. Each statement has a snapshot of its own. If a statement fails, the whole
// transaction is rolled back.
type Batch struct{ pgx.Batch }

// Exec adds a statement and ignores its rows.
func (b *Batch) Exec(sql string, args ...any) {
	b.Queue(sql, args...).Exec(func(pgconn.CommandTag) error { return nil })
}

// Row adds a statement that returns one row, and scans this row into dest. If it returns none, the
// error of Send is pgx.ErrNoRows.
func (b *Batch) Row(dest []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}

// Send runs the batch, in the transaction `to` or in one of its own.
func (b *Batch) Send(ctx context.Context, to Querier) error {
	return to.SendBatch(ctx, &b.Batch).Close()
}
