// Package auth measures the cost of access control: the CPU time of pulls by registry token and
// by password beside that of pulls from an open registry, and how long pulls by token take
// while others log in.
//
//	go build -o /tmp/purser ./cmd/purser
//	go run ./bench auth -purser /tmp/purser
//
// It starts two registries with the given program, one with access control and one without, in
// a directory that it removes afterwards. The windows of the two alternate, so that noise on
// the machine affects both alike. Linux only.
package auth

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

type settings struct {
	out          io.Writer
	purser, dir  string
	window       time.Duration
	rounds, conn int
	logins       int // per second
}

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("auth", flag.ContinueOnError)
	flag.SetOutput(stderr)
	s := settings{out: stdout}
	flag.StringVar(&s.purser, "purser", "", "the program purser")
	flag.StringVar(&s.dir, "dir", "", "directory for the registries; default the temporary directory")
	flag.DurationVar(&s.window, "d", 3*time.Second, "time of one window")
	flag.IntVar(&s.rounds, "rounds", 5, "windows of each kind")
	flag.IntVar(&s.conn, "c", 8, "connections")
	flag.IntVar(&s.logins, "logins", 100, "log-ins per second beside the pulls of the second table")
	if err := flag.Parse(args); err != nil {
		return err
	}
	if s.purser == "" || s.window <= 0 || s.rounds < 1 || s.conn < 1 || s.logins < 1 {
		return errors.New("usage: auth -purser PROGRAM [flags]")
	}
	base, err := os.MkdirTemp(s.dir, "purser-bench-auth-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	return s.run(ctx, base)
}

func (s settings) run(ctx context.Context, base string) error {
	open, err := start(ctx, s.purser, base+"/open", false)
	if err != nil {
		return err
	}
	defer open.Stop()
	closed, err := start(ctx, s.purser, base+"/closed", true)
	if err != nil {
		return err
	}
	defer closed.Stop()
	token, err := closed.token(ctx)
	if err != nil {
		return err
	}
	kinds := []kind{{"open", open, ""}, {"token", closed, "Bearer " + token}, {"Basic", closed, closed.Basic}}
	if err := s.compare(ctx, kinds); err != nil {
		return err
	}
	return s.beside(ctx, kinds[1])
}

// kind is a registry with the credentials of its clients.
type kind struct {
	name string
	*registry
	authorization string
}

// figures are the results of one kind's windows for one request.
type figures struct {
	cpu      []float64 // µs per request, of server and database
	latency  []time.Duration
	requests int
}

// compare measures each request with each kind of credentials.
func (s settings) compare(ctx context.Context, kinds []kind) error {
	fmt.Fprintf(s.out, "%-16s %-6s %10s %8s %8s %10s %10s\n", "request", "by", "CPU µs", "min", "max", "to open", "p99")
	for _, q := range requests {
		found := make([]figures, len(kinds))
		for round := range s.rounds {
			for i := range kinds {
				j := (i + round) % len(kinds) // each kind comes first in turn
				if err := s.measure(ctx, kinds[j], q, &found[j]); err != nil {
					return fmt.Errorf("%s by %s: %w", q.name, kinds[j].name, err)
				}
			}
		}
		base := median(found[0].cpu)
		for i, f := range found {
			slices.Sort(f.latency)
			fmt.Fprintf(s.out, "%-16s %-6s %10.1f %8.1f %8.1f %+9.1f%% %10s\n", q.name, kinds[i].name, median(f.cpu), slices.Min(f.cpu), slices.Max(f.cpu),
				100*(median(f.cpu)/base-1), meter.Percentile(f.latency, 99).Round(10*time.Microsecond))
		}
	}
	return nil
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// measure runs one window at full load.
func (s settings) measure(ctx context.Context, k kind, q request, f *figures) error {
	if _, err := k.load(ctx, q, k.authorization, s.conn, s.window/10, 0); err != nil { // fills caches
		return err
	}
	runtime.GC()
	before := k.Meter.Now(false)
	took, err := k.load(ctx, q, k.authorization, s.conn, s.window, 0)
	if err != nil {
		return err
	}
	after := k.Meter.Now(false)
	if !before.Known || !after.Known || len(took) == 0 {
		return errors.New("the CPU time of the registry is unknown")
	}
	f.cpu = append(f.cpu, float64((after.CPU()-before.CPU()).Nanoseconds())/1e3/float64(len(took)))
	f.latency = append(f.latency, took...)
	f.requests += len(took)
	return nil
}

// beside measures pulls by token at a low rate, alone and beside log-ins with wrong passwords,
// each another.
func (s settings) beside(ctx context.Context, k kind) error {
	const every = 10 * time.Millisecond // of each connection
	var alone, busy []time.Duration
	answers := map[int]int{}
	for range s.rounds {
		took, err := k.load(ctx, requests[0], k.authorization, s.conn, s.window, every)
		if err != nil {
			return err
		}
		alone = append(alone, took...)
		guesses, stop := context.WithCancel(ctx)
		done := make(chan map[int]int, 1)
		go func() { done <- k.guess(guesses, s.logins) }()
		took, err = k.load(ctx, requests[0], k.authorization, s.conn, s.window, every)
		stop()
		for status, n := range <-done {
			answers[status] += n
		}
		if err != nil {
			return err
		}
		busy = append(busy, took...)
	}
	fmt.Fprintf(s.out, "\n%-28s %8s %10s %10s %10s\n", "pulls by token", "n", "p50", "p99", "p99.9")
	for _, row := range []struct {
		name string
		took []time.Duration
	}{{"alone", alone}, {fmt.Sprintf("beside %d log-ins per second", s.logins), busy}} {
		slices.Sort(row.took)
		at := func(p float64) time.Duration { return meter.Percentile(row.took, p).Round(10 * time.Microsecond) }
		fmt.Fprintf(s.out, "%-28s %8d %10s %10s %10s\n", row.name, len(row.took), at(50), at(99), at(99.9))
	}
	fmt.Fprintf(s.out, "answers to the log-ins: %d wrong password, %d too many at once, %d other\n", answers[401], answers[429],
		cmp.Or(sum(answers)-answers[401]-answers[429], 0))
	return nil
}

func sum(counts map[int]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
