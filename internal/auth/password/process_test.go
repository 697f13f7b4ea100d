package password

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/testscale"
)

// processes is a command for HasherOptions, and how often it was asked for.
type processes struct {
	started atomic.Int64
	mu      sync.Mutex
	last    []*exec.Cmd
}

func (p *processes) command() *exec.Cmd {
	p.started.Add(1)
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{workVariable + "=1000000"}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = append(p.last, cmd)
	return cmd
}

// TestProcesses: hashes that other processes compute must be those that this process computes,
// also for passwords that aren't UTF-8, and for stored hashes that can't be read.
func TestProcesses(t *testing.T) {
	t.Parallel()
	var p processes
	var log bytes.Buffer
	h := NewHasher(HasherOptions{Workers: 2, Command: p.command, Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer h.Close()
	here := NewHasher(HasherOptions{})
	for _, password := range []string{"correct horse", "\xff\x00\n\"", strings.Repeat("x", MaxLength)} {
		hash, err := h.Hash(t.Context(), password)
		must(t, err)
		for _, hasher := range []*Hasher{h, here} {
			if ok, err := hasher.Verify(t.Context(), password, hash); !ok || err != nil {
				t.Errorf("%q: %v, %v", password, ok, err)
			}
			if ok, err := hasher.Verify(t.Context(), password+"x", hash); ok || err != nil {
				t.Errorf("%qx: %v, %v", password, ok, err)
			}
		}
	}
	if ok, err := h.Verify(t.Context(), "x", "plain"); ok || !errors.Is(err, errHash) {
		t.Errorf("a hash that can't be read: %v, %v", ok, err)
	}
	if n := p.started.Load(); n < 1 || n > 2 {
		t.Errorf("%d processes were started, want one for each worker at most", n)
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
}

// TestProcessesThatFail: while processes end in the middle of a task, can't be started or answer
// rubbish, each password is checked, and rightly.
func TestProcessesThatFail(t *testing.T) {
	t.Parallel()
	hash, err := NewHasher(HasherOptions{}).Hash(t.Context(), "correct horse")
	must(t, err)
	var p processes
	var log bytes.Buffer
	h := NewHasher(HasherOptions{Workers: 2, Queue: 1000, Log: slog.New(slog.NewTextHandler(&log, nil)), Command: func() *exec.Cmd {
		cmd := p.command()
		switch n := p.started.Load(); n % 4 {
		case 0:
			return exec.Command("/nonexistent/program")
		case 1:
			return exec.Command("echo", "rubbish")
		default: // it ends in the middle of its second or third task
			cmd.Env = []string{workVariable + "=" + strconv.FormatInt(n%4, 10)}
			return cmd
		}
	}})
	var wg sync.WaitGroup
	for i := range testscale.Pick(20, 100) {
		wg.Go(func() {
			want := i%2 == 0
			password := "correct horse"
			if !want {
				password = fmt.Sprint("wrong", i)
			}
			if ok, err := h.Verify(t.Context(), password, hash); err != nil || ok != want {
				t.Errorf("%s: %v, %v", password, ok, err)
			}
		})
	}
	wg.Wait()
	h.Close()
	if ok, err := h.Verify(t.Context(), "correct horse", hash); !ok || err != nil {
		t.Errorf("after Close: %v, %v", ok, err)
	}
	if !strings.Contains(log.String(), "failed") || strings.Contains(log.String(), "horse") || strings.Contains(log.String(), "argon2id") {
		t.Errorf("the log must tell of failures, and nothing of passwords: %s", log.String())
	}
	for _, cmd := range p.last {
		if cmd.Process != nil && cmd.ProcessState == nil {
			t.Errorf("process %d still runs", cmd.Process.Pid)
		}
	}
}
