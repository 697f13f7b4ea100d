package gc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	failMin = time.Minute // delay after the first failed review of a row
	failMax = 6 * time.Hour

	// yield is the longest pause of a reviewer after a batch that lost a race for locks.
	yield = 50 * time.Millisecond
	// patience is how long a reviewer tries again to begin a batch while others keep it from a lock.
	// Reports and changes of policies keep it from the lock of deletions while they wait for
	// deletions: for 20 s.
	patience = 30 * time.Second
)

// ReviewerOptions says what to review and how.
type ReviewerOptions struct {
	Collector *Collector // required
	Kind      ReviewKind // required
	// Batch bounds the rows that one transaction reviews. Default 500. The reviewer uses
	// smaller batches after a batch failed or lost a race for locks.
	Batch int
	// Timeout is the longest that the transaction of a review may hold its locks. Default
	// 10 s.
	Timeout time.Duration
	// MaxFailures is the number of failed reviews after which a queue row is marked as
	// failed for good. No reviewer takes such a row until "purser gc retry" or a new event
	// makes it due again. (The row is a dead letter; the status calls it set_aside.)
	// Default 10.
	MaxFailures int
	// Idle is the longest sleep while nothing is due. Default and maximum 1 min.
	Idle time.Duration
	// Deleted is called after each batch that deleted something, so that the caller can
	// wake the worker that acts on these deletions, such as the sweeper. It must not block.
	Deleted func()
	Log     *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// Reviewer reviews the due rows of one of the two review queues.
type Reviewer struct {
	opt  ReviewerOptions
	loop *worker.Loop
	// These are used by the loop's goroutine alone.
	size      int       // of the next batch
	contended time.Time // since when others keep the reviewer from locks; zero: they don't
}

// NewReviewer makes a reviewer. It starts nothing: see Run.
func NewReviewer(o ReviewerOptions) (*Reviewer, error) {
	if o.Collector == nil || o.Kind != ReviewOfBlobs && o.Kind != ReviewOfManifests {
		return nil, errors.New("gc: a reviewer needs a collector and a kind")
	}
	o.Batch = cmp.Or(o.Batch, 500)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.MaxFailures = cmp.Or(o.MaxFailures, 10)
	if o.Idle <= 0 || o.Idle > worker.MaxIdle {
		o.Idle = worker.MaxIdle
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	r := &Reviewer{opt: o, size: o.Batch}
	r.loop = worker.New(worker.Options{
		Name: string(o.Kind) + "-reviewer", Batch: r.batch, May: o.Collector.opt.MayDelete, Timeout: 3 * o.Timeout, Log: o.Log, Metrics: o.Worker,
		Next: func(ctx context.Context) (time.Duration, error) { return o.Collector.NextReview(ctx, o.Kind, o.Idle) },
	})
	return r, nil
}

// Run reviews batch after batch until ctx ends. Any number of processes may run reviewers
// at once.
func (r *Reviewer) Run(ctx context.Context) error { return r.loop.Run(ctx) }

// Wake makes an idle reviewer look for due rows now.
func (r *Reviewer) Wake() { r.loop.Wake() }

func (r *Reviewer) batch(ctx context.Context) (more bool, err error) {
	_, more, err = r.review(ctx)
	return more, err
}

// review reviews one batch; `more` says that there may be further due rows. If the batch
// fails, its transaction is rolled back, and review halves the size of the next batch. So
// after some calls a batch has only the row whose review fails; review postpones that row.
// Such a failed batch isn't an error of review, nor is one that couldn't begin because others
// had a lock, unless they have it for long (patience). It returns an error if it couldn't claim
// rows for another reason, if the database is unavailable, if ctx has ended, or if a step
// outside of the batch's transaction fails.
func (r *Reviewer) review(ctx context.Context) (_ Review, more bool, err error) {
	queued, err := r.queueReferrers(ctx)
	if err != nil {
		return Review{}, false, err
	}
	start := time.Now()
	out, late, err := r.attempt(ctx, ReviewOptions{Kind: r.opt.Kind, Limit: r.size})
	if err == nil {
		r.size, r.contended = min(2*r.size, r.opt.Batch), time.Time{}
		if out.Claimed == 0 {
			return out, queued, nil
		}
		r.opt.Metrics.reviewed(r.opt.Kind, out, time.Since(start))
		if out.Deleted > 0 {
			r.opt.Log.InfoContext(ctx, "deleted "+string(r.opt.Kind)+"s that nothing refers to", "deleted", out.Deleted, "bytes", out.Bytes)
			if r.opt.Deleted != nil {
				r.opt.Deleted()
			}
		}
		for _, w := range out.ManyLinked {
			n, err := r.opt.Collector.UnlinkInPages(ctx, w)
			r.opt.Metrics.links.Add(float64(n))
			if err != nil {
				return out, true, err
			}
		}
		return out, true, r.record(ctx, out)
	}
	failed, ok := errors.AsType[*ReviewError](err)
	if ok {
		r.contended = time.Time{}
	} else if r.yields(ctx, err) {
		return out, true, nil
	}
	late = late || db.Code(err) == db.CodeQueryCanceled
	if !ok || ctx.Err() != nil || db.Unavailable(err) && !late {
		return out, false, err
	}
	r.size = max(1, failed.Rows()/2)
	if failed.Rows() > 1 {
		if failed.Contended() {
			_ = worker.Sleep(ctx, rand.N(yield))
		}
		return out, true, nil
	}
	return out, true, r.fail(ctx, failed)
}

// yields pauses for a moment if err says that the reviewer has lost a race for locks, and says
// whether to try again. It doesn't if ctx has ended, or if the reviewer loses for longer than
// `patience`.
func (r *Reviewer) yields(ctx context.Context, err error) bool {
	if !db.Contended(err) {
		r.contended = time.Time{}
		return false
	}
	if r.contended.IsZero() {
		r.contended = time.Now()
	}
	if ctx.Err() != nil || time.Since(r.contended) > patience {
		return false
	}
	_ = worker.Sleep(ctx, rand.N(yield))
	return true
}

// queueReferrers queues up to Batch referrers of one deleted subject for review; `did` says
// whether a deleted subject was waiting for this. In a reviewer of blobs, queueReferrers
// does nothing.
func (r *Reviewer) queueReferrers(ctx context.Context) (did bool, err error) {
	if r.opt.Kind != ReviewOfManifests {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.opt.Timeout/2)
	defer cancel()
	return r.opt.Collector.QueueReferrers(ctx, r.opt.Batch)
}

// attempt reviews one batch, and cancels the review after half of ReviewerOptions.Timeout;
// `late` says that this time had passed, or that the caller's ctx had ended. A statement
// that is running when the review is cancelled may continue on the server for the other
// half of Timeout, until the connection's statement timeout ends it.
func (r *Reviewer) attempt(ctx context.Context, o ReviewOptions) (out Review, late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.opt.Timeout/2)
	defer cancel()
	out, err = r.opt.Collector.Review(ctx, o)
	return out, ctx.Err() != nil, err
}

// fail postpones the single queue row whose review failed. After MaxFailures failures it
// marks the row as failed for good. A review that only lost a race for locks isn't counted
// as a failure.
func (r *Reviewer) fail(ctx context.Context, failed *ReviewError) error {
	if failed.Contended() {
		return r.opt.Collector.PostponeReview(ctx, failed)
	}
	r.opt.Metrics.failedReview(r.opt.Kind)
	forGood, err := r.opt.Collector.FailReview(ctx, failed, r.opt.MaxFailures, func(attempts int) time.Duration {
		return worker.Backoff(attempts, failMin, failMax)
	})
	if err != nil {
		return err
	}
	if forGood {
		r.opt.Metrics.failedForGood(r.opt.Kind)
		r.opt.Log.ErrorContext(ctx, "a review has failed too often and is not tried again; \"purser gc retry\" makes it due again", "error", failed)
		return nil
	}
	r.opt.Log.WarnContext(ctx, "a review failed and is tried again later", "error", failed)
	return nil
}

// record adds the numbers of a batch to the activity that "purser gc status" shows. If the
// process dies before this write, the batch is missing there; that is accepted.
func (r *Reviewer) record(ctx context.Context, out Review) error {
	a := Activity{}
	if r.opt.Kind == ReviewOfBlobs {
		a.BlobsReviewed, a.BlobsDeleted = int64(out.Claimed), int64(out.Deleted)
	} else {
		a.ManifestsReviewed, a.ManifestsDeleted = int64(out.Claimed), int64(out.Deleted)
	}
	return r.opt.Collector.RecordActivity(ctx, a)
}
