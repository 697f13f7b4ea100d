package pullstats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/testscale"
)

// sent is a GET or a HEAD of a manifest. Its field `process` is the number of the process
// that answers the request.
type sent struct {
	audit.Entry
	head    bool
	process int
}

// requests returns n requests that three clients make within 2.5 seconds, many of them at
// nearly the same time.
func (s *shop) requests(seed uint64, n int) (list []sent) {
	r := rand.New(rand.NewPCG(seed, 11))
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	for range n {
		e := s.client(fmt.Sprint("client", r.IntN(3)), 0, fmt.Sprint("v", r.IntN(3)), fmt.Sprint(r.IntN(2)))
		e.Time = begin.Add(time.Duration(r.IntN(2_500_000)) * time.Microsecond)
		e.Port, e.CountedBy = 40_000+r.IntN(2), audit.CountedByAudit
		q := sent{e, r.IntN(3) == 0, r.IntN(2)}
		if !q.head && r.IntN(3) > 0 {
			q.Tag = ""
		}
		if q.Tag != "" && !q.head {
			q.Port = 0
		}
		list = append(list, q)
	}
	return list
}

// answer has two processes write the requests to the audit log, in which requests that are
// at most `join` apart share an entry. Then it lets a SyncWorker count them in small
// batches.
func (s *shop) answer(t *testing.T, list []sent, join time.Duration) {
	var processes [2]*audit.Recorder
	for i := range processes {
		processes[i] = audit.NewRecorder(audit.RecorderOptions{DB: s.log, Alive: alive, Join: join, Log: quiet, Batch: 7})
	}
	for _, q := range list {
		p := processes[q.process]
		if taken := q.head && p.RecordHead(t.Context(), q.Entry) || !q.head && p.Record(t.Context(), q.Entry); !taken {
			t.Fatal("a request isn't taken")
		}
	}
	for _, p := range processes {
		must(t, p.Close(t.Context()))
	}
	settle(t, s.worker(t, func(o *SyncOptions) { o.Batch, o.Join = 5, 2*time.Second }))
}

// The same requests are logged twice: once with an entry for each request, and once with
// entries that stand for several requests. The worker must get the same counts from the
// first log as from the second.
func TestJoinedEntriesCountTheSame(t *testing.T) {
	t.Parallel()
	for seed := range testscale.Pick(uint64(1), 4) {
		apart, joined := open(t, false, 1), open(t, true, 1)
		list := apart.requests(seed, 1500)
		apart.answer(t, list, -1)
		joined.answer(t, list, time.Second)
		if n := number(t, joined.log, "SELECT count(*) FROM auditlog"); n > 600 {
			t.Errorf("%d entries: nothing is joined, and the test shows nothing", n)
		}
		got, want := joined.books(t), books{}
		for name, r := range apart.books(t) {
			want[name] = r
		}
		compare(t, got, want)
		if n := number(t, joined.stats, "SELECT count(*) FROM pullstatisticspending WHERE NOT head"); n != 0 {
			t.Errorf("%d pulls by digest are never settled", n)
		}
	}
}

// Clients pull the same manifests concurrently, recorders write several pulls into one
// entry, and the workers that count them die at every step. The counts must be exact.
func TestJoinedExactlyOnce(t *testing.T) {
	t.Parallel()
	s := open(t, true, 2)
	ctx, stop := context.WithCancel(t.Context())
	var workers errgroup.Group
	storm := crashes{}
	for i := range 2 {
		workers.Go(func() error { return s.crashing(t, ctx, uint64(i), &storm) })
	}
	var mu sync.Mutex
	want := map[string]int64{}
	var group errgroup.Group
	var recorders []*Recorder
	for range 2 {
		rec := s.recorder(t, nil)
		running(t, rec)
		writing(t, rec.opt.Log)
		recorders = append(recorders, rec)
	}
	for i := range 4 {
		group.Go(func() error {
			r := rand.New(rand.NewPCG(uint64(i), 5))
			for range 3000 {
				repository, tag, content := r.IntN(2), fmt.Sprint("v", r.IntN(2)), fmt.Sprint(r.IntN(2))
				if r.IntN(3) == 0 {
					tag = ""
				}
				recorders[i%2].Pulled(ctx, s.client("a", repository, tag, content))
				mu.Lock()
				want[manifestName(s, repository, content)]++
				if tag != "" {
					want[tagName(s, repository, tag)]++
				}
				mu.Unlock()
				if r.IntN(40) == 0 {
					time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
				}
			}
			return nil
		})
	}
	must(t, group.Wait())
	stop()
	must(t, workers.Wait())
	for _, rec := range recorders {
		finish(t, rec)
	}
	settle(t, s.worker(t))
	s.wantCounts(t, want)
	entries := number(t, s.log, "SELECT count(*) FROM auditlog")
	if entries > 6000 {
		t.Errorf("%d entries of 12000 pulls: nothing is joined", entries)
	}
	t.Logf("12000 pulls in %d entries", entries)
}
