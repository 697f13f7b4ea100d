package catalog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// batch is a [db.Batch] that may refuse itself.
//
// PostgreSQL logs each error with its statement, so a refusal that happens every day, such as
// a missing blob, must not raise an error. Instead a guard statement calls purser_refuse if
// its condition fails. Each later statement calls purser_accepted, which then returns false,
// and changes nothing. The transaction commits, which releases its locks, and Send returns the
// refusal. Therefore a statement before the last guard may only write rows that do no harm if
// the batch is refused after all.
type batch struct {
	db.Batch
	refused refusal
}

// refusal is the error of a batch that a guard statement has refused; its text is the reason.
type refusal string

// Refusals.
const (
	repositoryGone refusal = "the repository was deleted meanwhile"
	blobsMissing   refusal = "the repository lacks a blob"
	childMissing   refusal = "the repository lacks a manifest of the index"
	manifestGone   refusal = "the manifest was deleted meanwhile"
	manifestListed refusal = "the manifest is part of an index"
	manifestHeld   refusal = "a reporter holds the manifest"
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

// Is makes errors.Is(r, db.ErrLostRace) true for those refusals that mean that a concurrent
// transaction has won a race, so that [Catalog.write] and [db.Retry] run the refused batch
// again.
func (r refusal) Is(target error) bool {
	return target == db.ErrLostRace && (r == blobGone || r == tagsChanged)
}

// isRefusal says whether err is the refusal of a batch. A refused batch has changed nothing,
// except rows whose change does no harm (see [batch]).
func isRefusal(err error) bool {
	_, ok := errors.AsType[refusal](err)
	return ok
}

// guard adds a statement that returns one row. The row's last column is the reason to refuse
// the batch, or NULL to go on; the other columns are scanned into dest.
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

// lockRepository adds the first statement of every transaction that inserts rows of a
// repository, such as tags or manifests. The statement locks the repository and its namespace
// against deletion until the commit. If either was deleted, the statement refuses the batch:
// the deletion couldn't see the rows that the batch inserts, and would leave them behind.
func (b *batch) lockRepository(r repository, path string) {
	b.guard(nil, `
		SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the repository was deleted meanwhile') END
		FROM (SELECT FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
		      WHERE n.id = $1 AND r.id = $2 AND r.path = $3 AND r.deleted_at IS NULL
		      FOR KEY SHARE) alive`, r.namespace, r.id, path)
}

// lockHolds adds the statement that every transaction sends before it deletes tags or manifests:
// after the locks on namespace and repository, and before all others. A later statement of the
// batch must look for holds. See the protocol in package hold.
func (b *batch) lockHolds() { b.Exec("SELECT purser_holds_lock()") }

// Send runs the batch. If a guard has refused it, Send returns the guard's [refusal], even if
// a later statement has failed with pgx.ErrNoRows, since statements after a refusal return no
// row.
func (b *batch) Send(ctx context.Context, to db.Querier) error {
	err := b.Batch.Send(ctx, to)
	if b.refused != "" && (err == nil || isNoRows(err)) {
		return b.refused
	}
	return err
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
