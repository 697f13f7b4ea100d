// Package worker runs background work in bounded batches until its context ends.
//
// A loop doesn't sleep while work is due. Every sleep is jittered, lasts at most a minute
// when idle, and ends with the context. A batch that fails or panics is logged, and the
// loop backs off and continues. When the context ends, the running batch is cancelled, and
// Run returns when that batch has ended.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// MaxIdle limits a loop's sleep while nothing fails.
const MaxIdle = time.Minute

// minIdle is the least sleep after a batch that found no work, even if Next says that
// work is due: another process has it locked at this moment.
const minIdle = 50 * time.Millisecond

// ErrRunning says that a loop was started twice.
var ErrRunning = errors.New("the loop is already running")

// Options configure a Loop.
type Options struct {
	Name string // for logs and metrics; required
	// Batch does a bounded piece of work and returns whether more work is due now. It
	// must obey its context. Required.
	Batch func(ctx context.Context) (more bool, err error)
	// Next returns how long it is until work is due. Nil: always Idle.
	Next func(ctx context.Context) (time.Duration, error)
	// Idle is the sleep if there is no work and Next is nil. Default and maximum:
	// MaxIdle.
	Idle time.Duration
	// Timeout limits the duration of a batch. Default 5 min.
	Timeout time.Duration
	// BackoffMin and BackoffMax limit the sleep after a failure, which doubles with
	// each consecutive failure. Defaults: 1 s, 1 min.
	BackoffMin, BackoffMax time.Duration
	Log                    *slog.Logger // default slog.Default()
	Metrics                *Metrics     // nil: none
}

// Loop runs batches. Its methods may be called concurrently.
type Loop struct {
	opt     Options
	log     *slog.Logger
	wake    chan struct{}
	running atomic.Bool
}

// New makes a loop. Run starts it.
func New(o Options) *Loop {
	if o.Idle <= 0 || o.Idle > MaxIdle {
		o.Idle = MaxIdle
	}
	o.Timeout = cmp.Or(o.Timeout, 5*time.Minute)
	o.BackoffMin = cmp.Or(o.BackoffMin, time.Second)
	o.BackoffMax = cmp.Or(o.BackoffMax, time.Minute)
	o.BackoffMax = max(o.BackoffMax, o.BackoffMin)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Loop{opt: o, log: o.Log.With("worker", o.Name), wake: make(chan struct{}, 1)}
}

// Wake makes an idle loop look for work immediately. A loop that runs a batch looks for
// work once more before it sleeps; a loop that backs off looks after its back-off. Wake
// never blocks.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Run runs batches until ctx ends, and returns nil after the last one. Error:
// ErrRunning.
func (l *Loop) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return fmt.Errorf("worker %s: %w", l.opt.Name, ErrRunning)
	}
	defer l.running.Store(false)
	failures := 0
	for ctx.Err() == nil {
		more, idle, err := l.step(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			pause := l.backoff(failures)
			l.log.ErrorContext(ctx, "background work failed", "error", err, "failures", failures, "again_in", pause)
			sleep(ctx, pause, nil)
		default:
			if failures > 0 {
				l.log.InfoContext(ctx, "background work succeeds again", "failures", failures)
				failures = 0
			}
			if !more {
				sleep(ctx, idle, l.wake)
			}
		}
	}
	return nil
}

// step runs one batch. It returns whether more work is due, and how long to sleep if
// not.
func (l *Loop) step(ctx context.Context) (more bool, idle time.Duration, err error) {
	start := time.Now()
	more, err = l.call(ctx, l.opt.Batch)
	// A batch that was cancelled because ctx ended hasn't failed.
	if ctx.Err() == nil {
		l.opt.Metrics.observe(l.opt.Name, time.Since(start), err)
	}
	if err != nil || more || ctx.Err() != nil {
		return more, 0, err
	}
	idle = l.opt.Idle
	if l.opt.Next != nil {
		_, err = l.call(ctx, func(ctx context.Context) (bool, error) {
			idle, err = l.opt.Next(ctx)
			return false, err
		})
	}
	return false, jitter(idle), err
}

// call runs fn with the timeout and turns a panic into an error.
func (l *Loop) call(ctx context.Context, fn func(context.Context) (bool, error)) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.opt.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			l.log.ErrorContext(ctx, "background work panicked", "panic", p, "stack", string(debug.Stack()))
			more, err = false, fmt.Errorf("panic: %v", p)
		}
	}()
	return fn(ctx)
}

// backoff returns the sleep after that many consecutive failures. Up to half of it is
// random, so that processes that failed together don't retry together.
func (l *Loop) backoff(failures int) time.Duration {
	return Backoff(failures, l.opt.BackoffMin, l.opt.BackoffMax)
}

// Backoff returns an exponential delay after the given number of consecutive failures
// (1 or more). It doubles from least to most; then up to half of it is subtracted at
// random.
func Backoff(failures int, least, most time.Duration) time.Duration {
	d := least
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d - rand.N(d/2+1)
}

// jitter lengthens a sleep by up to a tenth, within minIdle and MaxIdle. It shortens only
// sleeps of MaxIdle and more: if it shortened others, the loop would wake before work is
// due.
func jitter(d time.Duration) time.Duration {
	d = max(d, minIdle)
	if d >= MaxIdle {
		return MaxIdle - rand.N(MaxIdle/10)
	}
	return min(d+rand.N(d/10+1), MaxIdle)
}

// Sleep returns after d, or with the context's error when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	sleep(ctx, d, nil)
	return ctx.Err()
}

// sleep waits for d, the end of ctx, or a value in wake.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}
