package gc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/worker"
)

// ReaperOptions says which uploads to give up.
type ReaperOptions struct {
	Catalog *catalog.Catalog // required
	// Store is where the uploads are. While it is the wrong one none is given up.
	// Nil: that is not looked at.
	Store blob.Store
	// Age is how long nobody has touched an upload that is given up. It must be
	// at least as long as the longest request. Default 24 h.
	Age time.Duration
	// Batch bounds the uploads that one transaction gives up. Default 1,000.
	Batch int
	// Reaped is called after uploads were given up, whose objects are doomed
	// now: it may wake the sweeper. It must not block.
	Reaped  func()
	Log     *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// Reaper gives up uploads that nobody continues, so that their objects are
// swept.
type Reaper struct {
	opt  ReaperOptions
	loop *worker.Loop
}

// NewReaper makes a reaper. It starts nothing: see Run.
func NewReaper(o ReaperOptions) (*Reaper, error) {
	if o.Catalog == nil {
		return nil, errors.New("gc: the reaper needs a catalog")
	}
	if o.Age <= 0 {
		o.Age = 24 * time.Hour
	}
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Metrics == nil {
		o.Metrics, _ = NewMetrics(nil) // registers nothing, so can't fail
	}
	r := &Reaper{opt: o}
	r.loop = worker.New(worker.Options{Name: "upload-reaper", Batch: r.batch, Log: o.Log, Metrics: o.Worker})
	return r, nil
}

// Run gives up uploads until ctx ends. Any number of processes may do so at
// once.
func (r *Reaper) Run(ctx context.Context) error { return r.loop.Run(ctx) }

// batch gives up one batch of uploads.
func (r *Reaper) batch(ctx context.Context) (more bool, err error) {
	if err := refuseWrong(ctx, r.opt.Store); err != nil {
		return false, err
	}
	n, err := r.opt.Catalog.ReapUploads(ctx, r.opt.Age, r.opt.Batch)
	if err != nil || n == 0 {
		return false, err
	}
	r.opt.Metrics.reapedUploads.Add(float64(n))
	r.opt.Log.InfoContext(ctx, "gave up abandoned uploads", "uploads", n, "untouched_for", r.opt.Age)
	if r.opt.Reaped != nil {
		r.opt.Reaped()
	}
	return n >= int64(r.opt.Batch), nil
}

// refuseWrong fails while the store isn't the database's. Whatever else the store
// ails from, who uses it will hear.
func refuseWrong(ctx context.Context, store blob.Store) error {
	if store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := store.Check(ctx); errors.Is(err, blob.ErrWrongStore) {
		return err
	}
	return nil
}
