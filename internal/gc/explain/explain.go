// Package explain tells operators why garbage collection keeps a manifest or a blob, or
// when garbage collection will delete it. It reads references and review queues, and
// changes nothing.
package explain

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// Fate says what garbage collection will do with a manifest or a blob if nothing changes.
type Fate string

// These are the fates. FateUnplanned should never occur, because every unreferenced
// manifest or blob has a row in its review queue. A manifest to which only manifests of its
// own cycle refer counts as unreferenced too. If such a manifest has no row in the queue,
// another manifest of the cycle has one, and the manifest without a row gets FateWaiting.
const (
	FateKept      Fate = "kept"      // it is referenced
	FateWaiting   Fate = "waiting"   // it is unreferenced, and its review isn't due yet
	FateDue       Fate = "due"       // it is unreferenced, and the next review deletes it
	FateFailed    Fate = "set_aside" // it is unreferenced, and its review has failed too often
	FateUnplanned Fate = "unplanned" // it is unreferenced, and no review is planned
)

func fate(referenced bool, r *PlannedReview, now time.Time) Fate {
	switch {
	case referenced:
		return FateKept
	case r == nil:
		return FateUnplanned
	case r.FailedAt != nil:
		return FateFailed
	case r.ReviewAfter.After(now):
		return FateWaiting
	}
	return FateDue
}

// Some has the first few items of a long list, and the number of all items of that list.
type Some[T any] struct {
	First []T           `json:"first"`
	Total catalog.Count `json:"total"`
}

// PlannedReview is a row of a review queue. For a referrer whose subject was deleted, it
// may also be the row that gc.QueueReferrers still has to insert.
type PlannedReview struct {
	Event       string     `json:"event"` // why it was queued: see package events
	QueuedAt    time.Time  `json:"queued_at"`
	ReviewAfter time.Time  `json:"review_after"`
	ReviewCount int        `json:"review_count"` // reviews that failed
	FailedAt    *time.Time `json:"set_aside_at"` // when the row was marked as failed for good; nil: it isn't
	LastError   string     `json:"last_error"`   // of the last review that failed
}

const (
	// explainFirst is how many items of each list an explanation has.
	explainFirst = 10
	// explainLimit is the number up to which an explanation counts the items of a list
	// exactly.
	explainLimit = 10_000
)

// counted returns the count of a list from which a query has read `n` rows. The query must
// stop reading at explainLimit+1 rows. If n is larger than explainLimit, the count is
// explainLimit and inexact.
func counted(n int64) catalog.Count {
	return catalog.Count{Rows: min(n, explainLimit), Exact: n <= explainLimit}
}

// askSome adds an SQL statement to the batch `b` that returns the first items of a list, in
// the order of their ids, and stores its result in `*to`. In each row that the statement
// returns, the first column must be the number of all items. `scan` reads that number into
// `*total`, and returns an item made from the other columns.
//
// The SQL statement must read at most explainLimit+1 rows of the list, and sort only these.
// Otherwise PostgreSQL would read and sort the whole list, although very many manifests may
// use one digest. The limits must be literals in the SQL text, so that the planner knows
// them.
func askSome[T any](b *pgx.Batch, to *Some[T], scan func(row pgx.CollectableRow, total *int64) (T, error), sql string, args ...any) {
	*to = Some[T]{First: []T{}, Total: counted(0)}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		to.First, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (T, error) {
			var total int64
			v, err := scan(row, &total)
			to.Total = counted(total)
			return v, err
		})
		return err
	})
}

// scanDigest is a `scan` function for askSome: it reads a row of the number of all items
// and a digest.
func scanDigest(row pgx.CollectableRow, total *int64) (d oci.Digest, err error) {
	var digest []byte
	if err := row.Scan(total, &digest); err != nil {
		return d, err
	}
	return oci.DigestFromBytes(digest)
}

// askReview adds a query for a planned review to the batch `b`, and stores the review in
// `*to`. If the query returns no row, `*to` stays nil.
func askReview(b *pgx.Batch, to **PlannedReview, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[PlannedReview])
		if err == nil && len(list) > 0 {
			*to = list[0]
		}
		return err
	})
}

// askRow adds a query that returns one row to the batch `b`, and stores the row's columns
// in `dest`.
func askRow(b *pgx.Batch, dest []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}
