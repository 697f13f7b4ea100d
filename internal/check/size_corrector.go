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
	// sizeShare is the share of time in which the corrector works; for the rest it sleeps,
	// to spare the database.
	sizeShare = 0.25
)

// SizeCorrectorOptions says whose sizes to correct.
type SizeCorrectorOptions struct {
	DB     *db.DB          // required; a pool for background work
	Log    *slog.Logger    // default slog.Default()
	Worker *worker.Metrics // nil: none
}

// SizeCorrector corrects, once and in the background, total_size of the manifests that the
// first release stored. The first release computed it from the sizes that the manifests
// declare, which may be wrong.
type SizeCorrector struct {
	opt   SizeCorrectorOptions
	loop  *worker.Loop
	over  context.CancelFunc
	page  int
	rest  time.Duration
	began bool
}

// NewSizeCorrector makes a corrector. It changes nothing until Run is called.
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

// Run corrects sizes until both passes over all manifests are finished or ctx ends, and then
// returns nil. Any number of processes may call it at once.
func (s *SizeCorrector) Run(ctx context.Context) error {
	ctx, s.over = context.WithCancel(ctx)
	defer s.over()
	return s.loop.Run(ctx)
}

// batch compares the next s.page manifests. If the statement exceeds its time limit, batch
// halves s.page for the next attempt.
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
