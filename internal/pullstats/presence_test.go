package pullstats

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
)

// A process that has recorded pulls is killed, or stops, in several states. If it was
// killed with unwritten pulls, statistics must count as complete only from then on. If it
// had written all its pulls, or stopped properly, statistics must stay complete.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	w := s.worker(t)
	must(t, w.Sync(t.Context()))
	moved := func() bool {
		t.Helper()
		must(t, w.Sync(t.Context()))
		return time.Since(s.since(t)) < time.Hour
	}
	silent := func(d string) { exec(t, s.stats, "UPDATE pullrecorders SET seen_at = now() - $1::interval", d) }
	tick := func(rec *Recorder) {
		t.Helper()
		_, err := rec.presence.tick(t.Context())
		must(t, err)
	}
	for name, test := range map[string]struct {
		prepare func(rec *Recorder)
		silent  string
		want    bool
	}{
		"stopped":             {func(rec *Recorder) { finish(t, rec) }, "5 minutes", false},
		"killed, all written": {func(rec *Recorder) { must(t, rec.opt.Log.Close(t.Context())); tick(rec); tick(rec) }, "5 minutes", false},
		"killed, use unwritten": {func(rec *Recorder) {
			rec.Checked(t.Context(), s.client("a", 0, "", "x"))
			must(t, rec.opt.Log.Close(t.Context()))
			tick(rec)
			tick(rec)
		}, "5 minutes", true},
		"busy":                  {tick, "3 seconds", false},
		"not heard of":          {tick, "20 seconds", true},
		"killed with unwritten": {tick, "5 minutes", true},
		"stopped, and lost":     {func(rec *Recorder) { tick(rec); must(t, rec.Leave(t.Context(), true)) }, "1 second", true},
	} {
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days'")
		exec(t, s.stats, "DELETE FROM pullrecorders")
		rec := s.recorder(t, nil)
		rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
		tick(rec)
		test.prepare(rec)
		silent(test.silent)
		if got := moved(); got != test.want {
			t.Errorf("%s: statistics are complete since now: %v, want %v", name, got, test.want)
		}
		if test.silent == "5 minutes" && number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE ended_at IS NULL") > 0 {
			t.Errorf("%s: it is taken to be alive", name)
		}
	}
	rec := s.recorder(t, nil)
	tick(rec)
	exec(t, s.stats, "UPDATE pullrecorders SET ended_at = now()")
	tick(rec) // the process was declared dead and still runs
	if n := number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE ended_at IS NULL"); n != 1 {
		t.Errorf("%d processes are known, want the one that is back", n)
	}
}

// The database was set back to an earlier state, of which nothing shows what was used since then.
// Recover must record that uses are known from now on only, and Reset, after a move, that they are
// known as before. Both must end what keeps the worker from counting.
func TestRecover(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		w := s.worker(t)
		must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon)))
		settle(t, w)
		for _, step := range []struct {
			name   string
			reset  func(ctx context.Context) (int64, error)
			recent bool
		}{{"a move", w.Reset, false}, {"a recovery", w.Recover, true}} {
			exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1, checks_since = $1, last_processed_xid = '1099511627776'", noon)
			if n, err := step.reset(t.Context()); err != nil || n != 0 {
				t.Errorf("%s: %d pulls are to be counted, %v", step.name, n, err)
			}
			st, err := w.Status(t.Context())
			must(t, err)
			if st.Foreign || (time.Since(st.Since) < time.Minute) != step.recent || (time.Since(st.Checks) < time.Minute) != step.recent {
				t.Errorf("%s: %+v", step.name, st)
			}
		}
		settle(t, w)
		compare(t, s.books(t), truth([]audit.Entry{s.pull(0, "v1", "a", noon)}))
	})
}

// One process has no Redis client, while another process counts in Redis. The process
// without a client must refuse to say when tags were last used as long as Redis counts
// pulls or may have unflushed pulls. After AbandonRedis it must answer again.
func TestUnseen(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	blind, seeing := s.worker(t), s.worker(t, func(o *SyncOptions) { o.Redis = r })
	check := func(when string, want bool) {
		t.Helper()
		st, err := blind.Status(t.Context())
		must(t, err)
		_, err = blind.Uses(t.Context(), s.repositories[0], []string{"v1"}, nil)
		if st.Unseen != want || errors.Is(err, ErrUnseen) != want {
			t.Errorf("%s: pulls are unseen: %v, %v; want %v", when, st.Unseen, err, want)
		}
		if st, err := seeing.Status(t.Context()); err != nil || st.Unseen {
			t.Errorf("%s: who reads Redis doesn't see pulls: %v", when, err)
		}
	}
	check("before", false)
	rec := s.recorder(t, r)
	_, err := rec.presence.tick(t.Context())
	must(t, err)
	check("while Redis counts", true)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	finish(t, rec)
	check("while Redis has what isn't flushed", true)
	must(t, s.flusher(t, r).Flush(t.Context()))
	check("when it is flushed", false)
	rec = s.recorder(t, r)
	_, err = rec.presence.tick(t.Context())
	must(t, err)
	finish(t, rec)
	must(t, blind.Sync(t.Context()))
	exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
	check("when another process has counted there", true)
	must(t, blind.AbandonRedis(t.Context()))
	check("when it is given up", false)
	if since := s.since(t); time.Since(since) > time.Minute {
		t.Errorf("statistics are complete since %v though pulls were given up", since)
	}
}
