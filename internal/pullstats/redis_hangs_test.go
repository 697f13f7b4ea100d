package pullstats

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/internal/worker"
)

// Two processes count in Redis, and pulls are logged. Clients send a HEAD by tag to one process
// and the GET by digest to the other, while Redis hangs, is slow, or answers late, for both
// processes or for one of them. Meanwhile a SyncWorker joins whatever it can. Each pull must
// count for its tag once, but for pulls that Redis didn't answer; and if any is missing,
// Status.Counts must say so.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	const (
		slow = 1500 * time.Millisecond
		over = 4 * time.Second // longer than a process waits for an answer
	)
	for name, fault := range map[string]func(t *testing.T, server redisServer, one, other *proxy, wait func()){
		"hangs": func(t *testing.T, server redisServer, _, _ *proxy, wait func()) {
			server.Suspend(t)
			wait()
			server.Resume(t)
		},
		"is slow for one": func(_ *testing.T, _ redisServer, one, _ *proxy, wait func()) { one.lag(slow, wait) },
		"is slow": func(_ *testing.T, _ redisServer, one, other *proxy, wait func()) {
			one.lag(slow, func() { other.lag(slow, wait) })
		},
		"is late for one": func(_ *testing.T, _ redisServer, one, _ *proxy, wait func()) { one.lag(over, wait) },
		"is late": func(_ *testing.T, _ redisServer, one, other *proxy, wait func()) {
			one.lag(over, func() { other.lag(over, wait) })
		},
		"is gone for one": func(_ *testing.T, _ redisServer, one, _ *proxy, wait func()) {
			one.on("", 1<<30, swallow)
			wait()
			one.on("", 0, pass)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startRedis(t)
			s := open(t, false, 1)
			m := NewMetrics(prometheus.NewRegistry())
			var list replicas
			var proxies []*proxy
			for range 2 {
				r, p := server.behind(t, s.stats)
				proxies = append(proxies, p)
				list = append(list, s.replicas(t, r, 1, m)...)
			}
			begun := s.counts(t).now
			ctx, stop := context.WithCancel(t.Context())
			var background errgroup.Group
			background.Go(func() error { return s.joining(ctx, t) })
			var pulled atomic.Int64
			background.Go(func() error { return s.crossing(ctx, list, &pulled) })
			until(t, "the first pulls are in Redis", func() bool { return testutil.ToFloat64(m.events.WithLabelValues(eventRecorded)) > 10 })
			for range testscale.Pick(1, 3) {
				fault(t, server, proxies[0], proxies[1], func() { time.Sleep(testscale.Pick(4*time.Second, 6*time.Second)) })
				time.Sleep(testscale.Pick(2*time.Second, redisBackoff))
			}
			stop()
			must(t, background.Wait())
			for _, rec := range list {
				finish(t, rec)
			}
			s.count(t, list[1].opt.Redis)
			got, want := int64(0), pulled.Load()
			for i := range 3 {
				got += s.books(t)[tagName(s, 0, fmt.Sprint("v", i))].Count
			}
			unanswered := int64(testutil.ToFloat64(m.events.WithLabelValues(eventUnanswered)))
			t.Logf("%d of %d pulls are counted, %d weren't answered", got, want, unanswered)
			if got > want || got < want-unanswered {
				t.Errorf("%d pulls of tags are counted, want %d, but for %d that weren't answered", got, want, unanswered)
			}
			if got < want && !s.counts(t).Counts.After(begun) {
				t.Errorf("pulls are missing, and the counts are complete since %v", s.counts(t).Counts)
			}
		})
	}
}

// lag delays the requests to Redis by d while fn runs.
func (p *proxy) lag(d time.Duration, fn func()) {
	p.mu.Lock()
	p.delay = d
	p.mu.Unlock()
	p.on("", 1<<30, late)
	fn()
	p.on("", 0, pass)
}

// counts returns the state of the statistics.
func (s *shop) counts(t testing.TB) state {
	t.Helper()
	s.since(t) // makes the state's row
	st, err := readState(t.Context(), s.stats.Pool, false)
	must(t, err)
	return st
}

// joining runs a SyncWorker with the real lag of joining until ctx ends.
func (s *shop) joining(ctx context.Context, t testing.TB) error {
	w := s.worker(t)
	w.lag, w.confirm = joinLag, confirmAfter
	for ctx.Err() == nil {
		if err := w.Sync(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		worker.Sleep(ctx, 100*time.Millisecond) //nolint:errcheck // then the loop ends
	}
	return nil
}

// crossing lets clients pull until ctx ends, about 150 in a second. Each sends a HEAD by tag to one
// process and then a GET by digest to the other.
func (s *shop) crossing(ctx context.Context, list replicas, pulled *atomic.Int64) error {
	var clients errgroup.Group
	clients.SetLimit(200)
	for i := 0; ctx.Err() == nil; i++ {
		clients.Go(func() error {
			e := s.client(fmt.Sprint("client ", i), 0, fmt.Sprint("v", i%3), "x")
			asked := rand.IntN(2)
			list[asked].Checked(context.WithoutCancel(ctx), e)
			time.Sleep(time.Duration(2+rand.IntN(20)) * time.Millisecond) // until the client has the answer
			e.Tag = ""
			list[1-asked].Pulled(context.WithoutCancel(ctx), e)
			pulled.Add(1)
			return nil
		})
		worker.Sleep(ctx, 6*time.Millisecond) //nolint:errcheck // then the loop ends
	}
	return clients.Wait()
}
