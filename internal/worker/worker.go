// Package worker runs background work in a loop of bounded batches until its context ends.
//
// A Loop starts the next batch at once while work is due. Otherwise it sleeps, at most a
// minute; the length of each sleep varies at random. If a batch fails or panics, the loop logs
// the error, waits for a while and continues. When the context of Run ends, a sleep ends, a
// running batch is cancelled, and Run returns when that batch has ended.
//
// A loop gets its work from a function. There is no common queue: each queue of the registry has
// its own statements, in the package of its work. A review of garbage collection runs inside the
// transaction that claims its queue row, so the review queues need no leases. The other queues are
// for work outside the transaction that claims it, and each has another kind of lease: a pending
// deletion gets a new due time, a prune task a lease that is renewed with the run's position, and a
// notice an id and a number of attempts. The queues have only the clause FOR UPDATE SKIP LOCKED in
// common, and a common queue would have to splice the names of tables and keys into its statements.
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

// MaxIdle is the longest sleep of a loop whose batches don't fail.
const MaxIdle = time.Minute

// minIdle is the shortest sleep after a batch that found no work. It applies even if Next says
// that work is due, since another process may have locked that work.
const minIdle = 50 * time.Millisecond

// ErrRunning says that Run was called while the loop was already running.
var ErrRunning = errors.New("the loop is already running")

// ErrRest says that work must not be done now, though nothing has failed.
var ErrRest = errors.New("the work rests")

// restLook is how long a loop sleeps that must rest.
const restLook = 10 * time.Second

// Options configure a Loop.
type Options struct {
	Name string // for logs and metrics; required
	// Batch does a bounded piece of work and returns whether more work is due now. It must end
	// when its context ends. Required.
	Batch func(ctx context.Context) (more bool, err error)
	// May is asked before each batch. While it returns an error that wraps ErrRest, the loop does
	// nothing, and asks again within 10 s; so it is if Batch returns such an error. Nil: it may.
	May func(ctx context.Context) error
	// Next returns the time until work is due. If it is nil, the loop always sleeps for Idle.
	Next func(ctx context.Context) (time.Duration, error)
	// Idle is how long the loop sleeps if there is no work and Next is nil. Default and
	// maximum: MaxIdle.
	Idle time.Duration
	// Timeout limits the duration of a batch. Default 5 min.
	Timeout time.Duration
	// BackoffMin is the sleep after a batch that failed. It doubles with each further
	// failure in a row, up to BackoffMax; up to half of it is subtracted at random (see
	// Backoff). Defaults: 1 s, 1 min.
	BackoffMin, BackoffMax time.Duration
	// WakeFailed says that Wake also ends the sleep after a failure: somebody has asked for
	// another try.
	WakeFailed bool
	Log        *slog.Logger // default slog.Default()
	Metrics    *Metrics     // nil: none
}

// Loop runs batches one after the other. Its methods may be called concurrently.
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

// Wake ends the sleep of an idle loop, so that it runs a batch immediately. A loop that is
// running a batch runs another batch before it sleeps. A loop that sleeps after a failure
// doesn't wake early, unless Options.WakeFailed says so. Wake never blocks.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Run runs batches until ctx ends, which also cancels the batch that is running. Once this
// batch has ended, Run returns nil. It returns ErrRunning if the loop is already running.
func (l *Loop) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return fmt.Errorf("worker %s: %w", l.opt.Name, ErrRunning)
	}
	defer l.running.Store(false)
	l.opt.Metrics.began(l.opt.Name)
	failures := 0
	for ctx.Err() == nil {
		more, idle, err := l.step(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failures++
			pause := l.backoff(failures)
			l.log.ErrorContext(ctx, "background work failed", "error", err, "failures", failures, "again_in", pause)
			var wake <-chan struct{}
			if l.opt.WakeFailed {
				wake = l.wake
			}
			sleep(ctx, pause, wake)
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

// batch asks whether the loop may work, and does a batch.
func (l *Loop) batch(ctx context.Context) (more bool, err error) {
	if l.opt.May != nil {
		if err := l.opt.May(ctx); err != nil {
			return false, err
		}
	}
	return l.opt.Batch(ctx)
}

// step runs one batch. It returns whether more work is due now and, if not, how long the loop
// should sleep.
func (l *Loop) step(ctx context.Context) (more bool, idle time.Duration, err error) {
	start := time.Now()
	more, err = l.call(ctx, l.batch)
	if errors.Is(err, ErrRest) {
		l.opt.Metrics.observe(l.opt.Name, time.Since(start), nil) // the loop runs
		l.log.DebugContext(ctx, "background work rests", "reason", err)
		return false, jitter(restLook), nil
	}
	// A batch that was cancelled because ctx has ended doesn't count as failed.
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

// call calls fn with the loop's time limit, and converts a panic into an error.
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

// backoff returns how long the loop sleeps after the given number of failures in a row.
func (l *Loop) backoff(failures int) time.Duration {
	return Backoff(failures, l.opt.BackoffMin, l.opt.BackoffMax)
}

// Backoff returns how long to wait after the given number of failures in a row (1 or more). The
// time is `least` after the first failure and doubles with each further one, up to `most`. Then
// up to half of it is subtracted at random, so that processes that failed at the same time
// don't retry at the same time.
func Backoff(failures int, least, most time.Duration) time.Duration {
	d := least
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d - rand.N(d/2+1)
}

// jitter lengthens a sleep by up to a tenth at random; the result is between minIdle and
// MaxIdle. Only sleeps of MaxIdle and more get shorter: any other sleep must not end before work
// is due.
func jitter(d time.Duration) time.Duration {
	d = max(d, minIdle)
	if d >= MaxIdle {
		return MaxIdle - rand.N(MaxIdle/10)
	}
	return min(d+rand.N(d/10+1), MaxIdle)
}

// Sleep returns nil after the time d, or the context's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	sleep(ctx, d, nil)
	return ctx.Err()
}

// sleep returns when the time d has passed, ctx has ended, or `wake` has delivered a value.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}
