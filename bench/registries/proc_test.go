package registries

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// statLine is a line of /proc/PID/stat with the fields that are read; times in
// hundredths of a second, rss in pages.
func statLine(pid int, comm string, ppid, utime, stime, cutime, cstime, rss int) string {
	return fmt.Sprintf("%d (%s) S %d 1 1 0 -1 4194560 1 2 3 4 %d %d %d %d 20 0 1 0 123 456 %d 18446744073709551615 1 1\n",
		pid, comm, ppid, utime, stime, cutime, cstime, rss)
}

// fakeProc makes a proc file system of stat lines.
func fakeProc(t *testing.T, lines map[int]string) procfs {
	t.Helper()
	fs := procfs{root: t.TempDir()}
	for pid, line := range lines {
		write(t, filepath.Join(fs.root, strconv.Itoa(pid), "stat"), line)
	}
	return fs
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	s, err := parseStat([]byte(statLine(42, "a) (b c", 7, 100, 50, 20, 5, 3)))
	if err != nil {
		t.Fatal(err)
	}
	want := procStat{
		pid: 42, ppid: 7, comm: "a) (b c", own: 1500 * time.Millisecond,
		reaped: 250 * time.Millisecond, rss: 3 * int64(os.Getpagesize()),
	}
	if s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	for _, bad := range []string{"", "1 no name", "1 (x) S 2 3", "x (x) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 1 4 5 6"} {
		if s, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was taken as %+v", bad, s)
		}
	}
}

func TestTree(t *testing.T) {
	t.Parallel()
	fs := fakeProc(t, map[int]string{
		1:  statLine(1, "init", 0, 0, 0, 0, 0, 1),
		10: statLine(10, "sh", 1, 0, 0, 0, 0, 1),
		20: statLine(20, "purser", 10, 1, 0, 0, 0, 1),
		21: statLine(21, "postgres", 20, 0, 0, 0, 0, 1),
		22: statLine(22, "postgres", 21, 0, 0, 0, 0, 1),
		30: statLine(30, "bench", 10, 0, 0, 0, 0, 1),
		31: statLine(31, "bench", 30, 0, 0, 0, 0, 1),
	})
	for _, c := range []struct{ roots, want []int }{
		{[]int{20}, []int{20, 21, 22}},
		{[]int{21}, []int{21, 22}},
		{[]int{20, 22}, []int{20, 21, 22}},
		{[]int{10}, []int{10, 20, 21, 22}}, // without the load generator, 30
		{[]int{30}, []int{30, 31}},
		{[]int{31}, []int{31}},
	} {
		tree, err := fs.tree(c.roots, 30)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, p := range tree {
			got = append(got, p.pid)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("tree of %v is %v, want %v", c.roots, got, c.want)
		}
	}
	if _, err := fs.tree([]int{99}, 30); err == nil {
		t.Error("a process that isn't there has a tree")
	}
}

// TestMeterCountsEndedChildren: a backend's time moves to its parent's when it
// has ended, and the database's total must not change by it.
func TestMeterCountsEndedChildren(t *testing.T) {
	t.Parallel()
	fs := fakeProc(t, map[int]string{
		20: statLine(20, "purser", 1, 300, 100, 0, 0, 10),
		21: statLine(21, "postgres", 20, 10, 10, 5, 5, 20),
		22: statLine(22, "postgres", 21, 60, 10, 0, 0, 30),
	})
	m := newMeter(fs, []int{20})
	before := m.now(true)
	if before.server != 4*time.Second || before.database != time.Second || before.rss != 60*int64(os.Getpagesize()) {
		t.Errorf("%+v", before)
	}
	if !before.known || before.pss != 0 {
		t.Errorf("PSS without smaps_rollup: %+v", before)
	}
	if err := os.RemoveAll(filepath.Join(fs.root, "22")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(fs.root, "21", "stat"), statLine(21, "postgres", 20, 10, 10, 65, 15, 20))
	for pid, kib := range map[int]int{20: 100, 21: 50} {
		write(t, filepath.Join(fs.root, strconv.Itoa(pid), "smaps_rollup"), fmt.Sprintf("1-2 ---p [rollup]\nRss: 9 kB\nPss:   %d kB\nPss_Dirty: 7 kB\n", kib))
	}
	after := m.now(true)
	if after.server != before.server || after.database != before.database {
		t.Errorf("%+v, before %+v", after, before)
	}
	if after.pss != 150<<10 {
		t.Errorf("PSS %d, want %d", after.pss, 150<<10)
	}
	if u, _ := newMeter(fs, nil).watch()(); u.known {
		t.Errorf("measured no process: %+v", u)
	}
	if u, _ := newMeter(fs, []int{99}).watch()(); u.known {
		t.Errorf("measured a process that isn't there: %+v", u)
	}
}

func TestParsePSS(t *testing.T) {
	t.Parallel()
	if got, err := parsePSS([]byte("Rss: 12 kB\nPss:      1234 kB\n")); err != nil || got != 1234<<10 {
		t.Errorf("%d, %v", got, err)
	}
	for _, bad := range []string{"", "Rss: 1 kB\n", "Pss: many kB\n"} {
		if got, err := parsePSS([]byte(bad)); err == nil {
			t.Errorf("%q was taken as %d", bad, got)
		}
	}
}

func TestParseListener(t *testing.T) {
	t.Parallel()
	loop4, loop6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	line := func(addr, state string) string {
		return "   0: " + addr + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n"
	}
	for _, c := range []struct {
		name, line string
		ip         netip.Addr
		found      bool
	}{
		{"IPv4", line(procAddr(t, "127.0.0.1:5000"), "0A"), loop4, true},
		{"any IPv4", line(procAddr(t, "0.0.0.0:5000"), "0A"), loop4, true},
		{"any IPv6 takes IPv4", line(procAddr(t, "[::]:5000"), "0A"), loop4, true},
		{"IPv6", line(procAddr(t, "[::1]:5000"), "0A"), loop6, true},
		{"mapped", line(procAddr(t, "[::ffff:127.0.0.1]:5000"), "0A"), loop4, true},
		{"another address", line(procAddr(t, "127.0.0.2:5000"), "0A"), loop4, false},
		{"another port", line(procAddr(t, "127.0.0.1:5001"), "0A"), loop4, false},
		{"established", line(procAddr(t, "127.0.0.1:5000"), "01"), loop4, false},
		{"title", "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n", loop4, false},
		{"empty", "", loop4, false},
	} {
		inode, ok := parseListener(c.line, []netip.Addr{c.ip}, 5000)
		if ok != c.found || ok && inode != "4711" {
			t.Errorf("%s: %q, %v", c.name, inode, ok)
		}
	}
}

// procAddr prints an address as /proc/net/tcp does: words of 32 bits, each as a
// number of this machine.
func procAddr(t *testing.T, s string) string {
	t.Helper()
	ap := netip.MustParseAddrPort(s)
	out := ""
	for word := range slices.Chunk(ap.Addr().AsSlice(), 4) {
		out += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	return fmt.Sprintf("%s:%04X", out, ap.Port())
}

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
	if err := tg.findPIDs(t.Context(), procfs{root: "/proc"}); err != nil {
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
	if err := free.findPIDs(t.Context(), procfs{root: t.TempDir()}); err != nil || len(free.pids) != 0 {
		t.Errorf("without /proc: %v, %v", free.pids, err)
	}
}

// TestMeterOfARealProcess measures the baselines' child while it works.
// It doesn't run beside TestRunMeasuresEveryWorkloadOnEveryRegistry, whose registries
// are this process: when a child ends, its CPU time is rounded to hundredths of a second.
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
	b := &bench{options: o, fixture: newFixture(1), fs: procfs{root: "/proc"}, child: child, log: io.Discard}
	w, err := selectWorkloads("layer-1GiB")
	if err != nil {
		t.Fatal(err)
	}
	win := b.window(t.Context(), w[0], child)
	if win.errors != 0 || len(win.latencies) != 1 || !win.usage.known || win.usage.server <= 0 || win.usage.rss <= 0 {
		t.Errorf("window %+v", win)
	}
	if win.usage.database != 0 {
		t.Errorf("database time without a database: %v", win.usage.database)
	}
	stop()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// TestMeterWhileChildrenEnd reads this process again and again while children of it
// end: the CPU time of a tree never falls by more than the rounding of a child's.
func TestMeterWhileChildrenEnd(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc: processes aren't measured here")
	}
	const children = 10
	ended := make(chan error)
	go func() {
		for range children {
			ended <- exec.Command("sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done").Run()
		}
		close(ended)
	}()
	m := newMeter(procfs{root: "/proc"}, []int{os.Getpid()})
	const rounding = 2 * time.Second / userHZ // user and system time
	before := m.now(false)
	for {
		select {
		case err, ok := <-ended:
			if !ok {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		default:
		}
		now := m.now(false)
		if !now.known || now.cpu() < before.cpu()-rounding {
			t.Fatalf("CPU time %v after %v, known %v", now.cpu(), before.cpu(), now.known)
		}
		before = now
	}
}
