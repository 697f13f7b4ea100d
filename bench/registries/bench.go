package registries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// Each table shows one state of the registries: empty, that is, before the program has filled
// them with many manifests, or filled.
const (
	stateEmpty  = "empty"
	stateFilled = "filled"
)

// fillWorkload is the name of the table row that shows how fast the registry was filled.
const fillWorkload = "fill"

// bench is one run of the command.
type bench struct {
	*options
	fixture fixture
	fs      meter.Proc
	source  *layerSource // nil until a large layer is needed
	child   *target      // the baselines' process; nil without baselines
	log     io.Writer    // progress
}

func (b *bench) readRepo() string        { return b.prefix + "/read" }
func (b *bench) tagsRepo() string        { return b.prefix + "/tags" }
func (b *bench) manyRepo() string        { return b.prefix + "/many" }
func (b *bench) pullRepo() string        { return b.prefix + "/pull" }
func (b *bench) fillRepo(i int) string   { return fmt.Sprintf("%s/fill-%04d", b.prefix, i) }
func (b *bench) logf(f string, a ...any) { fmt.Fprintf(b.log, f+"\n", a...) }

// layers returns the source of large layers.
func (b *bench) layers() (*layerSource, error) {
	var err error
	if b.source == nil {
		b.source, err = newLayerSource(b.layerMiB << 20)
	}
	return b.source, err
}

// Run runs the scenario registries with the flags in args. It writes the report to stdout and
// progress to stderr. It returns an error if any answer was wrong.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	b := &bench{options: o, fixture: newFixture(o.hot), fs: meter.Proc{Root: "/proc"}, log: stderr}
	if o.baselines {
		child, stop, err := startBaselines(o.dir, stderr)
		if err != nil {
			return err
		}
		defer stop()
		b.child = child
	}
	rep := newReport(o)
	err = b.all(ctx, rep)
	// After an error or an interrupt, the results measured until then are printed too.
	if len(rep.Results) > 0 {
		err = errors.Join(err, rep.write(o.json, stdout))
	}
	if err != nil {
		return err
	}
	if n := rep.marked(); n > 0 {
		return fmt.Errorf("%d results have errors", n)
	}
	return nil
}

// all measures in both states.
func (b *bench) all(ctx context.Context, rep *report) error {
	for _, t := range b.targets {
		if err := b.prepare(ctx, t); err != nil {
			return fmt.Errorf("preparing %s: %w", t.name, err)
		}
	}
	if err := b.measure(ctx, stateEmpty, rep); err != nil || b.fill == 0 {
		return err
	}
	for _, t := range b.targets {
		w, err := b.fillTarget(ctx, t)
		if err != nil {
			return fmt.Errorf("filling %s: %w", t.name, err)
		}
		var s series
		s.add(w)
		rep.add(s.result(stateFilled, fillWorkload, t.name, 0))
	}
	b.logf("settling for %s", b.settle)
	select {
	case <-time.After(b.settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	return b.measure(ctx, stateFilled, rep)
}

// measure runs all workloads while the registries are in the given state, and adds the results
// to `rep`. It takes one workload after the other; each round of a workload has one window on
// every target.
func (b *bench) measure(ctx context.Context, state string, rep *report) error {
	for _, w := range b.workloads {
		targets := b.targets
		if b.child != nil && w.baseline != "" {
			limit := *b.child
			limit.name = w.limit
			targets = append(targets[:len(targets):len(targets)], &limit)
		}
		totals := make([]series, len(targets))
		for round := range b.rounds {
			for turn := range targets {
				i := (turn + round) % len(targets) // each target goes first in turn
				win := b.quietWindow(ctx, w, targets[i], &totals[i])
				if err := ctx.Err(); err != nil {
					return err
				}
				totals[i].add(win)
				b.logf("%s %s round %d/%d %s: %d done, %d errors in %s; others took %.1f%%, %.1f%% was stolen", state, w.name,
					round+1, b.rounds, targets[i].name, len(win.latencies), win.errors, win.elapsed.Round(time.Millisecond),
					100*win.others.Share(win.others.Busy), 100*win.others.Share(win.others.Stolen))
			}
		}
		for i, t := range targets {
			r := totals[i].result(state, w.name, t.name, w.bytesMoved(b.options))
			r.Baseline = t.baseline
			rep.add(r)
		}
	}
	return nil
}

// quietWindow measures a window of the workload w on the target t. If other processes took too
// much of the machine's CPU time meanwhile, it drops the window and measures another, up to
// b.rounds times. After that it returns even a noisy window.
func (b *bench) quietWindow(ctx context.Context, w workload, t *target, s *series) window {
	for try := 0; ; try++ {
		win := b.window(ctx, w, t)
		if !win.others.Noisy(b.noise) || ctx.Err() != nil {
			return win
		}
		if try == b.rounds {
			s.noisy++
			return win
		}
		s.dropped++
		b.logf("%s %s: others took %.1f%% of the machine, %.1f%% was stolen: measuring again", w.name, t.name,
			100*win.others.Share(win.others.Busy), 100*win.others.Share(win.others.Stolen))
	}
}

// window runs a workload on a target for the time of one window, and returns its measurements.
func (b *bench) window(ctx context.Context, w workload, t *target) window {
	var s *session
	var err error
	switch {
	case t.baseline:
		s, err = b.openBaseline(ctx, w, t)
	case w.probes != nil:
		s, err = openReads(ctx, b.options, t, w.method, w.probes(b))
	default:
		s, err = w.open(ctx, b, t)
	}
	if err != nil {
		var failed window
		failed.fail(err)
		return failed
	}
	defer s.close()
	d := b.duration
	if w.once {
		d = 0
	}
	win := b.metered(ctx, t, d, s)
	if s.after != nil && ctx.Err() == nil {
		if err := s.after(ctx); err != nil {
			win.fail(err)
		}
	}
	return win
}

// metered runs a session's operations for the time d, and measures the CPU time and memory of
// the target and the CPU time of the load generator.
func (b *bench) metered(ctx context.Context, t *target, d time.Duration, s *session) window {
	if b.sync {
		meter.Flush()
	}
	dials := s.dials()
	stop := meter.New(b.fs, t.pids).Watch()
	before, _ := meter.SelfCPU()
	began := b.fs.Machine()
	win := drive(ctx, d, s.ops)
	ended := b.fs.Machine()
	after, _ := meter.SelfCPU()
	win.usage, win.end = stop()
	win.client = after - before
	win.dials = s.dials() - dials
	win.others = ended.Others(began, b.own(t, win))
	b.quieten(ctx, t, &win)
	return win
}

// own returns the CPU time that the server and the load generator used in the window. If the
// server runs within the load generator's process, this process counts only once.
func (b *bench) own(t *target, win window) time.Duration {
	if slices.Contains(t.pids, os.Getpid()) {
		return win.usage.CPU() // the server is in the load generator
	}
	return win.usage.CPU() + win.client
}

// prepare finds the target's processes, and pushes the images that the workloads read, unless
// the target has them from an earlier run.
func (b *bench) prepare(ctx context.Context, t *target) error {
	if err := t.findPIDs(ctx, b.fs); err != nil {
		return err
	}
	if len(t.pids) == 0 {
		b.logf("%s: its process isn't known, so neither is its CPU time nor its memory; name it with ,pid=PID", t.name)
	} else {
		b.logf("%s: measuring process %v and its children", t.name, t.pids)
	}
	for _, pid := range t.pids {
		if pid == os.Getpid() {
			b.logf("%s: runs in the load generator, whose CPU time it is charged with", t.name)
		}
	}
	if b.fill > 0 && b.isFilled(ctx, t) {
		b.logf("%s: holds the fill of an earlier run: its first table isn't that of an empty registry", t.name)
	}
	err := b.each(ctx, t, b.pushWorkers, b.hot, func(ctx context.Context, p *pusher, i int) error {
		img := b.fixture.hot[i]
		if err := p.ensure(ctx, b.readRepo(), img.blobs...); err != nil {
			return err
		}
		return p.manifest(ctx, b.readRepo(), fixtureTag(i), img.manifest)
	})
	if err != nil {
		return err
	}
	if err := b.prepareTags(ctx, t); err != nil {
		return err
	}
	if err := b.prepareMany(ctx, t); err != nil {
		return err
	}
	return b.preparePulls(ctx, t)
}

// runs returns whether the workload with this name was selected.
func (b *bench) runs(name string) bool {
	return slices.ContainsFunc(b.workloads, func(w workload) bool { return w.name == name })
}

// prepareTags pushes the repository whose tags the workload tags-1000 lists. It does nothing
// if that workload isn't selected.
func (b *bench) prepareTags(ctx context.Context, t *target) error {
	if !b.runs(tagsWorkload) {
		return nil
	}
	img := b.fixture.hot[0]
	p := newPusher(t, b.options)
	defer p.close()
	if err := p.ensure(ctx, b.tagsRepo(), img.blobs...); err != nil {
		return err
	}
	return b.each(ctx, t, b.pushWorkers, tagCount, func(ctx context.Context, p *pusher, i int) error {
		return p.manifest(ctx, b.tagsRepo(), fmt.Sprintf("t%04d", i), img.manifest)
	})
}

func (b *bench) isFilled(ctx context.Context, t *target) bool {
	p := newPusher(t, b.options)
	defer p.close()
	path := "/v2/" + b.fillRepo(0) + "/manifests/" + fillTag(0)
	_, err := p.exchange(ctx, http.MethodHead, path, nil, http.StatusOK, "Accept: "+mediaManifest)
	return err == nil
}

// each calls fn with each of the numbers 0 to n-1, on up to `workers` connections at once.
// After the first error it begins no further call, and returns the error.
func (b *bench) each(ctx context.Context, t *target, workers, n int, fn func(context.Context, *pusher, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := b.counted(t, workers, n, func(ctx context.Context, p *pusher, i int) error {
		err := fn(ctx, p, i)
		if err != nil {
			cancel(err)
		}
		return err
	})
	defer s.close()
	drive(ctx, 0, s.ops)
	return context.Cause(ctx)
}

// counted returns a session with up to `workers` connections. Its operations together call fn
// once with each of the numbers 0 to n-1; after that each returns errDone.
func (b *bench) counted(t *target, workers, n int, fn func(context.Context, *pusher, int) error) *session {
	var next atomic.Int64
	s := &session{}
	for range min(workers, n) {
		p := newPusher(t, b.options)
		s.conns = append(s.conns, p.conn)
		s.ops = append(s.ops, func(ctx context.Context) error {
			i := int(next.Add(1)) - 1
			if i >= n {
				return errDone
			}
			return fn(ctx, p, i)
		})
	}
	return s
}

func fillTag(i int) string { return fmt.Sprintf("m%d", i) }

// fillTarget pushes b.fill different manifests, each under a tag, and distributes them over
// b.fillRepos repositories. All manifests have the same configuration and layer. It returns
// the measurements of the pushes.
func (b *bench) fillTarget(ctx context.Context, t *target) (window, error) {
	conf, content := b.fixture.hot[0].blobs[0], b.fixture.small(0)
	err := b.each(ctx, t, b.fillWorkers, b.fillRepos, func(ctx context.Context, p *pusher, i int) error {
		return p.ensure(ctx, b.fillRepo(i), conf, content)
	})
	if err != nil {
		return window{}, err
	}
	b.logf("filling %s with %d manifests", t.name, b.fill)
	s := b.counted(t, b.fillWorkers, b.fill, func(ctx context.Context, p *pusher, i int) error {
		annotations := map[string]string{"bench.n": fmt.Sprint(i)}
		img := newImage(conf, []blob{content}, annotations, 0)
		return p.manifest(ctx, b.fillRepo(i%b.fillRepos), fillTag(i), img.manifest)
	})
	defer s.close()
	win := b.metered(ctx, t, 0, s)
	b.logf("filled %s in %s, %d errors", t.name, win.elapsed.Round(time.Millisecond), win.errors)
	return win, ctx.Err()
}
