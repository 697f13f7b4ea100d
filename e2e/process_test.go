package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// process is a server process that a test has started.
type process struct {
	name   string
	cmd    *exec.Cmd
	out    *output
	exited chan struct{}
	err    error // of Wait, once exited is closed
}

// startProcess starts `cmd` as a process, which the kernel kills when the test process ends.
func startProcess(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, out: newOutput(), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	// Wait must return even if a child of the process still has the output pipe open.
	cmd.WaitDelay = 10 * time.Second
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = endsWithParent()
	}
	started := make(chan error)
	go func() {
		// The kernel kills the child when the thread that started it ends. Therefore this
		// goroutine keeps its thread until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		close(started)
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// running returns whether the process is still running.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends `sig` to the process, waits until the process has ended, and returns the result
// of Wait. It returns an error if the process still runs after the time `within`.
func (p *process) signal(sig os.Signal, within time.Duration) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %v to %s: %w", sig, p.name, err)
	}
	select {
	case <-p.exited:
		return p.err
	case <-time.After(within):
		return fmt.Errorf("%s still runs %v after %v", p.name, within, sig)
	}
}

// kill kills the process (SIGKILL) and waits until it has ended.
func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it has ended already
	<-p.exited
}

// waitFor calls `ready` again and again until it returns nil. It returns an error if the
// process ends first, or if `ready` still fails after the time `within`.
func (p *process) waitFor(ctx context.Context, within time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended: %v\n%s", p.name, p.err, p.out.String())
		case <-ctx.Done():
			return fmt.Errorf("%s isn't ready after %v: %w\n%s", p.name, within, err, p.out.String())
		case <-p.out.written:
		case <-tick.C:
		}
	}
}

// output keeps what a process prints.
type output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	written chan struct{} // has one element after a write
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.buf.Write(p)
}

// String returns everything so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// tail returns the last n lines.
func (o *output) tail(n int) string {
	lines := strings.Split(strings.TrimRight(o.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// childEnv returns the environment for a child process: the environment of this process
// without the variables that set Purser's settings, followed by `extra`. The machine's configuration
// isn't read unless `extra` says so.
func childEnv(extra ...string) []string {
	env := []string{"PURSER_CONFIG="}
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "PURSER_") && !strings.HasPrefix(entry, "PURSER_POSTGRES_BIN=") &&
			!strings.HasPrefix(entry, "PURSER_TEST_RUN=") {
			continue
		}
		env = append(env, entry)
	}
	return append(env, extra...)
}

// eventually calls `what` again and again until it returns nil. If it still returns an error
// after the time `within`, the test fails with that error.
func eventually(t testing.TB, within time.Duration, what func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := what()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
