package pullstats

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// until calls fn again and again until it returns true. After a minute it fails the test.
func until(t testing.TB, what string, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !fn(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s never comes", what)
		}
	}
}

// running starts a recorder, which runs until stop is called or the test ends.
func running(t testing.TB, rec *Recorder) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		rec.Run(ctx) //nolint:errcheck // it returns nil
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// Redis is killed, or stops answering, while a client pulls. The recorder must then write
// the pulls to the audit log at once, so that they are counted from there, and no client
// may wait for more than a second. When Redis is back, it must count again. Each pull must
// be counted once, except pulls that Redis didn't answer.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	for how, away := range map[string]func(redisServer, *proxy){
		"killed": func(s redisServer, _ *proxy) { s.Kill() },
		"silent": func(_ redisServer, p *proxy) { p.on("", 1<<30, swallow) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := startRedis(t)
			s := open(t, false, 1)
			r, p := server.behind(t, s.stats)
			m := NewMetrics(prometheus.NewRegistry())
			rec := s.recorder(t, r, func(o *RecorderOptions) { o.Buffer, o.Batch, o.Metrics = 20, 10, m })
			stop := running(t, rec)
			writing(t, rec.opt.Log)
			n := 0
			pull := func(tag string) {
				begun := time.Now()
				rec.Pulled(t.Context(), s.client("a", 0, tag, "a"))
				if took := time.Since(begun); took > time.Second {
					t.Errorf("a pull waited for %v", took)
				}
				n++
			}
			written := func() bool {
				return number(t, s.log, "SELECT COALESCE(sum(pulls), 0) FROM auditlog WHERE kind = 'pull_repo'") == int64(n)
			}
			for range 5 {
				pull("v1")
			}
			until(t, "the first pulls", func() bool { return testutil.ToFloat64(m.events.WithLabelValues(eventRecorded)) == 5 })
			away(server, p)
			for range 30 {
				pull("v1")
			}
			until(t, "what came while Redis went away", written)
			for range 30 {
				pull("")
			}
			until(t, "what came while Redis was away", written)
			if s.logged(t, audit.CountedByAudit) < 40 {
				t.Errorf("%d pulls are to be counted from the log, want nearly all", s.logged(t, audit.CountedByAudit))
			}
			if how == "killed" {
				server.Start(t)
			}
			p.on("", 0, pass)
			before := s.logged(t, audit.CountedByRedis)
			until(t, "Redis counts again", func() bool {
				pull("v2")
				time.Sleep(100 * time.Millisecond)
				return s.logged(t, audit.CountedByRedis) > before
			})
			stop()
			finish(t, rec)
			must(t, s.flusher(t, r).Flush(t.Context()))
			settle(t, s.worker(t))
			lost := int64(testutil.ToFloat64(m.events.WithLabelValues(eventUnanswered)))
			if got := s.books(t)[manifestName(s, 0, "a")].Count; got > int64(n) || got < int64(n)-lost {
				t.Errorf("%d pulls of the manifest are counted, want %d, but for %d that weren't answered", got, n, lost)
			}
		})
	}
}

// writing lets a log write its entries until the test ends.
func writing(t testing.TB, log *audit.Recorder) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		log.Run(ctx) //nolint:errcheck // it returns nil
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// Redis is away, pulls aren't logged, and the recorder has room for one pull. It must drop
// further pulls, count them in the metric of dropped pulls, and record them as uses of
// their tags and manifests.
func TestRedisAwayWithoutLog(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	m := NewMetrics(prometheus.NewRegistry())
	rec := s.recorder(t, r, unlogged, func(o *RecorderOptions) { o.Buffer, o.Metrics = 1, m })
	server.Kill()
	begun := time.Now()
	rec.Pulled(t.Context(), s.client("a", 0, "v0", "z"))
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
	if n := testutil.ToFloat64(m.events.WithLabelValues(eventDropped)); n != 1 {
		t.Errorf("%v pulls were dropped, want 1", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rec.Close(ctx)
	if n := testutil.ToFloat64(m.events.WithLabelValues(eventDropped)); n != 2 {
		t.Errorf("%v pulls were dropped in the end, want 2", n)
	}
	must(t, rec.opt.LastUsed.Close(t.Context()))
	server.Start(t)
	must(t, s.flusher(t, r).Flush(t.Context()))
	uses, err := s.asked(t, r)
	if err != nil || uses.Tags["v1"].Before(begun) || uses.Manifests[digest("a").String()].Before(begun) {
		t.Errorf("what was dropped was used at %v: %v", uses, err)
	}
}

// TestRedisAwayBesideAFlood: Redis is away, pulls aren't logged, and those of one namespace fill the
// memory. Pulls and HEADs of another namespace must wait for Redis there too, and be counted.
func TestRedisAwayBesideAFlood(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	m := NewMetrics(prometheus.NewRegistry())
	rec := s.recorder(t, r, unlogged, func(o *RecorderOptions) { o.Buffer, o.Metrics = 100, m })
	rec.queue.heads.places = limit.NewBuffer(100) // in place of maxHeads
	server.Kill()
	dropped := func() float64 { return testutil.ToFloat64(m.events.WithLabelValues(eventDropped)) }
	of := func(repository string, n int) audit.Entry {
		e := s.client("a", 0, fmt.Sprint("v", n), "z")
		e.Repository = repository
		return e
	}
	for n := range 150 {
		rec.Pulled(t.Context(), of("flood/app", n))
		rec.Checked(t.Context(), of("flood/app", n))
	}
	if n := dropped(); n != 50 {
		t.Errorf("%v pulls were dropped, want 50", n)
	}
	for n := range 5 {
		rec.Pulled(t.Context(), of("acme/app", n+1000))
		rec.Checked(t.Context(), of("acme/app", n+1000))
	}
	if n := dropped(); n != 50 {
		t.Errorf("%v pulls of the other namespace were dropped", n-50)
	}
	rec.queue.heads.mu.Lock()
	heads := len(rec.queue.heads.recent)
	rec.queue.heads.mu.Unlock()
	if heads != 105 {
		t.Errorf("%d HEADs are in memory, want 105", heads)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rec.Close(ctx)
}

// A process stops with 23 pulls in its queue, in some cases while it sends a batch of them.
// It must finish sending the batch, and send each of the other pulls to Redis or log it,
// once.
func TestRedisRecorderEnds(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	m := NewMetrics(prometheus.NewRegistry())
	for round := range 20 {
		rec := s.recorder(t, r, func(o *RecorderOptions) { o.Batch, o.Metrics = 5, m })
		stop := running(t, rec)
		for range 23 {
			rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
		}
		if round%2 == 0 {
			until(t, "a batch", func() bool { return rec.queue.waiting() < 23 })
		}
		stop()
		finish(t, rec)
	}
	if n := testutil.ToFloat64(m.events.WithLabelValues(eventUnanswered)); n != 0 {
		t.Errorf("%v pulls were unanswered", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	rec := s.recorder(t, r)
	if kept, err := rec.queue.record(ended, waiting([]audit.Entry{s.pull(0, "v1", "a", time.Now())})); err != nil || len(kept) > 0 {
		t.Errorf("a batch that began before the end: %d kept, %v", len(kept), err)
	}
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
	rec.Close(ended)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "a")) // after the end
	finish(t, rec)
	must(t, s.flusher(t, r).Flush(t.Context()))
	settle(t, s.worker(t))
	if n := s.books(t)[tagName(s, 0, "v1")].Count; n != 20*23+3 {
		t.Errorf("%d pulls are counted, want %d", n, 20*23+3)
	}
}

// A process stops while another one, which was killed, seems to have HEADs that it hasn't sent. The
// pulls by digest that wait for these must go to the audit log soon, and the process must not ask for
// the other's report without a pause meanwhile.
func TestRedisRecorderEndsBesideKilled(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	r := startRedis(t).open(t, s.stats)
	if _, err := s.stats.Pool.Exec(t.Context(),
		"INSERT INTO pullrecorders (instance, redis, written_to, sent_to) VALUES ('killed', true, now(), now())"); err != nil {
		t.Fatal(err)
	}
	rec := s.recorder(t, r)
	stop := running(t, rec)
	rec.Pulled(t.Context(), s.client("a", 0, "", "a"))
	stop()
	before := rec.presence.reports
	ending, cancel := context.WithTimeout(t.Context(), statsdb.GoneAfter/2)
	defer cancel()
	rec.Close(ending)
	if err := ending.Err(); err != nil {
		t.Errorf("the end took all of its time: %v", err)
	}
	if n := rec.presence.reports - before; n == 0 || n > 200 {
		t.Errorf("it reported %d times while it ended", n)
	}
	finish(t, rec)
	if n := s.logged(t, audit.CountedByAudit); n != 1 {
		t.Errorf("%d pulls are counted by the audit log, want 1", n)
	}
}
