package pullstats

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/audit"
)

// until waits for something that is looked at again and again.
func until(t testing.TB, what string, fn func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !fn(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s never comes", what)
		}
	}
}

// running runs a recorder until the test or stop ends it.
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

// While Redis is away pulls wait, as many as have room; the others are counted from
// the log, and all once. Others can see meanwhile that their tags are used.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	m, err := NewMetrics(prometheus.NewRegistry())
	must(t, err)
	rec := s.recorder(t, r, func(o *RecorderOptions) { o.Buffer, o.Batch, o.Metrics = 20, 10, m })
	stop := running(t, rec)
	pull := func(n int) {
		for range n {
			begun := time.Now()
			rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
			if took := time.Since(begun); took > time.Second {
				t.Errorf("a pull waited for %v", took)
			}
		}
	}
	pull(5)
	until(t, "the first pulls", func() bool { return testutil.ToFloat64(m.events.WithLabelValues(eventRecorded)) == 5 })
	server.Kill()
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
	until(t, "a failure", func() bool { return rec.queue.waiting() == 1 && marked(rec, s, "v1") })
	rec.Pulled(t.Context(), s.client("a", 0, "v2", "a")) // it waits while nothing is sent any more
	until(t, "the mark of what waits", func() bool { return marked(rec, s, "v2") })
	pull(28)
	if n := rec.queue.waiting(); n < 20 || n > 30 {
		t.Errorf("%d pulls wait, want some 20", n)
	}
	logged := testutil.ToFloat64(m.events.WithLabelValues(eventLogged))
	if logged < 5 || logged > 10 {
		t.Errorf("%v pulls found no room, want some 10", logged)
	}
	server.Start(t)
	until(t, "what waits", func() bool { return rec.queue.waiting() == 0 })
	stop()
	finish(t, rec)
	if n := s.logged(t, audit.CountedByAudit); n != int64(logged) {
		t.Errorf("%d pulls are logged to be counted from there, want %v", n, logged)
	}
	must(t, s.flusher(t, r).Flush(t.Context()))
	settle(t, s.worker(t))
	got := s.books(t)
	if n := got[tagName(s, 0, "v1")].Count + got[tagName(s, 0, "v2")].Count; n != 35 {
		t.Errorf("%d pulls are counted, want 35", n)
	}
	if n := got[manifestName(s, 0, "a")].Count; n != 35 {
		t.Errorf("%d pulls of the manifest are counted, want 35", n)
	}
}

func marked(rec *Recorder, s *shop, tag string) bool {
	m := rec.opt.Marks
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[markKey{s.repositories[0], false, tag}] != nil
}

// Without a log what finds no room is dropped, counted as that, and known as a use.
func TestRedisAwayWithoutLog(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	m, err := NewMetrics(prometheus.NewRegistry())
	must(t, err)
	rec := s.recorder(t, r, unlogged, func(o *RecorderOptions) { o.Buffer, o.Metrics = 1, m })
	server.Kill()
	begun := time.Now()
	rec.Pulled(t.Context(), s.client("a", 0, "v0", "z"))
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "a"))
	if n := testutil.ToFloat64(m.events.WithLabelValues(eventDropped)); n != 1 {
		t.Errorf("%v pulls were dropped, want 1", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rec.Close(ctx)
	if n := testutil.ToFloat64(m.events.WithLabelValues(eventDropped)); n != 2 {
		t.Errorf("%v pulls were dropped in the end, want 2", n)
	}
	must(t, rec.opt.Marks.Close(t.Context()))
	server.Start(t)
	must(t, s.flusher(t, r).Flush(t.Context()))
	uses, err := s.asked(t, r)
	if err != nil || uses.Tags["v1"].Before(begun) || uses.Manifests[digest("a").String()].Before(begun) {
		t.Errorf("what was dropped was used at %v: %v", uses, err)
	}
}

// The end of the process doesn't cut off what is being sent, and what is left is sent
// or logged, each once.
func TestRedisRecorderEnds(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	m, err := NewMetrics(prometheus.NewRegistry())
	must(t, err)
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
