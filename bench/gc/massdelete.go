package gc

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/bench/meter"
)

// massDelete has the settings of the scenarios mass-delete and collect. Mass-delete measures
// how much the deletion of thousands of images slows down pushes and pulls: in each round it
// measures every server without and then with deletions, so that noise on the machine affects
// all servers alike.
type massDelete struct {
	out                io.Writer
	binaries           []string
	images, rounds     int
	deleters           int // clients
	pushRate, pullRate int // a second
	quiet, after       time.Duration
}

// mixed has the measurements of all windows of one kind on a server: those without deletions,
// or those with deletions.
type mixed struct {
	pushes, pulls meter.Latencies
	failed        int
	waits         map[string]int // what PostgreSQL's processes waited for, by sample
	samples       int
}

func (m massDelete) run(ctx context.Context, dir string) error {
	servers, stop, err := m.start(ctx, dir)
	defer stop()
	if err != nil {
		return err
	}
	for round := range m.rounds {
		for i := range servers {
			r := servers[(round+i)%len(servers)]
			if err := m.round(ctx, r); err != nil {
				return fmt.Errorf("%s: %w", r.binary, err)
			}
		}
	}
	for _, r := range servers {
		r.report(m.out)
	}
	return nil
}

// start starts one server for each program, with a directory of its own, and pushes 200 images
// to it, which the measured pulls pull. If a start fails, it returns the error with the
// servers that it has started before. `stop` ends the returned servers, whether there was an
// error or not.
func (m massDelete) start(ctx context.Context, dir string) (servers []*registry, stop func(), err error) {
	var undo []func()
	stop = func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}
	for _, binary := range m.binaries {
		base, err := os.MkdirTemp(dir, "purser-bench-gc-")
		if err != nil {
			return servers, stop, err
		}
		undo = append(undo, func() { os.RemoveAll(base) }) //nolint:errcheck // it may stay
		r, err := startRegistry(ctx, binary, base)
		if err != nil {
			return servers, stop, err
		}
		undo = append(undo, r.stop)
		servers = append(servers, r)
		if err := r.fill(ctx, "pulled", 200); err != nil {
			return servers, stop, err
		}
	}
	return servers, stop, nil
}

// round measures one quiet window and one window with deletions.
func (m massDelete) round(ctx context.Context, r *registry) error {
	if err := r.fill(ctx, "deleted", m.images); err != nil {
		return err
	}
	pause(ctx, m.after) // for the server to do the work that the pushes have deferred
	stop := r.mix(ctx, &r.still, m.pushRate, m.pullRate)
	pause(ctx, m.quiet)
	stop()

	stop = r.mix(ctx, &r.beside, m.pushRate, m.pullRate)
	defer stop()
	if err := m.deleteAll(ctx, r); err != nil {
		return err
	}
	pause(ctx, m.after) // reviews and the sweeper go on
	return nil
}

// deleteAll deletes the images in r.deletable by their digests. It uses m.deleters clients,
// each of which sends one deletion after the other.
func (m massDelete) deleteAll(ctx context.Context, r *registry) error {
	began := time.Now()
	var next atomic.Int64
	var group errgroup.Group
	for range m.deleters {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < len(r.deletable); i = int(next.Add(1)) - 1 {
				if err := r.delete(ctx, r.deletable[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	r.rates = append(r.rates, float64(len(r.deletable))/time.Since(began).Seconds())
	r.deletable = nil
	return err
}

// mix sends `pushes` pushes and `pulls` pulls per second until stop is called, and adds their
// latencies to *to. stop waits for the requests in flight, so *to has their latencies too.
func (r *registry) mix(ctx context.Context, to *mixed, pushes, pulls int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var work sync.WaitGroup
	steady := func(rate int, list *meter.Latencies, do func() error) {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			due := time.Now()
			work.Go(func() {
				err := do()
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					to.failed++
					r.last = err
					return
				}
				*list = append(*list, time.Since(due))
			})
		}
	}
	work.Go(func() {
		steady(pushes, &to.pushes, func() error { return r.push(context.WithoutCancel(ctx), "pushed/app", rand.Text()) })
	})
	work.Go(func() {
		steady(pulls, &to.pulls, func() error { return r.pull(context.WithoutCancel(ctx), r.stored[mathrand.IntN(len(r.stored))]) })
	})
	work.Go(func() {
		if err := r.sample(ctx, to); err != nil {
			mu.Lock()
			r.last = err
			mu.Unlock()
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

// fill pushes n images, each under a tag of its own. If `repository` is "pulled", the measured
// pulls will pull them, otherwise deleteAll will delete them.
func (r *registry) fill(ctx context.Context, repository string, n int) error {
	var group errgroup.Group
	var mu sync.Mutex
	group.SetLimit(8)
	for range n {
		group.Go(func() error {
			i, err := r.pushed(ctx, repository+"/app", rand.Text())
			mu.Lock()
			defer mu.Unlock()
			if repository == "pulled" {
				r.stored = append(r.stored, i)
			} else {
				r.deletable = append(r.deletable, i)
			}
			return err
		})
	}
	return group.Wait()
}

func (r *registry) report(out io.Writer) {
	for _, m := range []*mixed{&r.still, &r.beside} {
		slices.Sort(m.pushes)
		slices.Sort(m.pulls)
	}
	slices.Sort(r.rates)
	fmt.Fprintf(out, "%s: deleted %.0f images a second (%.0f to %.0f)\n", r.binary, r.rates[len(r.rates)/2], r.rates[0], r.rates[len(r.rates)-1])
	for i, m := range []*mixed{&r.still, &r.beside} {
		name := []string{"quiet", "beside"}[i]
		fmt.Fprintf(out, "  %-6s pushes: %s; pulls: %s; failed: %d\n", name, m.pushes, m.pulls, m.failed)
		var waits []string
		for what := range m.waits {
			waits = append(waits, what)
		}
		slices.SortFunc(waits, func(a, b string) int { return m.waits[b] - m.waits[a] })
		waits = waits[:min(len(waits), 14)]
		for i, what := range waits {
			waits[i] = fmt.Sprintf("%s %.3f", what, float64(m.waits[what])/float64(m.samples))
		}
		fmt.Fprintf(out, "         of PostgreSQL's processes on average: %s\n", strings.Join(waits, "; "))
	}
	fmt.Fprintf(out, "  p99 beside the deletions, as a multiple of the quiet one: pushes %.2f, pulls %.2f\n",
		r.beside.pushes.Ratio(r.still.pushes, 99), r.beside.pulls.Ratio(r.still.pulls, 99))
	if r.last != nil {
		fmt.Fprintf(out, "  the last failure: %v\n", r.last)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
