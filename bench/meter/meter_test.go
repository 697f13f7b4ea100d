package meter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// statLine returns a line of /proc/PID/stat with the given values in the fields that parseStat
// reads. Times are in hundredths of a second, rss is in pages.
func statLine(pid int, comm string, ppid, utime, stime, cutime, cstime, rss int) string {
	return fmt.Sprintf("%d (%s) S %d 1 1 0 -1 4194560 1 2 3 4 %d %d %d %d 20 0 1 0 123 456 %d 18446744073709551615 1 1\n",
		pid, comm, ppid, utime, stime, cutime, cstime, rss)
}

// fakeProc makes a directory like /proc, with the given stat lines by process id.
func fakeProc(t *testing.T, lines map[int]string) Proc {
	t.Helper()
	fs := Proc{Root: t.TempDir()}
	for pid, line := range lines {
		write(t, filepath.Join(fs.Root, strconv.Itoa(pid), "stat"), line)
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

// A PostgreSQL backend (process 22) ends, and its CPU time then counts as that of its parent's
// ended children. The test expects the same total for the database before and after.
func TestMeterCountsEndedChildren(t *testing.T) {
	t.Parallel()
	fs := fakeProc(t, map[int]string{
		20: statLine(20, "purser", 1, 300, 100, 0, 0, 10),
		21: statLine(21, "postgres", 20, 10, 10, 5, 5, 20),
		22: statLine(22, "postgres", 21, 60, 10, 0, 0, 30),
	})
	m := New(fs, []int{20})
	before := m.Now(true)
	if before.Server != 4*time.Second || before.Database != time.Second || before.RSS != 60*int64(os.Getpagesize()) {
		t.Errorf("%+v", before)
	}
	if !before.Known || before.PSS != 0 {
		t.Errorf("PSS without smaps_rollup: %+v", before)
	}
	if err := os.RemoveAll(filepath.Join(fs.Root, "22")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(fs.Root, "21", "stat"), statLine(21, "postgres", 20, 10, 10, 65, 15, 20))
	for pid, kib := range map[int]int{20: 100, 21: 50} {
		write(t, filepath.Join(fs.Root, strconv.Itoa(pid), "smaps_rollup"), fmt.Sprintf("1-2 ---p [rollup]\nRss: 9 kB\nPss:   %d kB\nPss_Dirty: 7 kB\n", kib))
	}
	after := m.Now(true)
	if after.Server != before.Server || after.Database != before.Database {
		t.Errorf("%+v, before %+v", after, before)
	}
	if after.PSS != 150<<10 {
		t.Errorf("PSS %d, want %d", after.PSS, 150<<10)
	}
	if u, _ := New(fs, nil).Watch()(); u.Known {
		t.Errorf("measured no process: %+v", u)
	}
	if u, _ := New(fs, []int{99}).Watch()(); u.Known {
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

// TestMeterWhileChildrenEnd measures this process's tree again and again while its child
// processes end. The tree's CPU time may fall by at most two hundredths of a second, since the
// user and system times of an ended child are each rounded to a hundredth.
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
	m := New(Proc{Root: "/proc"}, []int{os.Getpid()})
	const rounding = 2 * time.Second / UserHZ // user and system time
	before := m.Now(false)
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
		now := m.Now(false)
		if !now.Known || now.CPU() < before.CPU()-rounding {
			t.Fatalf("CPU time %v after %v, known %v", now.CPU(), before.CPU(), now.Known)
		}
		before = now
	}
}

func TestParseMachine(t *testing.T) {
	t.Parallel()
	const first = "cpu  100 10 50 700 40 3 7 90 30 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	m, err := parseMachine(first)
	want := Machine{Known: true, All: 10 * time.Second, Busy: 1700 * time.Millisecond, Stolen: 900 * time.Millisecond}
	if err != nil || m != want {
		t.Errorf("%+v, %v, want %+v", m, err, want)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu a 2 3 4 5 6 7 8"} {
		if m, err := parseMachine(text); err == nil || m.Known {
			t.Errorf("%q: %+v", text, m)
		}
	}
	later, err := parseMachine("cpu 300 10 50 1400 40 3 7 190\n")
	if err != nil {
		t.Fatal(err)
	}
	others := later.Others(m, 500*time.Millisecond)
	if !others.Known || others.All != 10*time.Second || others.Busy != 1500*time.Millisecond || others.Stolen != time.Second {
		t.Errorf("%+v", others)
	}
	if others.Noisy(0.3) || !others.Noisy(0.2) || (Machine{}).Noisy(0.1) {
		t.Errorf("noisy: %v", others.Share(others.Busy+others.Stolen))
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{3, 1}, Spread{1, 2, 3}},
		{[]float64{5, 1, 2}, Spread{1, 2, 5}},
	} {
		if got := NewSpread(c.values); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.values, got, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, c := range []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{nil, 50, 0},
		{[]time.Duration{7}, 50, 7},
		{[]time.Duration{7}, 99, 7},
		{[]time.Duration{1, 2}, 50, 1},
		{[]time.Duration{1, 2}, 99, 2},
		{[]time.Duration{1, 2, 3}, 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 99.9, 100},
		{hundred, 100, 100},
		{hundred, 0.1, 1},
		{hundred[:10], 70, 7},
	} {
		if got := Percentile(c.sorted, c.p); got != c.want {
			t.Errorf("p%v of %d values is %d, want %d", c.p, len(c.sorted), got, c.want)
		}
	}
}

// procAddr formats an address and port as /proc/net/tcp does: in words of 32 bits, each as a
// number in the machine's byte order.
func procAddr(t *testing.T, s string) string {
	t.Helper()
	ap := netip.MustParseAddrPort(s)
	out := ""
	for word := range slices.Chunk(ap.Addr().AsSlice(), 4) {
		out += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	return fmt.Sprintf("%s:%04X", out, ap.Port())
}
