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

	"github.com/purser-registry/purser/bench/meter"
)

// A server still uses CPU time for the requests of a window when the window is over. The
// program must wait until the server is quiet, and add this time to the window.
func TestDeferredWorkCounts(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this system has no /proc, so that CPU times aren't known")
	}
	// This process stands for the server's. For each line of its input it computes for a
	// while. When its input ends, it sleeps.
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
	b := &bench{options: &options{quiet: time.Minute, timeout: time.Minute, noise: 1}, fs: meter.Proc{Root: "/proc"}, log: io.Discard}
	win := b.metered(t.Context(), target, 0, &session{})
	if asked.Load() != 1 || win.errors > 0 || !win.usage.Known {
		t.Fatalf("asked %d times, %+v", asked.Load(), win)
	}
	if win.usage.Deferred <= 0 || win.usage.CPU() < win.usage.Deferred {
		t.Errorf("deferred %v of %v", win.usage.Deferred, win.usage.CPU())
	}
	m := meter.New(b.fs, target.pids)
	if rest := m.Now(false).CPU() - win.end.CPU() - win.usage.Deferred; rest > win.usage.Deferred/2 {
		t.Errorf("%v were used after it was quiet, %v before", rest, win.usage.Deferred)
	}
}

// There are two registries and two rounds. The test expects that each registry is the first to
// be measured in one of the rounds.
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
