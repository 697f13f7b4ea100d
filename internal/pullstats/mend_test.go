package pullstats

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
)

// The database's clock was years ahead for a while, and times were stored meanwhile. When it is
// right again, the statistics must be complete from the present time on, requests must be joined,
// flushes of Redis must be due, and a dead process must not count as alive until then. Reset must
// also end the uses in the future.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	w := s.worker(t, func(o *SyncOptions) { o.Redis = r })
	must(t, w.Sync(t.Context()))
	must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon)))
	settle(t, w)
	rec := s.recorder(t, r)
	rec.Pulled(t.Context(), s.client("a", 0, "v2", "b"))
	_, err := rec.presence.tick(t.Context()) // then the process is killed
	must(t, err)
	exec(t, s.stats, "INSERT INTO tagpullstatistics (repository_id, tag_name, last_check_date) VALUES ($1, 'v3', now())", s.repositories[0])
	for _, sql := range []string{
		"UPDATE pullstatisticsprocessingstate SET recorded_since = now() + interval '3 years', checks_since = now() + interval '3 years', uncounted_at = now() + interval '3 years'",
		"UPDATE redisprocessingstate SET last_processed_timestamp = now() + interval '3 years', updated_at = now() + interval '3 years'",
		"UPDATE pullrecorders SET seen_at = now() + interval '3 years'",
		"UPDATE tagpullstatistics SET last_check_date = now() + interval '3 years' WHERE tag_name = 'v3'",
		`INSERT INTO pullstatisticspending (id, head, client, repository_id, tag, digest, time, port)
			SELECT 1000000, false, '\x00', min(id), '', '` + digest("a").String() + `', now() + interval '3 years', 0 FROM repositories`,
	} {
		exec(t, s.stats, sql)
	}
	must(t, w.Sync(t.Context()))
	st := s.counts(t)
	for name, at := range map[string]time.Time{"uses": st.Since, "counts": st.Counts, "HEADs": st.Checks} {
		if time.Since(at).Abs() > time.Minute {
			t.Errorf("%s are complete since %v", name, at)
		}
	}
	if n := number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE seen_at > now() + interval '1 minute'"); n != 0 {
		t.Errorf("%d dead processes count as alive for years", n)
	}
	exec(t, s.stats, "UPDATE pullrecorders SET seen_at = now() - interval '2 minutes'")
	settle(t, w)
	f := s.flusher(t, r)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	until(t, "a flush that is due", func() bool {
		return number(t, s.stats, "SELECT count(*) FROM redisprocessingstate WHERE last_processed_timestamp BETWEEN now() - interval '1 minute' AND now()") == 1
	})
	stop()
	must(t, <-ended)
	must(t, f.Flush(t.Context()))
	if behind, err := f.Behind(t.Context()); err != nil || behind > time.Minute || number(t, s.stats, "SELECT count(*) FROM redisprocessingstate WHERE last_processed_timestamp > now()") > 0 {
		t.Errorf("the last flush was %v ago: %v", behind, err)
	}
	used := func() time.Time {
		uses, err := w.Uses(t.Context(), s.repositories[0], []string{"v3"}, nil)
		must(t, err)
		return uses.Tags["v3"]
	}
	if time.Until(used()) < time.Hour {
		t.Errorf("the use in the future was at %v: nobody knows when it really was", used())
	}
	_, err = w.Reset(t.Context())
	must(t, err)
	if time.Since(used()).Abs() > time.Minute {
		t.Errorf("after Reset the tag was used at %v, want the present time", used())
	}
	if n := number(t, s.stats, "SELECT count(*) FROM tagpullstatistics WHERE tag_name = 'v1' AND last_check_date IS NOT NULL"); n != 0 {
		t.Error("Reset has made up a use")
	}
}

// The database's clock is behind, and in doubt, so what is right looks like the future: since when uses are
// recorded, and when a tag was last used. Neither a start nor a HEAD may replace that by an earlier
// time. When the clock is fit again, what is still in the future is mended.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	doubt := errors.New("in doubt")
	w := s.worker(t, func(o *SyncOptions) { o.ClocksFit = func(context.Context) error { return doubt } })
	must(t, w.Sync(t.Context()))
	exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() + interval '55 days', checks_since = now() + interval '50 days'")
	exec(t, s.stats, "INSERT INTO tagpullstatistics (repository_id, tag_name, last_check_date) VALUES ($1, 'prod', now() + interval '60 days')", s.repositories[0])
	used := func() time.Duration {
		t.Helper()
		uses, err := w.Uses(t.Context(), s.repositories[0], []string{"prod"}, nil)
		must(t, err)
		return time.Until(uses.Tags["prod"])
	}
	head := func() {
		t.Helper()
		m, err := NewLastUsedRecorder(LastUsedOptions{Databases: s.databases(), ClocksFit: func(context.Context) error { return doubt }, Log: quiet})
		must(t, err)
		m.tagUsed(s.repositories[0], "prod", time.Now())
		must(t, m.write(t.Context(), m.due()))
	}
	head()
	must(t, w.Sync(t.Context()))
	if st := s.counts(t); time.Until(st.Since) < 54*24*time.Hour || time.Until(st.Checks) < 49*24*time.Hour {
		t.Errorf("while the clock was behind, uses were recorded since %v, HEADs since %v", st.Since, st.Checks)
	}
	if until := used(); until < 59*24*time.Hour {
		t.Errorf("a HEAD by a clock that is behind made the last use %v from now", until)
	}
	doubt = nil
	head()
	must(t, w.Sync(t.Context()))
	if st := s.counts(t); time.Since(st.Since).Abs() > time.Minute || time.Since(st.Checks).Abs() > time.Minute {
		t.Errorf("with a clock that is fit, uses are recorded since %v, HEADs since %v", st.Since, st.Checks)
	}
	if until := used(); until.Abs() > time.Minute {
		t.Errorf("with a clock that is fit, the last use is %v from now", until)
	}
}

// The database's clock is set forward by years. Processes that run and report after that must not
// count as killed, although their last reports look years old.
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	w := s.worker(t)
	w.confirm = time.Hour
	must(t, w.Sync(t.Context()))
	rec := s.recorder(t, nil)
	rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
	tick := func() {
		t.Helper()
		_, err := rec.presence.tick(t.Context())
		must(t, err)
	}
	tick()
	before := s.counts(t).Since
	exec(t, s.stats, "UPDATE pullrecorders SET seen_at = now() - interval '3 years'")
	must(t, w.Sync(t.Context()))
	if !w.hasSuspects() {
		t.Error("nobody is suspected")
	}
	tick()
	w.confirm = 0
	must(t, w.Sync(t.Context()))
	if st := s.counts(t); !st.Since.Equal(before) || number(t, s.stats, "SELECT count(*) FROM pullrecorders WHERE ended_at IS NULL") != 1 {
		t.Errorf("a process that reports counts as killed; complete since %v", st.Since)
	}
}

// Pulls of tags wait because a killed process may have had their HEADs. Status must say how long
// they have waited, although the audit log has nothing that is uncounted.
func TestBehindWithPendingPulls(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	w := s.worker(t)
	must(t, w.Sync(t.Context()))
	dead, rec := s.recorder(t, nil), s.recorder(t, nil)
	dead.Checked(t.Context(), s.client("b", 0, "v1", "x"))
	_, err := dead.presence.tick(t.Context()) // then it is killed
	must(t, err)
	rec.Checked(t.Context(), s.client("a", 0, "v1", "x"))
	rec.Pulled(t.Context(), s.client("a", 0, "", "x"))
	finish(t, rec)
	until(t, "the pull is counted for its manifest", func() bool {
		must(t, w.Sync(t.Context()))
		return s.books(t)[manifestName(s, 0, "x")].Count == 1
	})
	exec(t, s.stats, "UPDATE pullstatisticspending SET time = time - interval '30 seconds'")
	exec(t, s.stats, "UPDATE pullrecorders SET written_to = written_to - interval '31 seconds' WHERE ended_at IS NULL")
	must(t, w.Sync(t.Context()))
	st, err := w.Status(t.Context())
	must(t, err)
	if st.Behind < 25*time.Second || st.Behind > time.Minute {
		t.Errorf("the statistics are %v behind, while a pull of a tag has waited for 30 seconds", st.Behind)
	}
	exec(t, s.stats, "UPDATE pullrecorders SET seen_at = now() - interval '5 minutes' WHERE ended_at IS NULL")
	settle(t, w)
	if st, err = w.Status(t.Context()); err != nil || st.Behind != 0 {
		t.Errorf("the statistics are %v behind when nothing waits: %v", st.Behind, err)
	}
	s.wantCounts(t, map[string]int64{tagName(s, 0, "v1"): 1})
}
