package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	retryMin = time.Second // delay after the first failure to delete an object
	retryMax = time.Hour

	// parallelUploads bounds the uploads whose objects are deleted at the same time. Each
	// upload needs a call of its own, since the store has to list its objects first.
	parallelUploads = 8
	settleTimeout   = 5 * time.Second

	// pausedWait is how long a sweeper sleeps that a backup has paused.
	pausedWait = 5 * time.Second

	// forgetEvery is how often a sweeper that has nothing to sweep calls ForgetActivity.
	forgetEvery = time.Hour
)

// SweeperOptions says what to sweep and how.
type SweeperOptions struct {
	Collector *Collector // required
	Store     blob.Store // required
	// Batch bounds the pending deletions that the sweeper claims together, and the objects
	// that one request to the store deletes. Default 1,000, the maximum of S3. After a
	// request that timed out the sweeper halves its batches; when requests succeed it
	// doubles them again, up to Batch.
	Batch int
	// Timeout bounds each call to the store. Default 2 s.
	Timeout time.Duration
	// ClaimTime is how long a sweeper's claim keeps other processes from deleting the same
	// objects. The sweeper stops its calls to the store after half of this time. Default 1
	// min; at least 4 × Timeout.
	ClaimTime time.Duration
	Log       *slog.Logger    // default slog.Default()
	Metrics   *Metrics        // nil: none
	Worker    *worker.Metrics // nil: none
}

// Sweeper deletes the objects of pending deletions from the store when they are due.
type Sweeper struct {
	opt  SweeperOptions
	loop *worker.Loop
	// These are used by the loop's goroutine alone.
	size   int       // of the next batch
	paused bool      // the last batch found the sweepers paused
	forgot time.Time // when ForgetActivity was last called
}

// NewSweeper makes a sweeper. It starts nothing: see Run.
func NewSweeper(o SweeperOptions) (*Sweeper, error) {
	if o.Collector == nil || o.Store == nil {
		return nil, errors.New("gc: the sweeper needs a collector and a store")
	}
	o.Batch = cmp.Or(o.Batch, 1000)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	o.ClaimTime = cmp.Or(o.ClaimTime, time.Minute)
	// Half of ClaimTime must exceed the timeout of a single call to the store, since sweep
	// makes such calls only for half of ClaimTime.
	o.ClaimTime = max(o.ClaimTime, 4*o.Timeout)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	s := &Sweeper{opt: o, size: o.Batch}
	s.loop = worker.New(worker.Options{
		Name: "sweeper", Batch: s.batch, May: o.Collector.opt.MayDelete, Timeout: o.ClaimTime, Log: o.Log, Metrics: o.Worker,
		Next: func(ctx context.Context) (time.Duration, error) {
			if s.paused {
				return pausedWait, nil
			}
			return o.Collector.NextPending(ctx, worker.MaxIdle)
		},
	})
	return s, nil
}

// Run sweeps until ctx ends. Any number of processes may run sweepers at once.
func (s *Sweeper) Run(ctx context.Context) error { return s.loop.Run(ctx) }

// Wake makes an idle sweeper look for pending deletions now.
func (s *Sweeper) Wake() { s.loop.Wake() }

// outcome is the result of one batch of pending deletions. If a pending deletion of the
// batch is neither in swept nor in failed, the sweeper ran out of time: it didn't call the
// store for this deletion, or cancelled the call. The sweeper's claim of such a pending
// deletion expires, and a later batch claims it again.
type outcome struct {
	claimed int
	mu      sync.Mutex
	swept   []PendingDeletion
	failed  []failure
	timeout bool // a request exceeded its timeout
}

type failure struct {
	PendingDeletion
	err error
}

// objects returns the number of swept pending deletions that are known to have freed space
// in the store (see PendingDeletion.Reclaims). All objects of an upload count as one.
func (o *outcome) objects() (n int64) {
	for _, d := range o.swept {
		if d.Reclaims() {
			n++
		}
	}
	return n
}

// bytes is the total size of the swept objects.
func (o *outcome) bytes() (sum int64) {
	for _, d := range o.swept {
		sum = oci.AddSizes(sum, d.Size)
	}
	return sum
}

func (o *outcome) add(d PendingDeletion, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.swept = append(o.swept, d)
		return
	}
	o.failed = append(o.failed, failure{d, err})
	o.timeout = o.timeout || errors.Is(err, context.DeadlineExceeded)
}

// batch claims and sweeps one batch of due pending deletions; `more` says that there may be
// further due ones. If the store deleted no object of the batch and some deletions failed,
// batch returns an error: then the store as a whole is probably unavailable, and the loop
// should wait before it tries again. If there was nothing to sweep, batch calls ForgetActivity
// now and then.
func (s *Sweeper) batch(ctx context.Context) (more bool, err error) {
	size := s.size
	o, err := s.claimAndSweep(ctx)
	if err != nil {
		return false, err
	}
	if len(o.failed) > 0 && len(o.swept) == 0 {
		return false, fmt.Errorf("deleting %d objects from the store: all failed, the first with: %w",
			len(o.failed), o.failed[0].err)
	}
	if o.claimed == 0 && time.Since(s.forgot) > forgetEvery {
		if err := s.opt.Collector.ForgetActivity(ctx); err != nil {
			return false, err
		}
		s.forgot = time.Now()
	}
	return o.claimed >= size, nil
}

// claimAndSweep claims one batch of pending deletions, deletes their objects from the
// store, records the outcome in the database and returns the outcome.
func (s *Sweeper) claimAndSweep(ctx context.Context) (*outcome, error) {
	if err := blob.RefuseWrong(ctx, s.opt.Store); err != nil {
		return nil, err
	}
	list, err := s.opt.Collector.ClaimPending(ctx, s.size, s.opt.ClaimTime)
	if s.paused = errors.Is(err, ErrSweepsPaused); s.paused {
		return &outcome{}, nil
	}
	if err != nil || len(list) == 0 {
		return &outcome{}, err
	}
	o := &outcome{claimed: len(list)}
	s.sweep(ctx, list, o)
	if o.timeout {
		s.size = max(1, s.size/2)
	} else if len(o.swept) > 0 {
		s.size = min(s.opt.Batch, 2*s.size)
	}
	return o, s.record(ctx, o)
}

// sweep deletes objects from the store until half of ClaimTime is over: first the single
// objects, all in one request, then the objects of uploads, with one call per upload.
func (s *Sweeper) sweep(ctx context.Context, list []PendingDeletion, o *outcome) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.ClaimTime/2)
	defer cancel()
	var plain, uploads []PendingDeletion
	for _, d := range list {
		if d.OfUpload {
			uploads = append(uploads, d)
		} else {
			plain = append(plain, d)
		}
	}
	s.sweepPlain(ctx, plain, o)
	var group errgroup.Group
	group.SetLimit(parallelUploads)
	for _, d := range uploads {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			s.sweepUpload(ctx, d, o)
			return nil
		})
	}
	group.Wait() //nolint:errcheck // the functions return nil; their errors are recorded in o
}

func (s *Sweeper) sweepPlain(ctx context.Context, list []PendingDeletion, o *outcome) {
	if len(list) == 0 {
		return
	}
	keys := make([]string, len(list))
	for i, d := range list {
		keys[i] = d.StorageKey
	}
	call, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	failed := failures(s.opt.Store.Delete(call, keys), keys)
	for _, d := range list {
		err := failed[d.StorageKey]
		if err != nil && ctx.Err() != nil {
			continue // cut off, not failed
		}
		o.add(d, err)
	}
}

func (s *Sweeper) sweepUpload(ctx context.Context, d PendingDeletion, o *outcome) {
	call, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	err := s.opt.Store.DeleteUpload(call, d.StorageKey, d.Keep)
	if err != nil && ctx.Err() != nil {
		return // cut off, not failed
	}
	o.add(d, err)
}

// failures returns the errors that Store.Delete joined in `err`, by storage key. If one of
// these errors isn't a *blob.DeleteError, and so names no key, failures returns that error
// for each of `keys`.
func failures(err error, keys []string) map[string]error {
	if err == nil {
		return nil
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	failed := make(map[string]error, len(list))
	for _, e := range list {
		if d, ok := errors.AsType[*blob.DeleteError](e); ok {
			failed[d.Key] = d
			continue
		}
		for _, key := range keys {
			failed[key] = e
		}
		break
	}
	return failed
}

// record writes the outcome of a batch to the database, even if ctx has ended, so that
// objects that were deleted aren't deleted again after a restart.
func (s *Sweeper) record(ctx context.Context, o *outcome) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if len(o.swept) > 0 {
		objects, bytes := o.objects(), o.bytes()
		if err := s.opt.Collector.SettlePending(ctx, o.swept); err != nil {
			return err
		}
		if err := s.opt.Collector.RecordActivity(ctx, Activity{ObjectsSwept: objects, BytesSwept: bytes}); err != nil {
			return err
		}
		s.opt.Metrics.sweptObjects.Add(float64(objects))
		s.opt.Metrics.sweptBytes.Add(float64(bytes))
		s.opt.Log.DebugContext(ctx, "deleted pending deletions from the store", "objects", objects, "second_sweeps", int64(len(o.swept))-objects, "bytes", bytes)
	}
	if len(o.failed) == 0 {
		return nil
	}
	s.opt.Metrics.sweepFailures.Add(float64(len(o.failed)))
	s.opt.Log.WarnContext(ctx, "the store failed to delete objects; they are tried again",
		"objects", len(o.failed), "first", o.failed[0].StorageKey, "error", o.failed[0].err)
	return s.postpone(ctx, o.failed)
}

// postpone reschedules the pending deletions whose objects the store failed to delete. One
// statement updates all of them that have the same number of failed attempts and the same
// cause of failure.
func (s *Sweeper) postpone(ctx context.Context, failed []failure) error {
	type kind struct {
		attempts int
		cause    string
	}
	groups := make(map[kind][]PendingDeletion)
	for _, f := range failed {
		k := kind{f.Attempts, cause(f.err)}
		groups[k] = append(groups[k], f.PendingDeletion)
	}
	var errs []error
	for k, list := range groups {
		delay := worker.Backoff(k.attempts+1, retryMin, retryMax)
		errs = append(errs, s.opt.Collector.PostponePending(ctx, list, delay, errors.New(k.cause)))
	}
	return errors.Join(errs...)
}

// cause returns the text of err without the object's key and path. The object's row has the
// key anyway, and without it the failures of several objects can have equal texts and be
// recorded by one statement.
func cause(err error) string {
	if e, ok := errors.AsType[*blob.DeleteError](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return err.Error()
}
