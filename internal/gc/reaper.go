package gc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/worker"
)

// ReaperOptions says which uploads count as abandoned.
type ReaperOptions struct {
	Catalog *catalog.Catalog // required
	// Store has the objects of the uploads. While the store carries another database's
	// identity, the Reaper deletes no upload. If Store is nil, the Reaper doesn't check the
	// identity.
	Store blob.Store
	// Age is the time without a change after which an upload counts as abandoned. It must be
	// at least as long as the longest request can run. Default 24 h.
	Age time.Duration
	// Batch bounds the uploads that one transaction deletes. Default 1,000.
	Batch int
	// Reaped is called after each batch of deleted uploads. Their objects are pending
	// deletions then, so the caller can wake the sweeper. Reaped must not block.
	Reaped func()
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age
	// (see package clock). Nil: it always may.
	MayDelete func(ctx context.Context) error
	Log       *slog.Logger    // default slog.Default()
	Metrics   *Metrics        // nil: none
	Worker    *worker.Metrics // nil: none
}

// Reaper deletes abandoned uploads and records their objects as pending deletions for the
// sweeper.
type Reaper struct {
	opt  ReaperOptions
	loop *worker.Loop
}

// NewReaper makes a reaper. It starts nothing: see Run.
func NewReaper(o ReaperOptions) (*Reaper, error) {
	if o.Catalog == nil {
		return nil, errors.New("gc: the reaper needs a catalog")
	}
	o.Age = cmp.Or(o.Age, 24*time.Hour)
	o.Batch = cmp.Or(o.Batch, 1000)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	r := &Reaper{opt: o}
	r.loop = worker.New(worker.Options{Name: "upload-reaper", Batch: r.batch, May: o.MayDelete, Log: o.Log, Metrics: o.Worker})
	return r, nil
}

// Run deletes abandoned uploads until ctx ends. Any number of processes may run reapers at
// once.
func (r *Reaper) Run(ctx context.Context) error { return r.loop.Run(ctx) }

// batch deletes one batch of abandoned uploads.
func (r *Reaper) batch(ctx context.Context) (more bool, err error) {
	if err := blob.RefuseWrong(ctx, r.opt.Store); err != nil {
		return false, err
	}
	n, err := r.opt.Catalog.ReapUploads(ctx, r.opt.Age, r.opt.Batch)
	if err != nil || n == 0 {
		return false, err
	}
	r.opt.Metrics.reapedUploads.Add(float64(n))
	r.opt.Log.InfoContext(ctx, "ended abandoned uploads", "uploads", n, "untouched_for", r.opt.Age)
	if r.opt.Reaped != nil {
		r.opt.Reaped()
	}
	return n >= int64(r.opt.Batch), nil
}
