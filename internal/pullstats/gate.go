package pullstats

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

const (
	// trustedSilent is how old the last report of a process without unwritten uses may be.
	// A run that judges tags by their last uses waits for a process whose report is older.
	trustedSilent = 15 * time.Second
	// trustedFor is how long after the beginning of such a report somebody may take it for true:
	// it is executed within quietTimeout or not at all. One second is for clocks that run at
	// different speeds.
	trustedFor = trustedSilent + quietTimeout + time.Second
	// gateFor bounds the time for which a request waits at the gate.
	gateFor = 30 * time.Second
)

// gate keeps the promise of a row in pullrecorders whose written_to is NULL: that the process
// changes the row before it answers another request. A request passes at once while the row
// says that there may be unwritten uses. Otherwise the request waits until the row says so,
// which takes one commit.
//
// If the database can't be reached, the request waits until nobody takes the row for true any
// more (trustedFor), and until another report has failed. Further requests don't wait until the
// database can be reached again.
type gate struct {
	on      atomic.Bool  // the process reports regularly; otherwise every request passes
	open    atomic.Bool  // the row says that there may be unwritten uses
	waiting atomic.Int64 // number of requests that wait

	base     time.Time
	reported atomic.Int64 // when the last report that succeeded began, in nanoseconds since base
	failed   atomic.Int64 // the same of the last report that failed
	closed   atomic.Int64 // the same of the last report that there are no unwritten uses, whether or not it succeeded

	mu      sync.Mutex
	changed chan struct{} // closed after the next report
}

// passes says whether a request may be answered now.
func (g *gate) passes() bool {
	if !g.on.Load() {
		return true
	}
	reported := time.Duration(g.reported.Load())
	if g.open.Load() && time.Since(g.base)-reported < statsdb.GoneAfter-trustedSilent {
		return true
	}
	return time.Duration(g.failed.Load()) > max(reported, time.Duration(g.closed.Load())+trustedFor)
}

// shut is called before a report that there are no unwritten uses: requests that come from then
// on have to wait.
func (g *gate) shut() {
	g.open.Store(false)
	g.closed.Store(int64(time.Since(g.base)))
}

// pass waits until a request may be answered. It returns false if ctx ends or gateFor is over
// first.
func (g *gate) pass(ctx context.Context, wake func()) bool {
	if g.passes() {
		return true
	}
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	timer := time.NewTimer(gateFor)
	defer timer.Stop()
	for {
		g.mu.Lock()
		changed := g.changed
		g.mu.Unlock()
		if g.passes() {
			return true
		}
		wake()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		}
	}
}

// told records a report that began at `begun`, and whether it succeeded. `open` is what the row
// says now, if it did.
func (g *gate) told(begun time.Time, open bool, err error) {
	at := int64(begun.Sub(g.base))
	if err != nil {
		g.failed.Store(at)
	} else {
		g.reported.Store(at)
		if open {
			g.open.Store(true)
		}
	}
	g.mu.Lock()
	close(g.changed)
	g.changed = make(chan struct{})
	g.mu.Unlock()
}

// begin must be called before a request gets its time, and the method end when the request is in
// a queue. Between the two calls the method cut waits. So cut doesn't return a time later
// than that of a request which is in no queue yet.
func (p *presence) begin(ctx context.Context) {
	if p == nil {
		return
	}
	for {
		passed := p.gate.pass(ctx, p.loop.Wake)
		p.taking.RLock()
		if !passed || p.gate.passes() {
			break
		}
		p.taking.RUnlock() // the row was changed in between
	}
	p.came.Add(1)
}

// hold makes the method cut wait while pulls are moved from one queue to another and are in
// neither. The caller must call the method end afterwards.
func (p *presence) hold() {
	if p != nil {
		p.taking.RLock()
	}
}

func (p *presence) end() {
	if p != nil {
		p.taking.RUnlock()
	}
}
