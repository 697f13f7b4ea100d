package autoprune

import (
	"context"
	"time"
)

// turns decides whether a worker's next time slice is for an unfinished run or for a namespace
// whose next run is due. It has no lock: only the worker's loop uses it.
//
// Both kinds may be waiting in any number. Then each gets half of the worker's time, however long
// single time slices are: the kind that had less comes next. While only one kind waits, it gets all
// time; this gives the other kind no claim to more later. Within a kind, the namespace comes first
// that has waited longest (see claim). So a long run takes at most twice as long as it would alone,
// however many other namespaces there are; and these get at least half of the time that they would
// have without it.
type turns struct {
	// lead is how much more time unfinished runs had than others, since both have been waiting.
	lead time.Duration
}

// unfinishedFirst returns whether an unfinished run comes next, if one waits.
func (s *turns) unfinishedFirst() bool { return s.lead <= 0 }

// absent resets the lead, because no namespace of the kind whose turn it is waits.
func (s *turns) absent() { s.lead = 0 }

// spent adds the time of a time slice.
func (s *turns) spent(unfinished bool, took time.Duration) {
	if !unfinished {
		took = -took
	}
	s.lead += took
}

// claimNext claims a task for the next time slice. It returns nil if no task is due.
func (p *Pruner) claimNext(ctx context.Context) (*task, error) {
	first := p.turns.unfinishedFirst()
	t, err := p.claim(ctx, first)
	if t != nil || err != nil {
		return t, err
	}
	p.turns.absent()
	return p.claim(ctx, !first)
}
