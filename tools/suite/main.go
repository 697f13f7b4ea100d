// Command suite runs the checks and tests of Purser step by step, for "make test" and "make
// test-all":
//
//	go run ./tools/suite fast
//	go run ./tools/suite all
//
// or one of their parts: lint, unit, e2e, ops.
//
// A step that fails ends nothing: the steps after it run too. At the end suite prints how long
// each step took, the slowest tests, and last of all what failed: each test with its message
// and the command that runs it alone. It exits with 1 if anything failed, and with 130 if it
// was interrupted; then it says what it was running.
//
// "make test" tests without the race detector what starts no goroutines. With it, tests take
// longer, and every package is compiled once more. tools/race lists the packages that are tested
// with it; "make test-all" tests all of them with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) != 2 || plans[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: go run ./tools/suite fast|all|lint|unit|e2e|ops")
		os.Exit(2)
	}
	shareCache()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	r := &run{ctx: ctx, results: newResults(), cacheBefore: cacheBytes()}
	for _, s := range plans[os.Args[1]] {
		r.step(s)
	}
	os.Exit(r.report(os.Stdout))
}

// shareCache lets the commands of the steps build with -trimpath. What they build is then the
// same in every checkout, so that a fresh clone finds it in Go's cache.
func shareCache() {
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -trimpath")
	if err := os.Setenv("GOFLAGS", flags); err != nil {
		panic(err) // the name of the variable is valid
	}
}

// step is one part of a run.
type step struct {
	name string
	// command is run as it is, or read as the events of "go test -json" if tests is true.
	command func() ([]string, error)
	env     []string // in addition to the environment
	tests   bool
	// budgeted says that the times of this step's tests are compared with the budgets.
	budgeted bool
}

// took is how long a step took, and whether it failed.
type took struct {
	name    string
	seconds float64
	err     error
}

// run is what has happened so far.
type run struct {
	ctx         context.Context
	steps       []took
	results     *results
	cacheBefore int64 // bytes of Go's build cache
}

func (r *run) step(s step) {
	if r.ctx.Err() != nil {
		return
	}
	began := time.Now()
	fmt.Printf("==> %s %s\n", began.Format(time.TimeOnly), s.name)
	args, err := s.command()
	if err == nil {
		err = r.execute(s, args)
	}
	if s.budgeted && r.ctx.Err() == nil {
		err = errors.Join(err, r.measureAgain(s))
	}
	seconds := time.Since(began).Seconds()
	outcome := "passed"
	if err != nil {
		outcome = "FAILED: " + err.Error()
	}
	fmt.Printf("==> %s: %s, %.0f s\n", s.name, outcome, seconds)
	r.steps = append(r.steps, took{s.name, seconds, err})
}

// execute runs one command. When the run is interrupted, the command gets SIGTERM, and SIGKILL
// after 20 s.
func (r *run) execute(s step, args []string) error {
	cmd := exec.CommandContext(r.ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stderr = os.Stderr
	if !s.tests {
		cmd.Stdout = os.Stdout
		return cmd.Run()
	}
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := r.results.read(events, s, args)
	err = cmd.Wait()
	return errors.Join(readErr, err)
}
