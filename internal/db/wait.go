package db

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrBusy says that a statement got no connection within Options.AcquireTimeout, since all that the pool,
// or one client of it (Options.Share), may have were in use. The same statement may succeed later.
var ErrBusy = errors.New("all connections to the database that this pool may have are in use, or those that one client may have")

// busyLook is how often a statement that has waited for Options.AcquireTimeout looks again whether all
// connections are in use, if meanwhile another one is being opened.
const busyLook = 250 * time.Millisecond

// waits bounds the wait for a connection while all that the pool may have are in use. It doesn't bound
// the time in which a connection is opened, which has a limit of its own, nor the statement.
type waits struct {
	p       *Pool
	most    time.Duration
	givenUp atomic.Int64 // nanoseconds that were waited in vain

	mu   sync.Mutex
	told time.Time
}

type waitKey struct{}

// wait is the wait of one statement.
type wait struct {
	cancel context.CancelFunc
	timer  *time.Timer
	began  time.Time
	turn   atomic.Bool // it waits for the turn of its client (shares)
}

// TraceAcquireStart implements pgxpool.AcquireTracer.
func (w *waits) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	one := &wait{cancel: cancel, began: time.Now()}
	ready := make(chan struct{})
	one.timer = time.AfterFunc(w.most, func() {
		<-ready
		switch s := w.p.Stat(); {
		case ctx.Err() != nil: // the wait has ended
		case s.AcquiredConns() < s.MaxConns() && !one.turn.Load():
			one.timer.Reset(busyLook)
		default:
			cancel()
		}
	})
	close(ready)
	return context.WithValue(ctx, waitKey{}, one)
}

// TraceAcquireEnd implements pgxpool.AcquireTracer.
func (w *waits) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	one, ok := ctx.Value(waitKey{}).(*wait)
	if !ok {
		return
	}
	one.timer.Stop()
	one.cancel()
	if data.Err != nil {
		w.givenUp.Add(int64(time.Since(one.began)))
	}
}

// explain returns ErrBusy if `err` means that the wait for a connection was ended, and not by the
// caller's context, and says so in the log from time to time.
func (w *waits) explain(ctx context.Context, err error) error {
	if w == nil || ctx.Err() != nil || !errors.Is(err, context.Canceled) {
		return err
	}
	most := w.p.Stat().MaxConns()
	w.mu.Lock()
	now := time.Now()
	tell := now.Sub(w.told) > refusedTold
	if tell {
		w.told = now
	}
	w.mu.Unlock()
	if tell {
		w.p.log.WarnContext(ctx, "statements get no connection to the database, since all that this process may open for requests are in use, or those that one client may have: statements are slow, or database.max_conns is low",
			"connections", most, "waited", w.most)
	}
	return fmt.Errorf("%w, %d of them, for %v", ErrBusy, most, w.most)
}

// Waits returns how often statements have waited for a connection and got it, and how long they, and
// those that got none, have waited.
func (p *Pool) Waits() (n int64, waited time.Duration) {
	stat := p.Stat()
	n, waited = stat.EmptyAcquireCount(), stat.EmptyAcquireWaitTime()
	if p.waits != nil {
		waited += time.Duration(p.waits.givenUp.Load())
	}
	if s := p.shares; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		n, waited = n+s.waits, waited+s.waited
	}
	return n, waited
}
