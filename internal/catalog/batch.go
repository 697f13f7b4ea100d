package catalog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// batch collects statements that go to the database in one round trip and run
// as one transaction, each with a snapshot of its own. The first error ends
// it, and nothing of it stays.
type batch struct {
	pgx.Batch
}

// exec adds a statement whose rows don't matter.
func (b *batch) exec(sql string, args ...any) {
	b.Queue(sql, args...).Exec(func(pgconn.CommandTag) error { return nil })
}

// row adds a statement whose one row goes to dest.
func (b *batch) row(dest []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}

// send runs the batch.
func (b *batch) send(ctx context.Context, pool *pgxpool.Pool) error {
	return pool.SendBatch(ctx, &b.Batch).Close()
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
