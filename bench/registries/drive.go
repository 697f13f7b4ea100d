package registries

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// operation executes one operation of a workload and checks its result. It returns errDone
// when there is nothing left to do, which ends the worker that called it.
type operation func(ctx context.Context) error

var errDone = errors.New("no operations left")

const (
	// A worker stops after this many errors in a row. Otherwise, if a server has ended, the
	// program would measure how fast connections are refused.
	maxConsecutiveErrors = 10
	maxMessages          = 3 // error texts kept of a window
)

// window has the measurements of one run of a workload on one target, or the sum of several
// such runs.
type window struct {
	latencies []time.Duration // of operations without error, in no order
	errors    int
	messages  []string
	elapsed   time.Duration
	usage     meter.Usage
	end       meter.Usage   // of the server's processes from their start to the window's end
	client    time.Duration // CPU time of the load generator
	others    meter.Machine // CPU time that other processes and machines took meanwhile
	dials     int           // connections made
}

// drive calls each of the operations in a goroutine of its own, again and again, until the
// time d has passed or ctx ends, but at least once. If d is 0, each goroutine ends when its operation returns
// errDone. drive returns the measurements when all running operations have ended.
func drive(ctx context.Context, d time.Duration, ops []operation) window {
	parts := make([]window, len(ops))
	start := time.Now()
	var wg sync.WaitGroup
	for i, op := range ops {
		wg.Go(func() { parts[i] = work(ctx, start, d, op) })
	}
	wg.Wait()
	total := window{elapsed: time.Since(start)}
	for _, p := range parts {
		total.add(p)
	}
	return total
}

func work(ctx context.Context, start time.Time, d time.Duration, op operation) window {
	var w window
	failed := 0
	for now := time.Now(); ctx.Err() == nil && (d == 0 || now.Sub(start) < d || len(w.latencies)+w.errors == 0); {
		err := op(ctx)
		end := time.Now()
		switch {
		case errors.Is(err, errDone) || err != nil && ctx.Err() != nil:
			return w
		case err != nil:
			w.fail(err)
			if failed++; failed == maxConsecutiveErrors {
				return w
			}
		default:
			failed = 0
			w.latencies = append(w.latencies, end.Sub(now))
		}
		now = end
	}
	return w
}

func (w *window) fail(err error) {
	w.errors++
	w.note(err.Error())
}

func (w *window) note(message string) {
	if len(w.messages) < maxMessages && !slices.Contains(w.messages, message) {
		w.messages = append(w.messages, message)
	}
}

// add adds the window o to w: it sums counts, times and latencies, and keeps the larger of the
// memory figures.
func (w *window) add(o window) {
	w.latencies = append(w.latencies, o.latencies...)
	w.errors += o.errors
	for _, m := range o.messages {
		w.note(m)
	}
	w.elapsed += o.elapsed
	w.client += o.client
	w.dials += o.dials
	w.others.Add(o.others)
	w.usage.Deferred += o.usage.Deferred
	w.usage.Server += o.usage.Server
	w.usage.Database += o.usage.Database
	w.usage.RSS = max(w.usage.RSS, o.usage.RSS)
	w.usage.PSS = max(w.usage.PSS, o.usage.PSS)
}
