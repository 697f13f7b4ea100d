package meter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// UserHZ is the unit of the times in /proc/PID/stat: 100 per second on every
// architecture that Go supports (proc(5), sysconf(_SC_CLK_TCK)).
const UserHZ = 100

// Proc reads a proc file system.
type Proc struct{ Root string }

// procStat has those figures of a process that this package reads from /proc/PID/stat.
type procStat struct {
	pid, ppid int
	comm      string
	own       time.Duration // user and system time of all its threads
	reaped    time.Duration // the same of children that ended and were waited for
	rss       int64         // bytes
}

// parseStat parses /proc/PID/stat (proc(5)). The command name is in parentheses, and may
// itself contain spaces and parentheses.
func parseStat(b []byte) (procStat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return procStat{}, fmt.Errorf("stat line %q has no command name", b)
	}
	f := strings.Fields(string(b[end+1:]))
	// The fields after the command name begin with number 3 of proc(5).
	const ppid, utime, stime, cutime, cstime, rss = 4 - 3, 14 - 3, 15 - 3, 16 - 3, 17 - 3, 24 - 3
	if len(f) <= rss {
		return procStat{}, fmt.Errorf("stat line %q has too few fields", b)
	}
	var errs []error
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		errs = append(errs, err)
		return n
	}
	ticks := func(i, j int) time.Duration {
		return time.Duration(number(f[i])+number(f[j])) * time.Second / UserHZ
	}
	s := procStat{
		pid:    int(number(strings.TrimSpace(string(b[:open])))),
		ppid:   int(number(f[ppid])),
		comm:   string(b[open+1 : end]),
		own:    ticks(utime, stime),
		reaped: ticks(cutime, cstime),
		rss:    number(f[rss]) * int64(os.Getpagesize()),
	}
	if err := errors.Join(errs...); err != nil {
		return procStat{}, fmt.Errorf("stat line %q: %w", b, err)
	}
	return s, nil
}

// processes reads the figures of all processes. It leaves out a process that ends meanwhile.
func (fs Proc) processes() (map[int]procStat, error) {
	entries, err := os.ReadDir(fs.Root)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	all := make(map[int]procStat, len(entries))
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(fs.Root, e.Name(), "stat"))
		if err != nil {
			continue
		}
		s, err := parseStat(b)
		if err != nil {
			return nil, err
		}
		all[s.pid] = s
	}
	return all, nil
}

// tree returns the processes in `roots` and all their descendants. If one of the roots is a
// shell that has started both the server and the load generator (the process `self`), tree
// leaves out the load generator and its descendants. It includes them if `self` is a root.
//
// The processes are read one after another. If a child ends meanwhile, its CPU time may be
// counted twice (as its own, and as its parent's for ended children) or not at all. Therefore
// tree reads them again until two readings in a row show the same ended children, at most
// treeReadings times.
func (fs Proc) tree(roots []int, self int) ([]procStat, error) {
	last, err := fs.readTree(roots, self)
	for range treeReadings - 1 {
		if err != nil {
			return nil, err
		}
		var tree []procStat
		if tree, err = fs.readTree(roots, self); err == nil && sameChildren(last, tree) {
			return tree, nil
		}
		last = tree
	}
	return last, err
}

const treeReadings = 5

// sameChildren returns whether the readings a and b have the same processes, and none of these
// has waited for an ended child in between.
func sameChildren(a, b []procStat) bool {
	reaped := make(map[int]time.Duration, len(a))
	for _, p := range a {
		reaped[p.pid] = p.reaped
	}
	for _, p := range b {
		if d, ok := reaped[p.pid]; !ok || d != p.reaped {
			return false
		}
	}
	return len(a) == len(b)
}

func (fs Proc) readTree(roots []int, self int) ([]procStat, error) {
	all, err := fs.processes()
	if err != nil {
		return nil, err
	}
	isRoot := make(map[int]bool, len(roots))
	for _, pid := range roots {
		if _, ok := all[pid]; !ok {
			return nil, fmt.Errorf("process %d has ended", pid)
		}
		isRoot[pid] = true
	}
	var tree []procStat
	for _, p := range all {
		// The loop follows the parents of p. If a process gets another parent while the
		// processes are read, the parents may form a cycle; then the limit of `hops` ends the
		// loop.
		for pid, hops := p.pid, 0; pid > 0 && hops < len(all); hops++ {
			if isRoot[pid] {
				tree = append(tree, p)
				break
			}
			if pid == self {
				break
			}
			pid = all[pid].ppid
		}
	}
	return tree, nil
}

// pss returns the proportional set size of a process in bytes: its memory, in which a page
// that n processes share counts as 1/n of a page. Reading it needs the right to trace the
// process.
func (fs Proc) pss(pid int) (int64, error) {
	b, err := os.ReadFile(filepath.Join(fs.Root, strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	return parsePSS(b)
}

func parsePSS(b []byte) (int64, error) {
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		rest, ok := strings.CutPrefix(sc.Text(), "Pss:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("smaps_rollup line %q: %w", sc.Text(), err)
		}
		return kib << 10, nil
	}
	return 0, errors.New("smaps_rollup has no Pss line")
}
