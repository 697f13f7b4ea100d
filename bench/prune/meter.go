package prune

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/purser-registry/purser/bench/meter"
)

// pulled has two latencies of each pull. `due` is measured from the time at which the pull
// should have been sent, so it includes this process's delay in sending it; `sent` is measured
// from the time at which it was sent.
type pulled struct {
	due, sent meter.Latencies
	// stolen is how many cores, on average, the hypervisor gave to other virtual machines
	// while this machine had work for them. If it is high, the latencies mean little.
	stolen float64
}

func (p pulled) String() string {
	return fmt.Sprintf("from when they were due %s, from when they were sent %s; %.1f%% of a core stolen", p.due, p.sent, 100*p.stolen)
}

func (p pulled) and(q pulled) pulled {
	r := pulled{due: slices.Concat(p.due, q.due), sent: slices.Concat(p.sent, q.sent)}
	r.sort()
	return r
}

func (p pulled) sort() {
	slices.Sort(p.due)
	slices.Sort(p.sent)
}

// pulling sends pulls at a steady rate. Each pull has a goroutine of its own, so that a slow
// one doesn't delay the next.
type pulling struct {
	stop   context.CancelFunc
	done   sync.WaitGroup
	began  time.Time
	out    io.Writer
	stolen time.Duration // until then
	mu     sync.Mutex
	pulled pulled
	bad    int
}

// pulls starts to pull manifests by tags that the policy doesn't delete. The method end of its
// result stops it.
func (b *bench) pulls(ctx context.Context) *pulling {
	ctx, cancel := context.WithCancel(ctx)
	p := &pulling{stop: cancel, out: b.out, began: time.Now(), stolen: stolen()}
	if b.rate == 0 {
		return p
	}
	p.done.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(b.rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case due := <-tick.C:
				p.done.Go(func() { p.pull(b, due) })
			}
		}
	})
	return p
}

func (p *pulling) pull(b *bench, due time.Time) {
	url := fmt.Sprintf("%s/v2/bench/r%d/manifests/v%d", b.url, 1+rand.N(b.repositories), 1+rand.N(b.keep))
	status, sent := 0, time.Now()
	if res, err := http.Get(url); err == nil {
		io.Copy(io.Discard, res.Body) //nolint:errcheck // the status counts
		res.Body.Close()              //nolint:errcheck // only read
		status = res.StatusCode
	}
	fromDue, fromSent := time.Since(due), time.Since(sent)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulled.due, p.pulled.sent = append(p.pulled.due, fromDue), append(p.pulled.sent, fromSent)
	if status != http.StatusOK {
		p.bad++
	}
}

// end stops the pulls, waits for those in flight, and returns their latencies.
func (p *pulling) end() pulled {
	p.stop()
	p.done.Wait()
	if p.bad > 0 {
		fmt.Fprintf(p.out, "!! %d of %d pulls failed\n", p.bad, len(p.pulled.due))
	}
	p.pulled.stolen = (stolen() - p.stolen).Seconds() / time.Since(p.began).Seconds()
	p.pulled.sort()
	return p.pulled
}

// quietPulls pulls while nothing else runs.
func (b *bench) quietPulls(ctx context.Context) pulled {
	p := b.pulls(ctx)
	select {
	case <-ctx.Done():
	case <-time.After(b.quiet):
	}
	return p.end()
}

// stolen returns for how long, since this machine started, the hypervisor has run other
// virtual machines while this machine had work for the CPU, as Linux reports it. It returns 0
// on other systems.
func stolen() time.Duration { return proc.Machine().Stolen }

var proc = meter.Proc{Root: "/proc"}

// postmaster returns the process id of PostgreSQL's first process, which it reads from the
// file postmaster.pid below the directory base.
func postmaster(base string) (pid int, err error) {
	err = filepath.WalkDir(base, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "postmaster.pid" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		line, _, _ := strings.Cut(string(text), "\n")
		pid, err = strconv.Atoi(line)
		if err != nil {
			return err
		}
		return filepath.SkipAll
	})
	if err == nil && pid == 0 {
		err = fmt.Errorf("no PostgreSQL runs below %s", base)
	}
	return pid, err
}

// cpu returns the CPU time that this process and PostgreSQL's processes have used so far, as
// Linux reports it; 0 on other systems.
func (b *bench) cpu() time.Duration {
	return meter.New(proc, []int{os.Getpid(), b.postmaster}).Now(false).CPU()
}
