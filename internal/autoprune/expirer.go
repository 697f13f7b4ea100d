package autoprune

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/worker"
)

// ExpirerOptions configures the worker that deletes tags at their expiration date.
type ExpirerOptions struct {
	Catalog *catalog.Catalog // required
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age
	// (see package clock). Nil: it always may.
	MayDelete func(ctx context.Context) error
	Log       *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// NewExpirer makes the worker that deletes tags at their expiration date. The worker sleeps
// until the next date, but never longer than worker.MaxIdle, since another process may set
// an earlier date meanwhile. Any number of processes may run this worker: see
// [catalog.Catalog.ExpireTags].
func NewExpirer(o ExpirerOptions) (*worker.Loop, error) {
	if o.Catalog == nil {
		return nil, errors.New("autoprune: the worker of expirations needs a catalog")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	return worker.New(worker.Options{
		Name: "tag_expiration", May: o.MayDelete, Log: o.Log, Metrics: o.Worker,
		Batch: func(ctx context.Context) (bool, error) {
			ctx = audit.WithSource(ctx, audit.Source{Actor: audit.ActorExpiration})
			done, err := o.Catalog.ExpireTags(ctx)
			if done.Deleted+done.Kept > 0 {
				o.Log.InfoContext(ctx, "tags have expired", "deleted", done.Deleted, "kept_because_protected", done.Kept, "held", done.Held)
			}
			return done.More, err
		},
		Next: func(ctx context.Context) (time.Duration, error) {
			next, some, err := o.Catalog.NextExpiration(ctx)
			if err != nil || !some {
				return worker.MaxIdle, err
			}
			return max(next, 0), nil
		},
	}), nil
}
