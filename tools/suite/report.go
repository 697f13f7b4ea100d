package main

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	testBudget    = 20.0 // seconds, see yardstickSeconds
	packageBudget = 60.0 // likewise
	slowest       = 30   // how many tests are listed
	failureLines  = 40   // how many lines of a failing test's output are repeated, see excerpt
)

// report prints the summary of the run and returns the exit code. What failed stands last, so
// that the end of a log tells it.
func (r *run) report(w io.Writer) int {
	r.reportTimes(w)
	res := r.results
	interrupted := r.ctx.Err() != nil
	if interrupted {
		fmt.Fprintln(w, "\nInterrupted while these were running:")
		for n := range res.running {
			fmt.Fprintf(w, "  %s %s\n", n.pkg, n.test)
		}
	}
	var failed []string
	for _, s := range r.steps {
		if s.err != nil {
			failed = append(failed, s.name)
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", res.passed, res.failed, res.skipped)
	for _, reason := range slices.Sorted(maps.Keys(res.skips)) {
		fmt.Fprintf(w, "  skipped %d: %s\n", res.skips[reason], reason)
	}
	for _, f := range res.failures {
		fmt.Fprintf(w, "\nFAIL %s %s\n%s  run it alone: %s\n", f.pkg, f.test, indent(excerpt(withoutProgress(f.output), failureLines)), f.again)
	}
	switch {
	case len(failed) > 0:
		fmt.Fprintf(w, "\nfailed: %s\n", strings.Join(failed, ", "))
		return 1
	case interrupted:
		return 130
	}
	fmt.Fprintln(w, "all of it passed")
	return 0
}

func (r *run) reportTimes(w io.Writer) {
	tests := slices.Clone(r.results.times)
	slices.SortStableFunc(tests, func(a, b outcome) int { return cmp.Compare(b.seconds, a.seconds) })
	packages := slices.Clone(tests)
	tests = slices.DeleteFunc(tests, func(o outcome) bool { return o.test == "" })
	packages = slices.DeleteFunc(packages, func(o outcome) bool { return o.test != "" })
	fmt.Fprintf(w, "\nThe %d slowest tests, in seconds:\n", slowest)
	for _, o := range tests[:min(slowest, len(tests))] {
		fmt.Fprintf(w, "%7.1f  %s %s\n", o.seconds, o.pkg, o.test)
	}
	fmt.Fprintln(w, "\nThe ten slowest packages:")
	for _, o := range packages[:min(10, len(packages))] {
		fmt.Fprintf(w, "%7.1f  %s\n", o.seconds, o.pkg)
	}
	fmt.Fprintln(w, "\nThe steps:")
	var sum float64
	for _, s := range r.steps {
		sum += s.seconds
		outcome := ""
		if s.err != nil {
			outcome = "  FAILED"
		}
		fmt.Fprintf(w, "%7.0f  %s%s\n", s.seconds, s.name, outcome)
	}
	fmt.Fprintf(w, "%7.0f  in all. Go's build cache: %.1f GB before, %.1f after\n", sum, gigabytes(r.cacheBefore), gigabytes(cacheBytes()))
}

// withoutProgress removes the lines by which "go test -v" says that a test starts or waits.
func withoutProgress(text string) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		if !strings.HasPrefix(line, "=== ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// overBudget returns the tests and packages of a step that took longer than they may.
func (r *results) overBudget(s step) (list []outcome) {
	for _, o := range r.times {
		if o.step == s.name && o.seconds > budget(o) {
			list = append(list, o)
		}
	}
	return list
}

// budget returns the seconds that a test or a package may take. The end-to-end tests are one
// package and a step of their own; only each of them has a budget.
func budget(o outcome) float64 {
	if o.test == "" && strings.HasSuffix(o.pkg, "/e2e") {
		return math.Inf(1)
	}
	if o.test == "" {
		return packageBudget
	}
	return testBudget
}

// measureAgain runs what was over its budget again, alone, since a test is slow too because
// others run beside it. Its error names what is over its budget then, on this machine as it is while
// the test runs.
func (r *run) measureAgain(s step) error {
	var over []string
	for _, o := range r.results.overBudget(s) {
		alone := newResults()
		again := &run{ctx: r.ctx, results: alone}
		args := strings.Fields(strings.Replace(strings.ReplaceAll(o.again, "'", ""), "go test", "go test -json", 1))
		slower := slowness()
		if err := again.execute(step{name: s.name, tests: true}, args); err != nil {
			over = append(over, fmt.Sprintf("%s %s failed when it was measured again: %v", o.pkg, o.test, err))
			continue
		}
		slower = max(slower, slowness())
		if seconds := overAlone(o, alone.times, slower); seconds > 0 {
			over = append(over, fmt.Sprintf("%s %s took %.0f s, and %.0f s alone; its budget is %.0f s, times %.1f on this machine", o.pkg, o.test, o.seconds, seconds, budget(o), slower))
		}
	}
	if len(over) == 0 {
		return nil
	}
	return fmt.Errorf("over budget: %s", strings.Join(over, "; "))
}

// overAlone returns how many seconds o took when it ran alone, or 0 if it kept to its budget on a machine
// that is so many times slower. The package's time is from the beginning to the end of what ran, also if that was one test whose
// subtests ran side by side.
func overAlone(o outcome, times []outcome, slower float64) float64 {
	for _, now := range times {
		if now.test == "" && now.seconds > slower*budget(o) {
			return now.seconds
		}
	}
	return 0
}

func gigabytes(n int64) float64 { return float64(n) / 1e9 }

// cacheBytes returns the size of Go's build cache.
func cacheBytes() (sum int64) {
	dir, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return 0
	}
	filepath.WalkDir(strings.TrimSpace(string(dir)), func(_ string, d fs.DirEntry, err error) error { //nolint:errcheck // what can't be read counts as nothing
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}
