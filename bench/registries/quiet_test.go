package registries

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestParseMachine(t *testing.T) {
	t.Parallel()
	const first = "cpu  100 10 50 700 40 3 7 90 30 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	m, err := parseMachine(first)
	want := machine{known: true, all: 10 * time.Second, busy: 1700 * time.Millisecond, stolen: 900 * time.Millisecond}
	if err != nil || m != want {
		t.Errorf("%+v, %v, want %+v", m, err, want)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu a 2 3 4 5 6 7 8"} {
		if m, err := parseMachine(text); err == nil || m.known {
			t.Errorf("%q: %+v", text, m)
		}
	}
	later, err := parseMachine("cpu 300 10 50 1400 40 3 7 190\n")
	if err != nil {
		t.Fatal(err)
	}
	others := later.others(m, 500*time.Millisecond)
	if !others.known || others.all != 10*time.Second || others.busy != 1500*time.Millisecond || others.stolen != time.Second {
		t.Errorf("%+v", others)
	}
	if others.noisy(0.3) || !others.noisy(0.2) || (machine{}).noisy(0.1) {
		t.Errorf("noisy: %v", others.share(others.busy+others.stolen))
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{3, 1}, spread{1, 2, 3}},
		{[]float64{5, 1, 2}, spread{1, 2, 5}},
	} {
		if got := newSpread(c.values); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.values, got, c.want)
		}
	}
}

// CPU time that a server takes after a window for the window's requests counts as part of
// the window, and bench waits for it.
func TestDeferredWorkCounts(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this system has no /proc, so that CPU times aren't known")
	}
	// It works for as long as its input has lines, then rests.
	worker := exec.Command("sh", "-c", `while read -r line; do i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; done; exec sleep 600`)
	input, err := worker.StdinPipe()
	if err == nil {
		err = worker.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		worker.Process.Kill() //nolint:errcheck // it has ended
		worker.Wait()         //nolint:errcheck // it was killed
	})
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/later" {
			asked.Add(1)
			io.WriteString(input, strings.Repeat("work\n", 5)) //nolint:errcheck // without it the test fails
			input.Close()                                      //nolint:errcheck // likewise
		}
	}))
	t.Cleanup(srv.Close)
	target := &target{pids: []int{worker.Process.Pid}, after: "/later"}
	if err := target.setURL(srv.URL, false); err != nil {
		t.Fatal(err)
	}
	b := &bench{options: &options{quiet: time.Minute, timeout: time.Minute, noise: 1}, fs: procfs{root: "/proc"}, log: io.Discard}
	win := b.metered(t.Context(), target, 0, &session{})
	if asked.Load() != 1 || win.errors > 0 || !win.usage.known {
		t.Fatalf("asked %d times, %+v", asked.Load(), win)
	}
	if win.usage.deferred <= 0 || win.usage.cpu() < win.usage.deferred {
		t.Errorf("deferred %v of %v", win.usage.deferred, win.usage.cpu())
	}
	m := newMeter(b.fs, target.pids)
	if rest := m.now(false).cpu() - win.end.cpu() - win.usage.deferred; rest > win.usage.deferred/2 {
		t.Errorf("%v were used after it was quiet, %v before", rest, win.usage.deferred)
	}
}

// Registries go first in turn.
func TestOrderRotates(t *testing.T) {
	t.Parallel()
	a, b := startRegistry(t), startRegistry(t)
	var stdout, stderr bytes.Buffer
	args := small(t, "-fill", "0", "-w", "head-blob", "alpha="+a.URL, "beta="+b.URL)
	if err := Run(context.WithoutCancel(t.Context()), args, &stdout, &stderr); err != nil {
		t.Fatal(err)
	}
	var order []string
	for line := range strings.Lines(stderr.String()) {
		if f := strings.Fields(line); len(f) > 4 && f[2] == "round" {
			order = append(order, f[3]+" "+f[4])
		}
	}
	if got, want := strings.Join(order, ", "), "1/2 alpha:, 1/2 beta:, 2/2 beta:, 2/2 alpha:"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
