package pullstats

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
)

// Redis counts pulls and is then emptied, between two flushes or at a step of a flush. The
// lost pulls must be counted from the audit log, once. Pulls that were flushed before, that
// a flush had already read, or that came after the loss must not be counted again.
// Statistics must stay complete, so that policies that need them can still be judged.
func TestRecount(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	c := server.client(t)
	for _, when := range []string{"between flushes", "begun", "read", "before commit", "after commit", "settled"} {
		s := open(t, when == "read", 2)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		w := s.flusher(t, r, func(o *redispulls.FlushOptions) { o.Batch = 3 })
		must(t, w.Flush(t.Context()))
		s.since(t) // makes the state's row
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
		n := 0
		pulls := func(random *rand.Rand, count int) {
			t.Helper()
			rec := s.recorder(t, r)
			_, err := rec.presence.tick(t.Context())
			must(t, err)
			for range count {
				n++
				rec.Pulled(t.Context(), s.client("a", random.IntN(2), fmt.Sprint("v", random.IntN(4)), fmt.Sprint(random.IntN(3))))
			}
			finish(t, rec)
		}
		random := rand.New(rand.NewPCG(uint64(len(when)), 1))
		pulls(random, 20)
		must(t, w.Flush(t.Context()))
		pulls(random, 20)
		empty := func() { must(t, c.FlushAll(t.Context()).Err()) }
		if when == "between flushes" {
			empty()
		} else {
			emptied := false
			w.crash = at(when, func() {
				if !emptied {
					emptied = true
					empty()
				}
			})
			w.Flush(t.Context()) //nolint:errcheck // it may find that Redis has lost pulls
			w.crash = func(string) {}
		}
		pulls(random, 20) // in the emptied Redis, before any process has noticed the loss
		var group errgroup.Group
		for range 2 {
			group.Go(func() error {
				s.flusher(t, r).Flush(t.Context()) //nolint:errcheck // one of the two may notice the loss during its run
				return nil
			})
		}
		must(t, group.Wait())
		must(t, w.Flush(t.Context()))
		settle(t, s.worker(t))
		entries := s.entries(t)
		if len(entries) != n {
			t.Errorf("%s: %d pulls are logged, want %d", when, len(entries), n)
		}
		got, want := s.books(t), truth(entries)
		for _, b := range []books{got, want} { // two pulls may have the same time
			for name, r := range b {
				r.Other = ""
				b[name] = r
			}
		}
		compare(t, got, want)
		if since := s.since(t); !since.Equal(noon) {
			t.Errorf("%s: statistics are complete since %v only, though nothing is missing", when, since)
		}
		if t.Failed() {
			t.Fatalf("Redis was emptied: %s", when)
		}
	}
}

// A flush has read counters, and then Redis loses them. A second flush notices the loss and
// begins a recount, which must wait for the first flush: the first flush counts these pulls,
// and the recount must not count them again.
func TestRecountBesideFlush(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	must(t, s.flusher(t, r).Flush(t.Context()))
	rec := s.recorder(t, r)
	_, err := rec.presence.tick(t.Context())
	must(t, err)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	finish(t, rec)
	done := make(chan error, 1)
	slow := s.flusher(t, r)
	slow.crash = at("saved", func() { // before it locks a row for which another flush would wait when it begins
		must(t, server.client(t).FlushAll(t.Context()).Err())
		go func() { done <- s.flusher(t, r).Flush(t.Context()) }()
		select {
		case err := <-done:
			t.Errorf("the recount is over, though a flush isn't: %v", err)
			done <- err
		case <-time.After(2 * time.Second):
		}
	})
	slow.Flush(t.Context()) //nolint:errcheck // fails at its end if it finds the loss before the recount is over
	must(t, <-done)
	settle(t, s.worker(t))
	if got := s.books(t)[tagName(s, 0, "v1")].Count; got != 1 {
		t.Errorf("%d pulls are counted, want 1", got)
	}
}

// Redis loses the pulls of two recorders, one of which doesn't log its pulls. The pull of
// the other recorder, which is in the audit log, must be counted from the log. Statistics
// must no longer count as complete.
func TestRecountIncomplete(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	w := s.flusher(t, r)
	must(t, w.Flush(t.Context()))
	s.since(t)
	exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
	for _, change := range [][]func(*RecorderOptions){nil, {unlogged}} {
		rec := s.recorder(t, r, change...)
		_, err := rec.presence.tick(t.Context())
		must(t, err)
		rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
		ended(t, rec)
	}
	must(t, server.client(t).FlushAll(t.Context()).Err())
	must(t, w.Flush(t.Context()))
	settle(t, s.worker(t))
	if got := s.books(t)[tagName(s, 0, "v1")].Count; got != 1 {
		t.Errorf("%d pulls are counted, want the one that is in the log", got)
	}
	if since := s.since(t); time.Since(since) > time.Minute {
		t.Errorf("statistics are complete since %v, though a pull is missing", since)
	}
}

// ended ends a recorder like finish, but also a recorder that has no log.
func ended(t *testing.T, rec *Recorder) {
	t.Helper()
	rec.Close(t.Context())
	must(t, rec.opt.Log.Close(t.Context()))
	must(t, rec.opt.LastUsed.Close(t.Context()))
	must(t, rec.Leave(t.Context(), false))
}

// Redis counts a pull and is emptied before the pull is in the audit log. The recount must
// wait until the pull is written, and then count it from the log.
func TestRecountWaits(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	w := s.flusher(t, r)
	must(t, w.Flush(t.Context()))
	rec := s.recorder(t, r)
	stop := running(t, rec)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	until(t, "Redis has it", func() bool { return rec.queue.waiting() == 0 && rec.opt.Log.Pending() == 1 })
	must(t, server.client(t).FlushAll(t.Context()).Err())
	done := make(chan error, 1)
	go func() { done <- w.Flush(t.Context()) }()
	select {
	case err := <-done:
		t.Fatalf("the recount is over, though a pull isn't written: %v", err)
	case <-time.After(3 * time.Second):
	}
	must(t, rec.opt.Log.Close(t.Context()))
	must(t, <-done)
	stop()
	settle(t, s.worker(t))
	if got := s.books(t)[tagName(s, 0, "v1")].Count; got != 1 {
		t.Errorf("%d pulls are counted, want 1", got)
	}
	if n := s.logged(t, audit.CountedByAudit); n != 1 {
		t.Errorf("%d pulls are marked as counted from the log, want 1", n)
	}
}
