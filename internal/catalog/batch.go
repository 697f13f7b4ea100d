package catalog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db"
)

// batch collects statements that are sent in one round trip and run as one transaction,
// each statement with its own snapshot. The first error rolls all of it back.
//
// PostgreSQL logs each error with its statement, so everyday refusals must not raise
// errors: instead a guard calls purser_refuse, and the later statements, which ask
// purser_accepted, change nothing. Then send returns the refusal. The commit releases the
// locks. What a batch writes before its last guard must do no harm by itself.
type batch struct {
	pgx.Batch
	refused refusal
}

// refusal is the reason why a batch changed nothing.
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

// Is makes [Catalog.write] and [db.Retry] run a refused batch again if it lost a race.
func (r refusal) Is(target error) bool {
	return target == db.ErrLostRace && (r == blobGone || r == tagsChanged)
}

// isRefusal says whether err is the refusal of a batch, which changed nothing.
func isRefusal(err error) bool {
	_, ok := errors.AsType[refusal](err)
	return ok
}

// exec adds a statement and ignores its rows.
func (b *batch) exec(sql string, args ...any) {
	b.Queue(sql, args...).Exec(func(pgconn.CommandTag) error { return nil })
}

// row adds a statement of one row and scans it into dest.
func (b *batch) row(dest []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}

// guard adds a statement of one row. Its last column is the reason to refuse the batch, or
// NULL; the other columns are scanned into dest.
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

// lockRepository adds the first statement of every transaction that inserts below a
// repository. It locks the repository and its namespace against deletion until the commit,
// and refuses if either is gone, so that no row is inserted that a concurrent deletion
// would overlook.
func (b *batch) lockRepository(r repository, path string) {
	b.guard(nil, `
		SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the repository was deleted meanwhile') END
		FROM (SELECT FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
		      WHERE n.id = $1 AND r.id = $2 AND r.path = $3
		      FOR KEY SHARE) alive`, r.namespace, r.id, path)
}

// send runs the batch. Error: a [refusal], among others. A refusal takes precedence over
// pgx.ErrNoRows, since statements after a refusal return no rows.
func (b *batch) send(ctx context.Context, to db.Querier) error {
	err := to.SendBatch(ctx, &b.Batch).Close()
	if b.refused != "" && (err == nil || isNoRows(err)) {
		return b.refused
	}
	return err
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
