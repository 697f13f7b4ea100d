package autoprune

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/judge"
)

type (
	TagBatch    = tagBatch
	BatchReason = batchReason
	DeletionTx  = deletionTx
)

var ErrBusy = errBusy

// Work does one time slice of the worker.
func (p *Pruner) Work(ctx context.Context) (more bool, err error) { return p.work(ctx) }

// SetLookFor changes how long after all processes have written their uses tags may be deleted.
func (p *Pruner) SetLookFor(d time.Duration) { p.lookFor = d }

// LookWithin is how long a transaction that deletes looks for uses.
const LookWithin = lookWithin

// Next exports next, the sleep after Work.
func (p *Pruner) Next(ctx context.Context) (time.Duration, error) { return p.next(ctx) }

// Turns exports turns.
type Turns struct{ turns }

func (s *Turns) UnfinishedFirst() bool                     { return s.unfinishedFirst() }
func (s *Turns) Absent()                                   { s.absent() }
func (s *Turns) Spent(unfinished bool, took time.Duration) { s.spent(unfinished, took) }

// Deletion calls fn in a transaction that deletes tags.
func (p *Pruner) Deletion(ctx context.Context, fn func(tx DeletionTx) error) error {
	return p.deletion(ctx, fn)
}

// EnoughWithoutTime searches for the tags that free some bytes when there is no time left.
func EnoughWithoutTime(ctx context.Context) (tags int, freed int64, err error) {
	f := &freePlanner{until: time.Now().Add(-time.Second), order: make([]judge.FreePlace, 3)}
	return f.enough(ctx, 10)
}
