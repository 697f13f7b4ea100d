package pullstats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/testscale"
)

// Three replicas switch between counting in Redis and from the audit log, each at its own
// times, while a SyncWorker and a FlushWorker run. Each pull must count once.
func TestSwitch(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart=%v", apart), func(t *testing.T) {
			t.Parallel()
			s := open(t, apart, 2)
			r := startRedis(t).open(t, s.stats)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var workers, replicas errgroup.Group
			workers.Go(func() error {
				return repeat(ctx, s.flusher(t, r, func(o *redispulls.FlushOptions) { o.Batch = 5 }).Flush)
			})
			workers.Go(func() error { return repeat(ctx, s.worker(t, func(o *SyncOptions) { o.Redis, o.Batch = r, 50 }).Sync) })
			var pulls atomic.Int64
			for i := range 3 {
				replicas.Go(func() error {
					random := rand.New(rand.NewPCG(uint64(i), 3))
					for generation := range 8 {
						counting := r
						if (generation+i)%2 == 0 {
							counting = nil
						}
						rec := s.recorder(t, counting, func(o *RecorderOptions) { o.Batch, o.Buffer = 20, 100 })
						end := running(t, rec)
						for range testscale.Pick(60, 200) {
							tag := ""
							if random.IntN(3) > 0 {
								tag = fmt.Sprint("v", random.IntN(3))
							}
							rec.Pulled(t.Context(), s.client(fmt.Sprint(i), random.IntN(2), tag, fmt.Sprint(random.IntN(3))))
							pulls.Add(1)
						}
						end()
						rec.Close(t.Context())
						if err := rec.opt.Log.Close(t.Context()); err != nil {
							return err
						}
						if err := rec.Leave(t.Context(), false); err != nil {
							return err
						}
					}
					return nil
				})
			}
			must(t, replicas.Wait())
			stop()
			must(t, workers.Wait())
			must(t, s.flusher(t, r).Flush(t.Context()))
			settle(t, s.worker(t))
			entries := s.entries(t)
			if len(entries) != int(pulls.Load()) {
				t.Errorf("%d pulls are logged, want %d", len(entries), pulls.Load())
			}
			// Half of the replicas count in Redis. On a busy machine Redis takes many of their pulls too
			// late, which are counted from the log then.
			for _, by := range []string{audit.CountedByRedis, audit.CountedByAudit} {
				if n := s.logged(t, by); n < pulls.Load()/20 {
					t.Errorf("%d of %d pulls are counted by %s, want more", n, pulls.Load(), by)
				}
			}
			got, want := s.books(t), truth(entries)
			for _, b := range []books{got, want} { // two pulls may have the same time
				for name, r := range b {
					r.Other = ""
					b[name] = r
				}
			}
			compare(t, got, want)
		})
	}
}

// repeat calls fn until ctx ends.
func repeat(ctx context.Context, fn func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := fn(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// entries returns the pulls in the log.
func (s *shop) entries(t testing.TB) (list []audit.Entry) {
	t.Helper()
	pulls, err := audit.New(s.log).Pulls(t.Context(), audit.Position{}, 1_000_000)
	must(t, err)
	for _, p := range pulls {
		for range p.N {
			list = append(list, audit.Entry{RepositoryID: p.RepositoryID, Tag: p.Tag, Digest: p.Digest, Time: p.Time.UTC()})
		}
	}
	return list
}
