// Package worker runs background work in bounded batches until its context
// ends.
//
// What holds inside: a loop doesn't sleep while work is due; every sleep is
// jittered, at most a minute when idle, and ends with the context; a batch that
// fails or panics is logged and backed off, and never ends the loop; when the
// context ends, so does the running batch, and Run returns once it has.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// MaxIdle is the longest that a loop sleeps while nothing fails.
const MaxIdle = time.Minute

// minIdle is slept even if Next says that work is due at once, when a batch has
// just found none: another process holds it at this moment.
const minIdle = 50 * time.Millisecond

// ErrRunning says that a loop was started twice.
var ErrRunning = errors.New("the loop is already running")

// Options says what to run and when.
type Options struct {
	Name string // in logs and metrics; required
	// Batch does a bounded piece of work; more says that further work is due
	// now. It obeys its context. Required.
	Batch func(ctx context.Context) (more bool, err error)
	// Next says how long it is until work is due. Nil: always Idle.
	Next func(ctx context.Context) (time.Duration, error)
	// Idle is the sleep when there is nothing to do and Next is nil. Default and
	// most: MaxIdle.
	Idle time.Duration
	// Timeout ends a batch that takes longer. Default 5 min.
	Timeout time.Duration
	// BackoffMin and BackoffMax bound the sleep after failures, which doubles
	// with each one in a row. Defaults: 1 s, 1 min.
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

// New makes a loop. It starts nothing: see Run.
func New(o Options) *Loop {
	if o.Idle <= 0 || o.Idle > MaxIdle {
		o.Idle = MaxIdle
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.BackoffMin <= 0 {
		o.BackoffMin = time.Second
	}
	if o.BackoffMax <= 0 {
		o.BackoffMax = time.Minute
	}
	o.BackoffMax = max(o.BackoffMax, o.BackoffMin)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Loop{opt: o, log: o.Log.With("worker", o.Name), wake: make(chan struct{}, 1)}
}

// Wake makes an idle loop look for work now. A loop that runs looks once more
// before it sleeps; one that backs off does so first. It never blocks.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // one is pending already
	}
}

// Run runs batches until ctx ends, and returns nil when the last one is over.
// Error: ErrRunning.
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

// step runs one batch and says how long to sleep after it, unless there is more
// to do.
func (l *Loop) step(ctx context.Context) (more bool, idle time.Duration, err error) {
	start := time.Now()
	more, err = l.call(ctx, l.opt.Batch)
	// What the end of ctx cut off is no failure.
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

// call runs fn in its time and turns a panic into an error.
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

// backoff is the sleep after that many failures in a row: half of it is random,
// so that processes that failed together don't return together.
func (l *Loop) backoff(failures int) time.Duration {
	return Backoff(failures, l.opt.BackoffMin, l.opt.BackoffMax)
}

// Backoff is an exponential delay after the given number of failures in a row
// (1 or more): it doubles from least to most, and up to half of it is taken off
// at random.
func Backoff(failures int, least, most time.Duration) time.Duration {
	d := least
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d - rand.N(d/2+1)
}

// jitter lengthens a sleep by up to a tenth, within minIdle and MaxIdle. It
// never shortens one: the loop would wake before work is due, and sleep again.
// At the upper end it shortens instead.
func jitter(d time.Duration) time.Duration {
	d = max(d, minIdle)
	if d >= MaxIdle {
		return MaxIdle - rand.N(MaxIdle/10)
	}
	return min(d+rand.N(d/10+1), MaxIdle)
}

// sleep returns after d, when ctx ends, or when wake has something.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}
