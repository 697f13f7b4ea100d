package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Fate is what will become of a manifest or a blob as things stand.
type Fate string

// Fates. FateUnplanned should never be seen: what nothing holds has a row in its
// review queue. What only a circle holds counts as held by nothing, and may wait
// for the review of another manifest of the circle.
const (
	FateKept      Fate = "kept"      // something holds it
	FateWaiting   Fate = "waiting"   // nothing holds it, and its review isn't due yet
	FateDue       Fate = "due"       // nothing holds it, and the next review deletes it
	FateSetAside  Fate = "set_aside" // nothing holds it, and its review has failed too often
	FateUnplanned Fate = "unplanned" // nothing holds it, and no review is planned
)

func fate(held bool, r *PlannedReview, now time.Time) Fate {
	switch {
	case held:
		return FateKept
	case r == nil:
		return FateUnplanned
	case r.SetAsideAt != nil:
		return FateSetAside
	case r.ReviewAfter.After(now):
		return FateWaiting
	}
	return FateDue
}

// Some is the first few of a list, and how many there are in all.
type Some[T any] struct {
	First []T   `json:"first"`
	Total Count `json:"total"`
}

// PlannedReview is a row of a review queue, or one that is still to be made.
type PlannedReview struct {
	Event       string     `json:"event"` // why it was queued: one of ReviewEvents, or circle
	QueuedAt    time.Time  `json:"queued_at"`
	ReviewAfter time.Time  `json:"review_after"`
	ReviewCount int        `json:"review_count"` // reviews that failed
	SetAsideAt  *time.Time `json:"set_aside_at"` // nil: it isn't
	LastError   string     `json:"last_error"`   // of the last review that failed
}

const (
	// explainFirst is how much of a list is told.
	explainFirst = 10
	// explainLimit is up to where a list is counted.
	explainLimit = 10_000
)

// bounded is the SQL of the rows of a list that are looked at: one more than are
// counted. They are put in order after the limit: the planner, who can't know that
// everybody uses this one digest, would read a long list whole to sort it.
func bounded(sql string) string { return fmt.Sprintf("(%s LIMIT %d)", sql, explainLimit+1) }

// someOf is a statement on a bounded list: for each of the first few by the
// column id, how many there are in all and then the columns, which may be of the
// row, f, or of what it is joined with.
func someOf(list, columns, joins string) string {
	return fmt.Sprintf(`
		WITH list AS MATERIALIZED %s
		SELECT (SELECT count(*) FROM list), %s
		FROM (SELECT * FROM list ORDER BY id LIMIT %d) f %s
		ORDER BY f.id`, bounded(list), columns, explainFirst, joins)
}

// counted is the number of a bounded list's rows.
func counted(n int64) Count { return Count{Rows: min(n, explainLimit), Exact: n <= explainLimit} }

// askSome queues a statement of someOf. Scan reads one row.
func askSome[T any](b *batch, to *Some[T], scan func(row pgx.CollectableRow, total *int64) (T, error), sql string, args ...any) {
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

// askReview queues the question for a row of a review queue.
func askReview(b *batch, kind ReviewKind, to **PlannedReview, where string, args ...any) {
	b.Queue(`SELECT event, created_at, review_after, review_count, set_aside_at, COALESCE(last_error, '')
		FROM `+kind.planned()+" WHERE "+where, args...).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[PlannedReview])
		if err == nil && len(list) > 0 {
			*to = list[0]
		}
		return err
	})
}

// explain runs fn on one state of the database: what it tells fits together.
func (c *Catalog) explain(ctx context.Context, what string, fn func(tx pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
	if err != nil && !isAnswer(err) {
		return fmt.Errorf("explaining %s: %w", what, err)
	}
	return err
}
