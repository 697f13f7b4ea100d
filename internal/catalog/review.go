package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// A review decides about rows of the queue that are due: what is in use leaves
// the queue, what nothing holds is deleted. Reviews are batches, each one
// transaction of a few statements on sets. Why it is right, for blobs and for
// manifests alike:
//
//   - A row of the queue is locked first. Whoever takes a reference away writes
//     that row in the same transaction, so from then on it waits, and what it
//     did before is seen by the statements that follow. So a row may be dropped
//     when the object is found in use: whoever ends that use later will make a
//     new one.
//   - What seems unused is locked, FOR UPDATE, before a new statement looks
//     again. Making a reference takes KEY SHARE on what it refers to, so from
//     then on none can be made, and those made before are seen. To lock and to
//     look in one statement would look with a snapshot older than the lock.
//   - What somebody else holds is skipped and put off, not waited for: clients
//     never wait for a reviewer that waits for clients. Where a reviewer must
//     wait (for queue rows of what it sets free), the lock timeout of its
//     connection, shorter than deadlock_timeout, makes it the one that gives way.
//   - A promise is a row of the queue that isn't due. A row that is due holds
//     none, since no event brings a row forward; and it stays due until the
//     commit, since whoever would promise waits for the row.

// ReviewKind is what a review is about, and names its queue.
type ReviewKind string

// Kinds of reviews.
const (
	ReviewOfManifests ReviewKind = "manifest"
	ReviewOfBlobs     ReviewKind = "blob"
)

// LockedPause is how long a row is put off whose object somebody else holds.
const LockedPause = 5 * time.Second

// ReviewOptions bound one batch.
type ReviewOptions struct {
	Kind  ReviewKind
	Limit int // rows
	// DryRun rolls the batch back and tells in Review.Found what it deleted.
	DryRun bool
	// After leaves out the rows up to there: a dry run goes on behind the last
	// batch, since its rows are still due.
	After ReviewCursor
}

// ReviewCursor is a place in a queue. The zero value is its beginning.
type ReviewCursor struct {
	after                     time.Time
	digest                    []byte // blobs
	namespace, repository, id int64  // manifests
	set                       bool
}

// Review is what became of one batch.
type Review struct {
	Claimed int        // rows; each is one of the following
	Deleted int        // held by nothing, gone now
	Kept    int        // in use
	Gone    int        // deleted before by somebody else
	Locked  int        // held by somebody else, put off by LockedPause
	Links   int        // of repositories that no longer use the blob, removed
	Bytes   int64      // size of the objects that were doomed
	Wide    []WideBlob // kept, and not over yet: see UnlinkWide
	Found   []Reviewed
	Last    ReviewCursor
}

// Reviewed is something that a dry run found to go.
type Reviewed struct {
	Kind        ReviewKind `json:"kind"`
	Repository  string     `json:"repository,omitempty"` // of a manifest
	Digest      oci.Digest `json:"digest"`
	Size        int64      `json:"size"` // bytes: of the blob's object, or of the manifest itself
	Event       string     `json:"event"`
	QueuedAt    time.Time  `json:"queued_at"`
	ReviewAfter time.Time  `json:"review_after"`
}

// ReviewError is a batch that failed. Nothing of it stays.
type ReviewError struct {
	Err  error
	kind ReviewKind
	rows []queueRow
}

func (e *ReviewError) Error() string {
	if len(e.rows) == 1 {
		return fmt.Sprintf("reviewing %s: %v", e.rows[0].name(e.kind), e.Err)
	}
	return fmt.Sprintf("reviewing %d %ss: %v", len(e.rows), e.kind, e.Err)
}

func (e *ReviewError) Unwrap() error { return e.Err }

// Rows is how many rows were claimed.
func (e *ReviewError) Rows() int { return len(e.rows) }

// Contended says whether the batch only lost a race for locks.
func (e *ReviewError) Contended() bool {
	switch db.Code(e.Err) {
	case db.CodeLockNotAvailable, db.CodeDeadlockDetected, db.CodeSerializationFailure:
		return true
	}
	return false
}

// queueRow is a row of either queue.
type queueRow struct {
	digest                    []byte // blobs
	namespace, repository, id int64  // manifests
	event                     string
	createdAt, reviewAfter    time.Time
}

func (r queueRow) name(kind ReviewKind) string {
	if kind == ReviewOfBlobs {
		if d, err := oci.DigestFromBytes(r.digest); err == nil {
			return "blob " + d.String()
		}
	}
	return fmt.Sprintf("%s %d of repository %d", kind, r.id, r.repository)
}

func (r queueRow) cursor() ReviewCursor {
	return ReviewCursor{after: r.reviewAfter, digest: r.digest, namespace: r.namespace, repository: r.repository, id: r.id, set: true}
}

// errDryRun ends the transaction of a dry run.
var errDryRun = errors.New("dry run")

// Review reviews one batch of due rows. Claiming none means that none is due or
// that others hold all that are. Error: *ReviewError, when rows were claimed.
func (c *Catalog) Review(ctx context.Context, o ReviewOptions) (Review, error) {
	var out Review
	var rows []queueRow
	err := pgx.BeginTxFunc(ctx, c.opt.Background.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		if o.Kind == ReviewOfBlobs {
			rows, err = claimBlobs(ctx, tx, o)
		} else {
			rows, err = claimManifests(ctx, tx, o)
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		out.Claimed, out.Last = len(rows), rows[len(rows)-1].cursor()
		if o.Kind == ReviewOfBlobs {
			err = c.reviewBlobs(ctx, tx, rows, o.DryRun, &out)
		} else {
			err = c.reviewManifests(ctx, tx, rows, o.DryRun, &out)
		}
		if err == nil && o.DryRun {
			err = errDryRun
		}
		return err
	})
	switch {
	case err == nil, errors.Is(err, errDryRun):
		return out, nil
	case len(rows) > 0:
		return Review{}, &ReviewError{Err: err, kind: o.Kind, rows: rows}
	}
	return Review{}, fmt.Errorf("looking for %ss to review: %w", o.Kind, err)
}

// NextReview is how long it is until the next row of a queue is due, or until there
// are referrers to be queued (see QueueReferrers), at most limit.
func (c *Catalog) NextReview(ctx context.Context, kind ReviewKind, limit time.Duration) (time.Duration, error) {
	var d time.Duration
	err := c.opt.Background.Pool.QueryRow(ctx, `
		SELECT GREATEST('0', LEAST($1::interval,
			(SELECT review_after - now() FROM `+kind.queue()+`
			WHERE set_aside_at IS NULL ORDER BY review_after LIMIT 1),
			(SELECT expand_after - now() FROM gc_subject_review_queue WHERE $2::boolean ORDER BY expand_after LIMIT 1)))`,
		limit, kind == ReviewOfManifests).Scan(&d)
	if err != nil {
		return 0, fmt.Errorf("looking for %ss to review: %w", kind, err)
	}
	return d, nil
}

// DueReviews is how many rows of both queues are due.
func (c *Catalog) DueReviews(ctx context.Context) (n int64, err error) {
	err = c.opt.Background.Pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM gc_planned_manifest_reviews WHERE set_aside_at IS NULL AND review_after <= now())
			+ (SELECT count(*) FROM gc_blob_review_queue WHERE set_aside_at IS NULL AND review_after <= now())`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting due reviews: %w", err)
	}
	return n, nil
}

// planned is the table or view of all reviews of the kind, those of the queue and those
// that are still to be queued.
func (k ReviewKind) planned() string {
	if k == ReviewOfBlobs {
		return k.queue()
	}
	return "gc_planned_manifest_reviews"
}

func (k ReviewKind) queue() string {
	if k == ReviewOfBlobs {
		return "gc_blob_review_queue"
	}
	return "gc_manifest_review_queue"
}

// FailReview counts a failed attempt of the one row of e. The row is put off,
// from now, by what delay says of the attempts so far, this one included; from
// the attempt setAside on, it is set aside: no review takes it any more before
// an event or RetrySetAside brings it back. It returns whether it was.
func (c *Catalog) FailReview(ctx context.Context, e *ReviewError, setAside int, delay func(attempts int) time.Duration) (aside bool, err error) {
	if len(e.rows) != 1 {
		return false, fmt.Errorf("counting a failed review: it was of %d rows and not of one", len(e.rows))
	}
	row := e.rows[0]
	where, key := "digest = $1", []any{row.digest}
	if e.kind == ReviewOfManifests {
		where = "top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3"
		key = []any{row.namespace, row.repository, row.id}
	}
	err = pgx.BeginTxFunc(ctx, c.opt.Background.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var attempts int
		err := tx.QueryRow(ctx, "SELECT review_count + 1 FROM "+e.kind.queue()+
			" WHERE "+where+" AND set_aside_at IS NULL AND review_after <= now() FOR UPDATE SKIP LOCKED", key...).Scan(&attempts)
		if isNoRows(err) {
			return nil // an event or another reviewer has been there since, or is now
		}
		if err != nil {
			return err
		}
		aside = attempts >= setAside
		_, err = tx.Exec(ctx, fmt.Sprintf(`UPDATE %s SET review_count = $%d, review_after = now() + $%d::interval,
			last_error = $%d, set_aside_at = CASE WHEN $%d THEN now() END WHERE %s`,
			e.kind.queue(), len(key)+1, len(key)+2, len(key)+3, len(key)+4, where),
			append(key, attempts, delay(attempts), e.Err.Error(), aside)...)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("counting a failed review of %s: %w", row.name(e.kind), err)
	}
	return aside, nil
}

// PostponeReview puts the rows of e off by LockedPause: others hold what their
// review needs. A row that is put off further by now stays so, and one that
// somebody holds is left to it.
func (c *Catalog) PostponeReview(ctx context.Context, e *ReviewError) error {
	for _, row := range e.rows {
		sql, args := postponeBlobs, []any{[][]byte{row.digest}, LockedPause}
		if e.kind == ReviewOfManifests {
			sql, args = postponeManifests, []any{[]int64{row.namespace}, []int64{row.repository}, []int64{row.id}, LockedPause}
		}
		if _, err := c.opt.Background.Pool.Exec(ctx, sql, args...); err != nil && db.Code(err) != db.CodeLockNotAvailable {
			return fmt.Errorf("postponing the review of %s: %w", row.name(e.kind), err)
		}
	}
	return nil
}
