package meter

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

// memoryInterval is the time between two readings of the memory during a window. Each reading
// costs time, because the kernel walks a process's page tables to compute its PSS.
const memoryInterval = time.Second

// databaseComm is the command name by which PostgreSQL's processes are recognized; their CPU
// time counts as the database's.
const databaseComm = "postgres"

// Meter measures the process tree of one target.
type Meter struct {
	fs    Proc
	roots []int // empty: nothing is measured
	self  int
}

// CPU returns the CPU time of server and database.
func (u Usage) CPU() time.Duration { return u.Server + u.Database }

// New returns a Meter of the processes in `roots` and their descendants. If `roots` is empty,
// the Meter measures nothing.
func New(fs Proc, roots []int) *Meter {
	return &Meter{fs: fs, roots: roots, self: os.Getpid()}
}

// Usage is the CPU time that a server's processes used in a window, or up to a reading, and
// the most memory that they had.
type Usage struct {
	Known    bool
	Server   time.Duration
	Database time.Duration
	Deferred time.Duration // of both, used after the window until they were quiet
	RSS      int64         // bytes, summed over the tree: pages shared by n processes count n times
	PSS      int64         // bytes; 0 when a process's PSS couldn't be read
}

// Now reads the figures of the process tree; it reads the memory only if `memory` is true. The
// CPU time of a process includes that of its ended children for which it has waited. So the
// sum still has the CPU time of PostgreSQL backends that have ended.
func (m *Meter) Now(memory bool) Usage {
	if len(m.roots) == 0 {
		return Usage{}
	}
	tree, err := m.fs.tree(m.roots, m.self)
	if err != nil {
		return Usage{}
	}
	u := Usage{Known: true}
	pssKnown := memory
	for _, p := range tree {
		if d, ok := preciseCPU(p.pid); ok && m.fs.Root == "/proc" {
			p.own = d
		}
		if p.comm == databaseComm {
			u.Database += p.own + p.reaped
		} else {
			u.Server += p.own + p.reaped
		}
		u.RSS += p.rss
		if !pssKnown {
			continue
		}
		pss, err := m.fs.pss(p.pid)
		// A process that has just ended counts as using no memory. If the PSS of a running
		// process can't be read, the whole sum is unknown, and the result is 0.
		if err != nil && p.rss > 0 && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			pssKnown = false
		}
		u.PSS += pss
	}
	if !pssKnown {
		u.PSS = 0
	}
	return u
}

// Watch starts to measure the process tree, and stop ends the measurement. `used` has the CPU
// time that the processes used in between, and the largest of the memory readings, one per
// second. `end` has the figures at the end.
func (m *Meter) Watch() (stop func() (used, end Usage)) {
	peak := m.Now(true)
	pssKnown := peak.PSS > 0
	look := func() {
		u := m.Now(true)
		peak.RSS, peak.PSS = max(peak.RSS, u.RSS), max(peak.PSS, u.PSS)
		pssKnown = pssKnown && (u.PSS > 0 || !u.Known)
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
	start := m.Now(false)
	return func() (used, last Usage) {
		end := m.Now(false)
		close(done)
		wg.Wait()
		look()
		u := Usage{RSS: peak.RSS, Server: end.Server - start.Server, Database: end.Database - start.Database}
		if pssKnown {
			u.PSS = peak.PSS
		}
		u.Known = start.Known && end.Known && u.Server >= 0 && u.Database >= 0
		return u, end
	}
}
