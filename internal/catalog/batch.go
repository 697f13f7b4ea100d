package catalog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db"
)

// batch collects statements that go to the database in one round trip and run
// as one transaction, each with a snapshot of its own. The first error ends
// it, and nothing of it stays.
//
// PostgreSQL logs each error with its statement, so a batch that finds what is found every
// day ends without one: a guard refuses, by purser_refuse, and the statements behind it
// change nothing (purser_accepted). Then send returns the refusal. Rows that were locked are
// given up by the commit. What a batch writes before its last guard must do no harm alone.
type batch struct {
	pgx.Batch
	refused refusal
}

// refusal is why a batch changed nothing.
type refusal string

// Refusals.
const (
	repositoryGone refusal = "the repository was deleted meanwhile"
	blobsMissing   refusal = "the repository lacks a blob"
	childMissing   refusal = "the repository lacks a manifest of the index"
	manifestGone   refusal = "the manifest was deleted meanwhile"
	manifestHeld   refusal = "the manifest is part of an index"
	tagsChanged    refusal = "the manifest got a tag meanwhile"
	uploadLost     refusal = "another request has continued, finished or cancelled the upload"
	blobExists     refusal = "the blob exists already"
	blobGone       refusal = "the blob was deleted meanwhile"
	blobLost       refusal = "the store has lost the blob"
	rulesChanged   refusal = "the rules that protect tags were changed meanwhile"
	tagProtected   refusal = "the tag is protected"
	conditionFails refusal = "the condition of the request does not hold"
)

func (r refusal) Error() string { return string(r) }

// Is makes the loser of a race run again: see [db.Retry].
func (r refusal) Is(target error) bool {
	return target == db.ErrLostRace && (r == blobGone || r == tagsChanged)
}

// isRefusal says whether err is of a batch that changed nothing.
func isRefusal(err error) bool {
	_, ok := errors.AsType[refusal](err)
	return ok
}

// exec adds a statement whose rows don't matter.
func (b *batch) exec(sql string, args ...any) {
	b.Queue(sql, args...).Exec(func(pgconn.CommandTag) error { return nil })
}

// row adds a statement whose one row goes to dest.
func (b *batch) row(dest []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}

// guard adds a statement of one row. Its last column is why the batch is refused, or
// NULL; the others go to dest.
func (b *batch) guard(dest []any, sql string, args ...any) {
	var why *string
	dest = append(dest, &why)
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
		err := row.Scan(dest...)
		if err == nil && why != nil && b.refused == "" {
			b.refused = refusal(*why)
		}
		return err
	})
}

// sender is a pool or a transaction.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// send runs the batch. Error: a [refusal], among others; that a row wasn't found counts
// for less, since a statement behind a refusal has none.
func (b *batch) send(ctx context.Context, to sender) error {
	err := to.SendBatch(ctx, &b.Batch).Close()
	if b.refused != "" && (err == nil || isNoRows(err)) {
		return b.refused
	}
	return err
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
