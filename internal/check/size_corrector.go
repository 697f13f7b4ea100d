package check

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// sizePage is how many manifests are compared at once.
	sizePage = 1000
	// sizeShare is the share of time that the corrector works; it sleeps for the rest.
	sizeShare = 0.25
)

// SizeCorrectorOptions says whose sizes to correct.
type SizeCorrectorOptions struct {
	DB     *db.DB          // required; a pool for background work
	Log    *slog.Logger    // default slog.Default()
	Worker *worker.Metrics // nil: none
}

// SizeCorrector corrects, once and in the background, the manifest sizes that the first
// release stored: that release took them from what manifests declare.
type SizeCorrector struct {
	opt   SizeCorrectorOptions
	loop  *worker.Loop
	over  context.CancelFunc
	page  int
	rest  time.Duration
	began bool
}

// NewSizeCorrector makes a corrector. It starts nothing: see Run.
func NewSizeCorrector(o SizeCorrectorOptions) (*SizeCorrector, error) {
	if o.DB == nil {
		return nil, errors.New("check: the corrector of sizes needs a database")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &SizeCorrector{opt: o, page: sizePage}
	s.loop = worker.New(worker.Options{
		Name: "sizes of manifests", Batch: s.batch, Log: o.Log, Metrics: o.Worker,
		Next: func(context.Context) (time.Duration, error) { return s.rest, nil },
	})
	return s, nil
}

// Run corrects sizes until all are right or ctx ends. Any number of processes may call it
// at once.
func (s *SizeCorrector) Run(ctx context.Context) error {
	ctx, s.over = context.WithCancel(ctx)
	defer s.over()
	return s.loop.Run(ctx)
}

// batch compares one page of manifests, and halves the page when a statement was cancelled
// by its timeout.
func (s *SizeCorrector) batch(ctx context.Context) (more bool, err error) {
	began := time.Now()
	done, err := CorrectSizes(ctx, s.opt.DB, s.page)
	if db.Code(err) == db.CodeQueryCanceled {
		s.page = max(1, s.page/2)
	}
	if err != nil {
		return false, err
	}
	if done.Compared > 0 && !s.began {
		s.began = true
		s.opt.Log.InfoContext(ctx, "correcting the sizes of manifests: an earlier version recorded the sizes that manifests declare, not those of the stored blobs")
	}
	if done.Over {
		if s.began {
			s.opt.Log.InfoContext(ctx, "the sizes of all manifests are correct now",
				"compared", done.ComparedInAll, "corrected", done.CorrectedInAll)
		}
		s.over()
		return false, nil
	}
	s.rest = min(max(done.Next, time.Duration(float64(time.Since(began))*(1/sizeShare-1))), worker.MaxIdle)
	return false, nil
}
