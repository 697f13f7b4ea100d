package pullstats

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
)

// Clients pull, and Redis counts. The audit log must mark the pulls as counted by Redis, and
// a flush must add each of them to the statistics once.
func TestRedis(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, apart := range []bool{false, true} {
		s := open(t, apart, 2)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r)
		before := time.Now().Truncate(time.Microsecond)
		for range 5 {
			rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
		}
		rec.Pulled(t.Context(), s.client("a", 0, "v2", "x"))
		rec.Pulled(t.Context(), s.client("a", 0, "", "x"))
		rec.Pulled(t.Context(), s.client("a", 1, "v1", "y"))
		finish(t, rec)
		if n := s.logged(t, audit.CountedByRedis); n != 8 {
			t.Errorf("%d pulls are logged as counted in Redis, want 8", n)
		}
		w := s.flusher(t, r)
		must(t, w.Flush(t.Context()))
		check := func() {
			t.Helper()
			got := s.books(t)
			for name, want := range map[string]row{
				tagName(s, 0, "v1"):     {Count: 5, Other: digest("x").String()},
				tagName(s, 0, "v2"):     {Count: 1, Other: digest("x").String()},
				tagName(s, 1, "v1"):     {Count: 1, Other: digest("y").String()},
				manifestName(s, 0, "x"): {Count: 7, Other: "v2"},
				manifestName(s, 1, "y"): {Count: 1, Other: "v1"},
			} {
				g := got[name]
				if g.Count != want.Count || g.Other != want.Other || g.Last.Before(before) || g.Last.After(time.Now()) {
					t.Errorf("%s: %+v, want %+v", name, g, want)
				}
				delete(got, name)
			}
			for i, want := range []int64{7, 1} {
				name := fmt.Sprint("repository ", s.repositories[i])
				if g := got[name]; g.Count != want {
					t.Errorf("%s: %+v, want %d", name, g, want)
				}
				delete(got, name)
			}
			if len(got) > 0 {
				t.Errorf("besides: %+v", got)
			}
		}
		check()
		must(t, w.Flush(t.Context())) // no pull is left
		settle(t, s.worker(t))        // and no pull is counted from the log
		check()
	}
}

// Pulls aren't logged, so the pulls of a tag and manifest that wait for Redis share one
// event. No pull must be lost, not even one that comes while the event is sent, and the
// event must have the time of its newest pull.
func TestRedisWithoutLog(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	r := startRedis(t).open(t, s.stats)
	rec := s.recorder(t, r, func(o *RecorderOptions) { o.Log = nil })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rec.Run(ctx) }()
	var group errgroup.Group
	const clients, each = 4, 20_000
	for range clients {
		group.Go(func() error {
			for n := range each {
				rec.Pulled(t.Context(), s.client("a", 0, fmt.Sprint("v", n%3), "x"))
				if n%100 == 0 {
					rec.Pulled(t.Context(), s.client("a", 0, "", "x"))
				}
			}
			return nil
		})
	}
	must(t, group.Wait())
	if n := rec.queue.waiting(); n > 3*clients*each/100 {
		t.Errorf("%d events wait", n)
	}
	stop()
	must(t, <-done)
	last := time.Now()
	rec.Pulled(t.Context(), s.client("a", 0, "v0", "x"))
	rec.Pulled(t.Context(), s.client("a", 0, "v0", "x"))
	rec.Close(t.Context())
	rec.Pulled(t.Context(), s.client("a", 0, "v0", "x")) // too late
	must(t, s.flusher(t, r).Flush(t.Context()))
	got := s.books(t)
	v0 := got[tagName(s, 0, "v0")]
	if sum := v0.Count + got[tagName(s, 0, "v1")].Count + got[tagName(s, 0, "v2")].Count; sum != clients*each+2 {
		t.Errorf("%d pulls by tag, want %d", sum, clients*each+2)
	}
	if n := got[manifestName(s, 0, "x")].Count; n != clients*each+clients*each/100+2 {
		t.Errorf("%d pulls of the manifest, want %d", n, clients*each+clients*each/100+2)
	}
	if v0.Last.Before(last.Truncate(time.Microsecond)) {
		t.Errorf("the last pull was at %v, want %v or later", v0.Last, last)
	}
}
