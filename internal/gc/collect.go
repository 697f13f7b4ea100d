package gc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// CollectOptions says what to collect.
type CollectOptions struct {
	Collector *Collector // required
	// Store is required unless DryRun or StoreError is set. If the caller couldn't open the
	// store, StoreError is the reason: then Collect does everything except deletions from
	// the store, and returns a *StoreError that wraps StoreError.
	Store      blob.Store
	StoreError error
	// DryRun makes Collect run each review's transaction and roll it back: nothing is deleted.
	DryRun bool
	// Batch and MaxFailures are as in ReviewerOptions, TransactionTimeout is
	// ReviewerOptions.Timeout, and StorageTimeout is SweeperOptions.Timeout, all with the
	// same defaults.
	Batch              int
	TransactionTimeout time.Duration
	StorageTimeout     time.Duration
	MaxFailures        int
	// UploadAge is the time without a change after which an upload is deleted as abandoned;
	// 0: never.
	UploadAge time.Duration
	// Progress is called after each batch, from one goroutine. May be nil.
	Progress func(Progress)
	// WouldDelete is called for each manifest and blob that a dry run would delete. May be nil.
	WouldDelete func(DryRunDeletion)
	Log         *slog.Logger // default slog.Default()
}

// Progress counts what Collect has done so far.
type Progress struct {
	ManifestsReviewed int64 `json:"manifests_reviewed"`
	ManifestsDeleted  int64 `json:"manifests_deleted"`
	BlobsReviewed     int64 `json:"blobs_reviewed"`
	BlobsDeleted      int64 `json:"blobs_deleted"`
	Objects           int64 `json:"objects"` // swept from the store
	Bytes             int64 `json:"bytes"`   // of the swept objects; in a dry run, of the blobs that would be deleted
	Failed            int64 `json:"failed"`  // objects that the store failed to delete; they are tried again
	// Kept counts the pending deletions whose objects are kept in the store for
	// gc.keep_doomed or, after a repair, for a day. Collect counts them at its end.
	Kept      int64 `json:"kept"`
	KeptBytes int64 `json:"kept_bytes"`
	// SecondSweeps counts objects that were deleted from the store and will be deleted once
	// more, in case a request that began before the deletion writes them again. The second
	// deletion comes when all such requests must be over. Collect counts these objects at
	// its end.
	SecondSweeps int64 `json:"second_sweeps"`
	// Paused says that a backup runs, so that due pending deletions wait for its end.
	Paused bool `json:"paused,omitempty"`
	// Due is the number of due reviews that are left. Collect counts them every few
	// seconds, and subtracts the reviews that it has done since the last count.
	Due int64 `json:"due"`
}

// recountAfter: if the last count of due reviews is older than this, the method report
// counts them again.
const recountAfter = 5 * time.Second

// StoreError is the error that Collect returns if it finished its reviews, but couldn't
// delete some or all due objects from the store. The sweepers of running servers try these
// deletions again.
type StoreError struct {
	// Failed is the number of objects that the store failed to delete. It is 0 if the store
	// couldn't be opened, isn't mounted or belongs to another database.
	Failed int64
	Err    error // one of the store's errors
}

func (e *StoreError) Error() string {
	if e.Failed == 0 {
		return fmt.Sprintf("nothing was deleted from the store: %v", e.Err)
	}
	return fmt.Sprintf("the store failed to delete %d objects, one of them with: %v", e.Failed, e.Err)
}

// Unwrap returns the store's error.
func (e *StoreError) Unwrap() error { return e.Err }

// Collect runs reviews and sweeps until nothing is due. Reviewers and sweepers may run at
// the same time; Collect skips the rows that they have locked. If the store fails, Collect
// finishes the reviews and then returns a *StoreError.
func Collect(ctx context.Context, o CollectOptions) (Progress, error) {
	if o.Collector == nil || o.Store == nil && o.StoreError == nil && !o.DryRun {
		return Progress{}, errors.New("gc: collecting needs a collector and a store")
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.WouldDelete == nil {
		o.WouldDelete = func(DryRunDeletion) {}
	}
	c := &collection{opt: o}
	if o.DryRun {
		err := c.dryRun(ctx)
		return c.progress, err
	}
	err := c.run(ctx)
	return c.progress, err
}

// collection is one run of Collect.
type collection struct {
	opt      CollectOptions
	progress Progress
	counted  time.Time

	failure     error // the first error of a call to the store
	storeFailed bool  // the store failed: no further calls
}

func (c *collection) run(ctx context.Context) error {
	manifests, err := c.reviewer(ReviewOfManifests)
	if err != nil {
		return err
	}
	blobs, err := c.reviewer(ReviewOfBlobs)
	if err != nil {
		return err
	}
	if err := c.opt.Collector.mayDelete(ctx); err != nil { // before uploads are deleted too
		return err
	}
	sweep, err := c.prepareSweep(ctx)
	if err != nil {
		return err
	}
	// The deletion of a manifest may make its blobs due for review at once, so repeat the
	// three steps until none of them finds anything due.
	for did := true; did; {
		if err := c.opt.Collector.mayDelete(ctx); err != nil {
			return err
		}
		did = false
		for _, drain := range []func(context.Context) (bool, error){
			func(ctx context.Context) (bool, error) { return c.review(ctx, manifests) },
			func(ctx context.Context) (bool, error) { return c.review(ctx, blobs) },
			sweep,
		} {
			some, err := drain(ctx)
			if err != nil {
				return err
			}
			did = did || some
		}
	}
	backlog, err := c.opt.Collector.GCBacklog(ctx)
	c.progress.Kept, c.progress.KeptBytes = backlog.Doomed.Kept.Rows, backlog.Doomed.KeptBytes
	c.progress.SecondSweeps = backlog.Doomed.SecondSweeps.Rows
	if err == nil && c.failure != nil {
		err = &StoreError{c.progress.Failed, c.failure}
	}
	return err
}

// rest returns why nothing may be deleted for its age, nil if it may.
func (c *Collector) rest(ctx context.Context) error {
	if c.opt.MayDelete == nil {
		return nil
	}
	return c.opt.MayDelete(ctx)
}

// mayDelete is rest for Collect.
func (c *Collector) mayDelete(ctx context.Context) error {
	if err := c.rest(ctx); err != nil {
		return fmt.Errorf("garbage collection deletes nothing now: %w", err)
	}
	return nil
}

// prepareSweep deletes abandoned uploads and returns the function that sweeps. If there is
// no store, or it isn't the store of this database, prepareSweep deletes no upload and
// returns a function that does nothing.
func (c *collection) prepareSweep(ctx context.Context) (func(context.Context) (bool, error), error) {
	if c.failure = c.opt.StoreError; c.opt.Store == nil {
		return func(context.Context) (bool, error) { return false, nil }, nil
	}
	s, err := NewSweeper(SweeperOptions{
		Collector: c.opt.Collector, Store: c.opt.Store, Timeout: c.opt.StorageTimeout, Log: c.opt.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := c.reap(ctx); errors.Is(err, blob.ErrWrongStore) {
		c.failure, c.storeFailed = err, true
	} else if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (bool, error) { return c.sweep(ctx, s) }, nil
}

func (c *collection) reviewer(kind ReviewKind) (*Reviewer, error) {
	return NewReviewer(ReviewerOptions{
		Collector: c.opt.Collector, Kind: kind, Batch: c.opt.Batch, Timeout: c.opt.TransactionTimeout,
		MaxFailures: c.opt.MaxFailures, Log: c.opt.Log,
	})
}

// reap deletes abandoned uploads (see CollectOptions.UploadAge). If the store isn't the
// store of this database, reap deletes none and returns an error that wraps
// blob.ErrWrongStore.
func (c *collection) reap(ctx context.Context) error {
	if c.opt.UploadAge <= 0 {
		return nil
	}
	if err := blob.RefuseWrong(ctx, c.opt.Store); err != nil {
		return err
	}
	for {
		const batch = 1000
		if n, err := c.opt.Collector.opt.Catalog.ReapUploads(ctx, c.opt.UploadAge, batch); err != nil || n < batch {
			return err
		}
	}
}

// review reviews batches of r's queue until no row is due; `did` says whether any row was
// due.
func (c *collection) review(ctx context.Context, r *Reviewer) (did bool, err error) {
	for ctx.Err() == nil {
		out, more, err := r.review(ctx)
		if err != nil || !more {
			return did, err
		}
		did = true
		c.add(r.opt.Kind, out)
		c.report(ctx)
	}
	return did, ctx.Err()
}

// sweep deletes the objects of due pending deletions until no pending deletion is due;
// `did` says whether any was due. Objects that the store fails to delete are postponed and
// counted. If the store deletes no object of a batch, sweep makes no further calls to the
// store, since each call might take as long as its timeout.
func (c *collection) sweep(ctx context.Context, s *Sweeper) (did bool, err error) {
	for ctx.Err() == nil && !c.storeFailed {
		o, err := s.claimAndSweep(ctx)
		if errors.Is(err, blob.ErrWrongStore) {
			c.failure, c.storeFailed = err, true
			break
		}
		c.progress.Paused = s.paused
		if err != nil || o.claimed == 0 {
			return did, err
		}
		did = true
		if len(o.failed) > 0 && c.failure == nil {
			c.failure = o.failed[0].err
		}
		c.storeFailed = len(o.swept) == 0
		c.progress.Objects += o.objects()
		c.progress.Bytes = oci.AddSizes(c.progress.Bytes, o.bytes())
		c.progress.Failed += int64(len(o.failed))
		c.report(ctx)
	}
	return did, ctx.Err()
}

// dryRun reviews the due rows of both review queues, each queue in the order in which its
// rows became due, and rolls back the transaction of each batch.
func (c *collection) dryRun(ctx context.Context) error {
	for _, kind := range []ReviewKind{ReviewOfManifests, ReviewOfBlobs} {
		r, err := c.reviewer(kind)
		if err != nil {
			return err
		}
		// The deletion of a subject queues only the first of its referrers for review;
		// queueReferrers has to queue the others. Even a dry run does so, since a queue row
		// only causes a review and deletes nothing by itself.
		for queued := true; queued; {
			if queued, err = r.queueReferrers(ctx); err != nil {
				return err
			}
		}
		o := ReviewOptions{Kind: kind, DryRun: true}
		for {
			o.Limit = r.size
			out, _, err := r.attempt(ctx, o)
			if r.yields(ctx, err) {
				r.size = max(1, r.size/2)
				continue
			}
			if err != nil {
				return err
			}
			if out.Claimed == 0 {
				break
			}
			for _, f := range out.WouldDelete {
				c.opt.WouldDelete(f)
			}
			o.After = out.Last
			c.add(kind, out)
			c.progress.Bytes = oci.AddSizes(c.progress.Bytes, out.Bytes)
			c.report(ctx)
		}
	}
	return nil
}

func (c *collection) add(kind ReviewKind, out Review) {
	if kind == ReviewOfBlobs {
		c.progress.BlobsReviewed += int64(out.Claimed)
		c.progress.BlobsDeleted += int64(out.Deleted)
	} else {
		c.progress.ManifestsReviewed += int64(out.Claimed)
		c.progress.ManifestsDeleted += int64(out.Deleted)
	}
	c.progress.Due = max(0, c.progress.Due-int64(out.Claimed))
}

// report calls opt.Progress. If the last count of due reviews is older than recountAfter,
// report first counts them again.
func (c *collection) report(ctx context.Context) {
	if time.Since(c.counted) > recountAfter {
		if n, err := c.opt.Collector.DueReviews(ctx); err == nil {
			c.progress.Due = n
		}
		c.counted = time.Now()
	}
	c.opt.Progress(c.progress)
}
