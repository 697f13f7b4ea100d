package pullstats

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
)

// Pulls go through Redis into the statistics, and into the log as counted there.
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
			if len(got) > 0 {
				t.Errorf("besides: %+v", got)
			}
		}
		check()
		must(t, w.Flush(t.Context())) // nothing is left
		settle(t, s.worker(t))        // and nothing of it counts in the log
		check()
	}
}
