package registries

import (
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/purser-registry/purser/bench/meter"
)

func TestFindPIDsOfThisProcess(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		t.Skip("no /proc: processes aren't found here")
	}
	srv := startRegistry(t)
	tg := &target{name: "r"}
	if err := tg.setURL(srv.URL, false); err != nil {
		t.Fatal(err)
	}
	if err := tg.findPIDs(t.Context(), meter.Proc{Root: "/proc"}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(tg.pids, os.Getpid()) {
		t.Errorf("processes %v, want %d", tg.pids, os.Getpid())
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	free := &target{name: "none"}
	if err := free.setURL("http://"+addr, false); err != nil {
		t.Fatal(err)
	}
	if err := free.findPIDs(t.Context(), meter.Proc{Root: t.TempDir()}); err != nil || len(free.pids) != 0 {
		t.Errorf("without /proc: %v, %v", free.pids, err)
	}
}

// TestMeterOfARealProcess measures the child process that serves the baselines while it works.
// The test isn't parallel: TestRunMeasuresEveryWorkloadOnEveryRegistry measures the CPU time
// of this process, to which the system adds that of the ended child, known only to a hundredth
// of a second.
func TestMeterOfARealProcess(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc: processes aren't measured here")
	}
	dir := t.TempDir()
	child, stop, err := startBaselines(dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o, err := parseOptions([]string{"-layer-mib", "8", "r=" + child.origin}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{options: o, fixture: newFixture(1), fs: meter.Proc{Root: "/proc"}, child: child, log: io.Discard}
	w, err := selectWorkloads("layer-1GiB")
	if err != nil {
		t.Fatal(err)
	}
	win := b.window(t.Context(), w[0], child)
	if win.errors != 0 || len(win.latencies) != 1 || !win.usage.Known || win.usage.Server <= 0 || win.usage.RSS <= 0 {
		t.Errorf("window %+v", win)
	}
	if win.usage.Database != 0 {
		t.Errorf("database time without a database: %v", win.usage.Database)
	}
	stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}
