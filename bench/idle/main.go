// Package idle measures the cost of a server that gets no requests: the number of its
// processes, and for each process its CPU time in nanoseconds and how often it is woken.
//
//	go run ./bench idle -wait 4m -d 2m PID…
//
// PID is the id of the server's process. Name also every process that the server didn't start
// itself, such as PostgreSQL's postmaster. The descendants of these processes are included.
// Linux only.
package idle

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("idle", flag.ContinueOnError)
	flag.SetOutput(stderr)
	wait := flag.Duration("wait", 4*time.Minute, "time before the measurement, for what was put off")
	window := flag.Duration("d", 2*time.Minute, "length of the measurement; background work has a period of a minute")
	if err := flag.Parse(args); err != nil {
		return err
	}
	var roots []int
	for _, arg := range flag.Args() {
		pid, err := strconv.Atoi(arg)
		if err != nil {
			return fmt.Errorf("%q is no process id", arg)
		}
		roots = append(roots, pid)
	}
	if len(roots) == 0 || *window <= 0 {
		return errors.New("usage: idle [-wait 4m] [-d 2m] PID…")
	}
	if err := sleep(ctx, *wait); err != nil {
		return err
	}
	return run(ctx, stdout, roots, *window)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// process has the figures that /proc shows for one process.
type process struct {
	name     string
	parent   int
	cpu      time.Duration // of its threads
	switches int64         // of its threads: how often they gave up the CPU
	ended    time.Duration // of its children that have ended, to a hundredth of a second
}

// run measures the processes in `roots` and their descendants for the time `window`, and
// prints the figures of each process and their sums.
func run(ctx context.Context, out io.Writer, roots []int, window time.Duration) error {
	before, err := tree("/proc", roots)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := sleep(ctx, window); err != nil {
		return err
	}
	after, err := tree("/proc", roots)
	if err != nil {
		return err
	}
	took := time.Since(began)
	var cpu, ended time.Duration
	var switches int64
	share := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() }
	for _, pid := range slices.Sorted(maps.Keys(after)) {
		a, b := after[pid], before[pid] // b is zero for a process that began meanwhile
		fmt.Fprintf(out, "%8d %8.4f%% %7.2f/s %s\n", pid, share(a.cpu-b.cpu), float64(a.switches-b.switches)/took.Seconds(), a.name)
		cpu, switches, ended = cpu+a.cpu-b.cpu, switches+a.switches-b.switches, ended+a.ended-b.ended
	}
	fmt.Fprintf(out, "%d processes, %.3f%% of a core and %.3f%% by processes that have ended, %.1f switches/s, for %s\n",
		len(after), share(cpu), share(ended), float64(switches)/took.Seconds(), took.Round(time.Second))
	return nil
}

// tree reads the figures of the processes in `roots` and of all their descendants. `proc` is
// the directory to read, normally /proc. A process that ends while tree reads is left out.
func tree(proc string, roots []int) (map[int]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	all := map[int]process{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, err := read(filepath.Join(proc, e.Name())); err == nil {
				all[pid] = p
			}
		}
	}
	found := map[int]process{}
	for _, pid := range roots {
		p, ok := all[pid]
		if !ok {
			return nil, fmt.Errorf("there is no process %d, or this user may not read it", pid)
		}
		found[pid] = p
	}
	for more := true; more; {
		more = false
		for pid, p := range all {
			if _, known := found[pid]; known {
				continue
			}
			if _, ok := found[p.parent]; ok {
				found[pid], more = p, true
			}
		}
	}
	return found, nil
}

// read reads a process from its directory.
func read(dir string) (p process, err error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, err
	}
	// In /proc/PID/stat the process's name is in parentheses. The first field after the name
	// is number 3 of proc(5).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const parent, ended, endedSystem = 4 - 3, 16 - 3, 17 - 3
	if len(fields) <= endedSystem {
		return p, fmt.Errorf("%s has too few fields", filepath.Join(dir, "stat"))
	}
	var numbers [3]int64
	for i, field := range []int{parent, ended, endedSystem} {
		if numbers[i], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return p, err
		}
	}
	p.parent, p.ended = int(numbers[0]), time.Duration(numbers[1]+numbers[2])*time.Second/100
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return p, err
	}
	p.name = strings.TrimSpace(strings.ReplaceAll(string(line[:min(len(line), 60)]), "\x00", " "))
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return p, err
	}
	for _, t := range threads {
		cpu, switches, err := thread(filepath.Join(dir, "task", t.Name()))
		if err != nil {
			return p, err
		}
		p.cpu, p.switches = p.cpu+cpu, p.switches+switches
	}
	return p, nil
}

// thread reads a thread's CPU time, and how often the thread gave up the CPU, from the
// directory of the thread in /proc.
func thread(dir string) (cpu time.Duration, switches int64, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "schedstat"))
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(string(b), (*int64)(&cpu)); err != nil {
		return 0, 0, err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.HasSuffix(name, "ctxt_switches") {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, 0, err
			}
			switches += n
		}
	}
	return cpu, switches, nil
}
