package registries

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// memoryInterval is how often memory is looked at while a window runs. Reading
// a process's PSS walks its page tables, so it isn't done more often.
const memoryInterval = time.Second

// databaseComm is the command name of the processes that count as database.
const databaseComm = "postgres"

// meter measures the process tree of one target.
type meter struct {
	fs    procfs
	roots []int // empty: nothing is measured
	self  int
}

func newMeter(fs procfs, roots []int) *meter {
	return &meter{fs: fs, roots: roots, self: os.Getpid()}
}

// usage is CPU time used and the most memory seen.
type usage struct {
	known    bool
	server   time.Duration
	database time.Duration
	deferred time.Duration // of both, used after the window until the server was quiet
	rss      int64         // bytes, summed over the tree: pages shared by n processes count n times
	pss      int64         // bytes; 0 when a process's PSS couldn't be read
}

// now reads the tree. The CPU sums include children that ended and were waited
// for by a process of the tree, so they never lose a PostgreSQL backend that
// came and went.
func (m *meter) now(memory bool) usage {
	if len(m.roots) == 0 {
		return usage{}
	}
	tree, err := m.fs.tree(m.roots, m.self)
	if err != nil {
		return usage{}
	}
	u := usage{known: true}
	pssKnown := memory
	for _, p := range tree {
		if d, ok := preciseCPU(p.pid); ok && m.fs.root == "/proc" {
			p.own = d
		}
		if p.comm == databaseComm {
			u.database += p.own + p.reaped
		} else {
			u.server += p.own + p.reaped
		}
		u.rss += p.rss
		if !pssKnown {
			continue
		}
		pss, err := m.fs.pss(p.pid)
		// A process that has just ended has no memory; one that can't be read has.
		if err != nil && p.rss > 0 && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			pssKnown = false
		}
		u.pss += pss
	}
	if !pssKnown {
		u.pss = 0
	}
	return u
}

// watch measures until stop is called. CPU time is the difference between both ends, memory
// the highest value seen. The second result is the reading at the end.
func (m *meter) watch() (stop func() (used, end usage)) {
	peak := m.now(true)
	pssKnown := peak.pss > 0
	look := func() {
		u := m.now(true)
		peak.rss, peak.pss = max(peak.rss, u.rss), max(peak.pss, u.pss)
		pssKnown = pssKnown && (u.pss > 0 || !u.known)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(memoryInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				look()
			case <-done:
				return
			}
		}
	})
	start := m.now(false)
	return func() (used, last usage) {
		end := m.now(false)
		close(done)
		wg.Wait()
		look()
		u := usage{rss: peak.rss, server: end.server - start.server, database: end.database - start.database}
		if pssKnown {
			u.pss = peak.pss
		}
		u.known = start.known && end.known && u.server >= 0 && u.database >= 0
		return u, end
	}
}
