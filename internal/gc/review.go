package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// ReviewKind says whether a review is about manifests or blobs, and so which queue it reads.
type ReviewKind string

// Kinds of reviews.
const (
	ReviewOfManifests ReviewKind = "manifest"
	ReviewOfBlobs     ReviewKind = "blob"
)

// PostponeDelay is how long a review is postponed if it can't decide yet, mostly because
// another transaction has locked the manifest or blob.
const PostponeDelay = 5 * time.Second

// ReviewOptions says which rows one batch reviews, and how.
type ReviewOptions struct {
	Kind  ReviewKind
	Limit int // rows
	// DryRun makes Review roll the batch back, and list in Review.WouldDelete the manifests or
	// blobs that the batch would have deleted.
	DryRun bool
	// After makes Review skip the rows of the queue up to and including this position. A
	// dry run needs it: the rows that it has reviewed stay due, so each batch has to begin
	// after the last row of the previous batch.
	After ReviewCursor
}

// ReviewCursor is the position of a row in a review queue, in the order in which reviews
// claim rows. The zero value is the position before the first row.
type ReviewCursor struct {
	after                     time.Time
	digest                    []byte // blobs
	namespace, repository, id int64  // manifests
	set                       bool
}

// Review is the result of one batch.
type Review struct {
	Claimed     int              // rows that the batch locked; Deleted + Kept + Gone + Postponed add up to it
	Deleted     int              // had no reference, deleted by this batch
	Kept        int              // in use, or held
	Gone        int              // another transaction had deleted the manifest or blob
	Postponed   int              // couldn't be settled yet, and postponed by PostponeDelay
	Links       int              // removed links of repositories that no longer use the blob
	Bytes       int64            // size of the objects that were recorded for deletion
	ManyLinked  []ManyLinkedBlob // kept blobs whose unused links are still to be removed: see UnlinkInPages
	WouldDelete []DryRunDeletion
	Last        ReviewCursor
}

// DryRunDeletion is a manifest or blob that a dry run would have deleted.
type DryRunDeletion struct {
	Kind        ReviewKind `json:"kind"`
	Repository  string     `json:"repository,omitempty"` // of a manifest
	Digest      oci.Digest `json:"digest"`
	Size        int64      `json:"size"` // bytes, of the blob's object or the manifest's payload
	Event       string     `json:"event"`
	QueuedAt    time.Time  `json:"queued_at"`
	ReviewAfter time.Time  `json:"review_after"`
}

// ReviewError is the error of a batch that failed and was rolled back.
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

// Rows returns the number of queue rows that the failed batch had locked for review.
func (e *ReviewError) Rows() int { return len(e.rows) }

// Contended says whether the batch only lost a race for locks.
func (e *ReviewError) Contended() bool { return db.Contended(e.Err) }

// queueRow is a row of one of the two review queues.
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

// errDryRun makes Review roll back the transaction of a dry run; Review doesn't return it.
var errDryRun = errors.New("dry run")

// Review reviews one batch of due rows of one review queue. The result's Claimed is 0 if no
// row is due, or if other transactions have locked all due rows. If the review fails after
// it has locked due rows, the error is a *ReviewError.
func (c *Collector) Review(ctx context.Context, o ReviewOptions) (Review, error) {
	var out Review
	var rows []queueRow
	err := pgx.BeginTxFunc(ctx, c.opt.Reviews.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		var found exceptions
		if o.Kind == ReviewOfBlobs {
			rows, err = claimBlobs(ctx, tx, o)
		} else if found, err = lockHolds(ctx, tx); err == nil {
			rows, err = claimManifests(ctx, tx, o)
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		out.Claimed, out.Last = len(rows), rows[len(rows)-1].cursor()
		if o.Kind == ReviewOfBlobs {
			err = c.reviewBlobs(ctx, tx, rows, o.DryRun, &out)
		} else {
			err = c.reviewManifests(ctx, tx, rows, found, o.DryRun, &out)
		}
		if err == nil {
			err = clock.CheckTx(ctx, tx, c.opt.CheckTime) // a hold or a delay may be over only by a wrong clock
		}
		if err == nil && o.DryRun {
			err = errDryRun
		}
		return err
	})
	switch {
	case err == nil, errors.Is(err, errDryRun):
		return out, nil
	case errors.Is(err, worker.ErrRest): // no failure of these reviews
		return Review{}, fmt.Errorf("garbage collection deletes nothing now: %w", err)
	case len(rows) > 0:
		return Review{}, &ReviewError{Err: err, kind: o.Kind, rows: rows}
	}
	return Review{}, fmt.Errorf("looking for %ss to review: %w", o.Kind, err)
}

// NextReview returns the time until the next row of the kind's review queue is due. If
// QueueReferrers has to queue referrers of a deleted subject before that, NextReview
// returns the time until QueueReferrers has to do so. It returns at most `limit`, and 0 if
// a row or a call of QueueReferrers is due already.
func (c *Collector) NextReview(ctx context.Context, kind ReviewKind, limit time.Duration) (time.Duration, error) {
	var d time.Duration
	err := c.opt.Reviews.Pool.QueryRow(ctx, `
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

// DueReviews returns the number of due reviews of manifests and of blobs together.
func (c *Collector) DueReviews(ctx context.Context) (n int64, err error) {
	err = c.opt.Reviews.Pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM gc_planned_manifest_reviews WHERE set_aside_at IS NULL AND review_after <= now())
			+ (SELECT count(*) FROM gc_blob_review_queue WHERE set_aside_at IS NULL AND review_after <= now())`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting due reviews: %w", err)
	}
	return n, nil
}

// planned returns the name of the table or view that has all reviews of the kind. For
// manifests it is a view, which has the rows of the review queue and also the referrers of
// deleted subjects that QueueReferrers still has to queue.
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
