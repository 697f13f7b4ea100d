// Package explain tells operators why garbage collection keeps a manifest or a blob, or when
// it will delete it. It reads references and review queues, and changes nothing.
package explain

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// Fate is what will happen to a manifest or a blob if nothing changes.
type Fate string

// The fates. FateUnplanned should never occur: an unreferenced object has a row in its
// review queue. A manifest that is only referenced within a cycle counts as unreferenced,
// and may wait for the review of another manifest of the cycle.
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

// Some has the first few items of a list and the number of all.
type Some[T any] struct {
	First []T           `json:"first"`
	Total catalog.Count `json:"total"`
}

// PlannedReview is a row of a review queue, or one that is still to be inserted.
type PlannedReview struct {
	Event       string     `json:"event"` // why it was queued: see package events
	QueuedAt    time.Time  `json:"queued_at"`
	ReviewAfter time.Time  `json:"review_after"`
	ReviewCount int        `json:"review_count"` // reviews that failed
	FailedAt    *time.Time `json:"set_aside_at"` // when the row was marked as failed for good; nil: it isn't
	LastError   string     `json:"last_error"`   // of the last review that failed
}

const (
	// explainFirst is how many items of a list are shown.
	explainFirst = 10
	// explainLimit is the number up to which a list is counted.
	explainLimit = 10_000
)

// counted returns the catalog.Count of a bounded list with n rows.
func counted(n int64) catalog.Count {
	return catalog.Count{Rows: min(n, explainLimit), Exact: n <= explainLimit}
}

// askSome adds a statement to the batch that returns the first rows of a list, in the order of
// the column id, and stores its result in to. Each row has the number of all rows, and then the
// columns that scan reads.
//
// Such a statement reads at most explainLimit+1 rows of the list, and sorts them afterwards:
// the planner, which can't know that very many manifests use one digest, would otherwise read
// the whole list to sort it. The limits are part of the text so that the planner knows them.
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

// scanDigest reads a row of a list of digests.
func scanDigest(row pgx.CollectableRow, total *int64) (d oci.Digest, err error) {
	var digest []byte
	if err := row.Scan(total, &digest); err != nil {
		return d, err
	}
	return oci.DigestFromBytes(digest)
}

// askReview adds a query for a planned review to the batch.
func askReview(b *pgx.Batch, to **PlannedReview, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[PlannedReview])
		if err == nil && len(list) > 0 {
			*to = list[0]
		}
		return err
	})
}

// askRow adds a query of one row to the batch and scans the row into dest.
func askRow(b *pgx.Batch, dest []any, sql string, args ...any) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
}
