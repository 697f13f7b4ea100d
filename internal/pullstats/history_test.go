package pullstats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

// midnight is a moment at which a day begins.
var midnight = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// The audit log's recorder joins pulls of one client. Pulls from before and after midnight must
// count for their own days, whether they are in one entry (by digest) or in two (by tag).
func TestHistoryAtMidnight(t *testing.T) {
	t.Parallel()
	s := open(t, true, 2)
	recorder := audit.NewRecorder(audit.RecorderOptions{DB: s.log, Alive: alive, Join: 10 * time.Second, Log: quiet})
	var all []audit.Entry
	for i := range 11 {
		for repository, tag := range []string{"v1", ""} {
			e := s.pull(repository, tag, "a", midnight.Add(time.Duration(i-7)*time.Millisecond))
			e.Port = 1
			all = append(all, e)
			if !recorder.Record(t.Context(), e) {
				t.Fatal("the buffer is full")
			}
		}
	}
	must(t, recorder.Close(t.Context()))
	for repository, want := range []int64{2, 1} {
		if n := number(t, s.log, "SELECT count(*) FROM auditlog WHERE repository_id = $1", s.repositories[repository]); n != want {
			t.Errorf("repository %d has %d entries, want %d", repository, n, want)
		}
	}
	settle(t, s.worker(t))
	compare(t, s.books(t), truth(all))
}

// A counter in Redis lives for several days and is flushed at some time in each of them, by
// workers that die at any step. Each pull must count for its own day.
func TestHistoryInRedis(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for i, step := range append([]string{""}, steps...) {
		s := open(t, i%2 == 1, 1)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		var all []audit.Entry
		for day := range 4 {
			after := func(hour time.Duration) time.Time { return midnight.AddDate(0, 0, day).Add(hour) }
			for _, list := range [][]audit.Entry{
				{s.pull(0, "v1", "a", after(time.Hour)), s.pull(0, "", "a", after(2*time.Hour)), s.pull(0, "v1", "b", after(time.Hour))},
				{s.pull(0, "v1", "a", after(12*time.Hour)), s.pull(0, "v2", "a", after(13*time.Hour))},
				{s.pull(0, "v1", "a", after(24*time.Hour-1000)), s.pull(0, "v1", "a", after(24*time.Hour)), s.pull(0, "", "a", after(24*time.Hour))},
			} {
				recorded(t, rec, list...)
				all = append(all, list...)
			}
			if day == 1 { // so the first flush finds pulls of two days
				w := s.flusher(t, r)
				if step != "" {
					w.crash = at(step, crashHere)
				}
				_, err := dies(func() error { return w.Flush(t.Context()) })
				must(t, err)
			}
		}
		must(t, s.flusher(t, r).Flush(t.Context()))
		compare(t, s.books(t), truth(all))
		s.drained(t, c)
		if t.Failed() {
			t.Fatalf("after it died when it had %s", step)
		}
	}
}

// counted adds pulls to the statistics, as the workers do.
func (s *shop) counted(t testing.TB, list ...audit.Entry) {
	t.Helper()
	tx, err := s.stats.Pool.Begin(t.Context())
	must(t, err)
	sum := statsdb.NewAdder(s.living())
	for _, e := range list {
		sum.Add(e.RepositoryID, e.Tag, e.Digest, int64(max(e.Pulls, 1)), statsdb.DayOf(e.Time), e.Time)
	}
	must(t, sum.Sums().Write(t.Context(), tx))
	must(t, tx.Commit(t.Context()))
}

func (s *shop) reader(t testing.TB, retention time.Duration) *Reader {
	t.Helper()
	r, err := NewReader(Options{DB: s.stats, Retention: retention})
	must(t, err)
	return r
}

// wantHistory compares the days with pulls of a history with `want`: days ago and pulls.
func wantHistory(t testing.TB, what string, h History, days int, want map[int]int64) {
	t.Helper()
	today, total := statsdb.DayOf(time.Now()), int64(0)
	if len(h.Days) != days {
		t.Errorf("%s: %d days, want %d", what, len(h.Days), days)
	}
	for i, d := range h.Days {
		ago := len(h.Days) - 1 - i
		if !d.Day.Equal(today.AddDate(0, 0, -ago)) || d.Pulls != want[ago] {
			t.Errorf("%s: %v, want %d pulls %d days ago", what, d, want[ago], ago)
		}
		total += d.Pulls
	}
	if h.Total != total {
		t.Errorf("%s: the total is %d, want %d", what, h.Total, total)
	}
}

// A reader must return the pulls of each day, those without pulls too, from the day on when the
// history began or that the retention leaves. Top lists must add up the same days.
func TestReadHistory(t *testing.T) {
	t.Parallel()
	s := open(t, true, 3)
	ctx := t.Context()
	if h, err := s.reader(t, 0).RegistryHistory(ctx, 10); err != nil || !h.Since.IsZero() || len(h.Days) != 0 {
		t.Errorf("before anything was counted: %+v, %v", h, err)
	}
	s.since(t) // makes the state's row
	exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET history_since = now() - interval '20 days'")
	at := func(ago int) time.Time { return statsdb.DayOf(time.Now()).AddDate(0, 0, -ago).Add(time.Minute) }
	times := func(e audit.Entry, n int) audit.Entry { e.Pulls = n; return e }
	s.counted(t, times(s.pull(0, "v1", "a", at(5)), 3), s.pull(0, "", "a", at(5)), times(s.pull(1, "v1", "a", at(5)), 50))
	s.counted(t, times(s.pull(0, "v1", "b", at(2)), 4), times(s.pull(0, "v2", "a", at(0)), 6), times(s.pull(2, "v1", "a", at(0)), 5))
	s.counted(t, times(s.pull(0, "v1", "a", at(12)), 7), s.pull(0, "v1", "a", at(5)), s.pull(0, "v1", "a", at(-1))) // late pulls, and a clock that is ahead
	r := s.reader(t, 0)
	for _, c := range []struct {
		what string
		read func(n int) (History, error)
		want map[int]int64
	}{
		{"registry", func(n int) (History, error) { return r.RegistryHistory(ctx, n) }, map[int]int64{12: 7, 5: 55, 2: 4, 0: 11}},
		{"namespace", func(n int) (History, error) { return r.NamespaceHistory(ctx, s.namespace, n) }, map[int]int64{12: 7, 5: 55, 2: 4, 0: 11}},
		{"repository", func(n int) (History, error) { return r.RepositoryHistory(ctx, s.repositories[0], n) }, map[int]int64{12: 7, 5: 5, 2: 4, 0: 6}},
		{"tag", func(n int) (History, error) { return r.TagHistory(ctx, s.repositories[0], "v1", n) }, map[int]int64{12: 7, 5: 4, 2: 4}},
		{"manifest", func(n int) (History, error) { return r.ManifestHistory(ctx, s.repositories[0], digest("a"), n) }, map[int]int64{12: 7, 5: 5, 0: 6}},
		{"nothing", func(n int) (History, error) { return r.TagHistory(ctx, s.repositories[0], "v3", n) }, nil},
	} {
		for n, days := range map[int]int{1: 1, 6: 6, 1000: 21} {
			h, err := c.read(n)
			must(t, err)
			wantHistory(t, fmt.Sprint(c.what, " ", n), h, days, c.want)
			if !h.Since.Equal(statsdb.DayOf(time.Now()).AddDate(0, 0, -20)) {
				t.Errorf("since %v", h.Since)
			}
		}
	}
	h, err := s.reader(t, 4*24*time.Hour).RegistryHistory(ctx, 30)
	must(t, err)
	wantHistory(t, "retention", h, 5, map[int]int64{2: 4, 0: 11})
	top, err := r.TopRepositories(ctx, 0, 6)
	must(t, err)
	if want := []Ranked[int64]{{s.repositories[1], 50}, {s.repositories[0], 15}, {s.repositories[2], 5}}; !slices.Equal(top.List, want) || !top.All {
		t.Errorf("%+v, want %v", top, want)
	}
	top, err = r.TopRepositories(ctx, s.namespace, 1)
	must(t, err)
	if want := []Ranked[int64]{{s.repositories[0], 6}, {s.repositories[2], 5}}; !slices.Equal(top.List, want) {
		t.Errorf("%+v, want %v", top, want)
	}
	top, err = r.TopRepositories(ctx, s.namespace+1, 30)
	must(t, err)
	if len(top.List) != 0 {
		t.Errorf("another namespace has %+v", top)
	}
	tags, err := r.TopTags(ctx, s.repositories[0], 6)
	must(t, err)
	if want := []Ranked[string]{{"v1", 8}, {"v2", 6}}; !slices.Equal(tags.List, want) {
		t.Errorf("%+v, want %v", tags, want)
	}
	pulled, _, err := r.Pulled(ctx, append(s.repositories, -1), 1)
	must(t, err)
	if !pulled[s.repositories[0]] || pulled[s.repositories[1]] || !pulled[s.repositories[2]] || pulled[-1] {
		t.Errorf("pulled today: %v", pulled)
	}
}

// A top list must not read without bound.
func TestTopIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	s.since(t)
	const most = 10_000
	exec(t, s.stats, "INSERT INTO repositorypullhistory (repository_id, day, namespace_id, pulls) SELECT n, now()::date, 1 + n % 100, n FROM generate_series(1, $1::int) n", most+1)
	r := s.reader(t, 0)
	r.topDays = most
	if _, err := r.TopRepositories(t.Context(), 0, 1); !errors.Is(err, ErrTooMuchHistory) {
		t.Errorf("%v", err)
	}
	top, err := r.TopRepositories(t.Context(), 7, 1)
	must(t, err)
	if len(top.List) != most/100 || top.List[0].Pulls != most-100+6 {
		t.Errorf("%d repositories, first %+v", len(top.List), top.List[0])
	}
}

// The retention must delete old days, in batches, and no newer ones, and leave the counts.
func TestRetention(t *testing.T) {
	t.Parallel()
	s := open(t, true, 2)
	s.since(t)
	exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET history_since = now() - interval '100 days'")
	for ago := 60; ago >= 0; ago-- {
		at := time.Now().AddDate(0, 0, -ago)
		s.counted(t, s.pull(0, "v1", "a", at), s.pull(1, "", "b", at))
	}
	before := number(t, s.stats, "SELECT (SELECT sum(tag_pull_count) FROM tagpullstatistics) + (SELECT sum(total_pull_count) FROM manifestpullstatistics)")
	w, err := NewRetentionWorker(RetentionOptions{Stats: s.stats, Retention: 10 * 24 * time.Hour, Batch: 7, Logger: quiet})
	must(t, err)
	batches, deleted := 0, int64(0)
	for more := true; more; batches++ {
		var n int64
		n, more, err = w.batch(t.Context())
		must(t, err)
		if deleted += n; n > 5*7 {
			t.Fatalf("a batch has deleted %d rows", n)
		}
	}
	if want := int64(50 * (1 + 2 + 2 + 1 + 1)); deleted != want || batches < 50*2/7 {
		t.Errorf("%d rows were deleted in %d batches, want %d", deleted, batches, want)
	}
	h, err := s.reader(t, 0).RegistryHistory(t.Context(), 100)
	must(t, err)
	if h.Total != 22 {
		t.Errorf("%d pulls are left, want those of 11 days", h.Total)
	}
	if after := number(t, s.stats, "SELECT (SELECT sum(tag_pull_count) FROM tagpullstatistics) + (SELECT sum(total_pull_count) FROM manifestpullstatistics)"); after != before {
		t.Errorf("the counts were %d, and are %d", before, after)
	}
}

// While the clock is in doubt, no history is deleted, however old it looks. What the worker asks for is
// the time by which it judges, that of the statistics' database.
func TestRetentionInDoubt(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	s.since(t)
	exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET history_since = now() - interval '100 days'")
	s.counted(t, s.pull(0, "v1", "a", time.Now().AddDate(0, 0, -60)))
	why, asked := fmt.Errorf("the clocks disagree: %w", worker.ErrRest), time.Time{}
	w, err := NewRetentionWorker(RetentionOptions{Stats: s.stats, Retention: 10 * 24 * time.Hour, Logger: quiet, MayDelete: func(_ context.Context, now time.Time) error {
		asked = now
		return why
	}})
	must(t, err)
	if more, err := w.round(t.Context()); more || !errors.Is(err, worker.ErrRest) || time.Since(asked).Abs() > time.Hour {
		t.Errorf("in doubt: %v, asked for %v", err, asked)
	}
	const history = "SELECT count(*) FROM pullhistory"
	if n := number(t, s.stats, history); n != 1 {
		t.Errorf("in doubt, %d days of the history are left", n)
	}
	why = nil
	_, err = w.round(t.Context())
	must(t, err)
	if n := number(t, s.stats, history); n != 0 {
		t.Errorf("in doubt no more, %d days of the history are left", n)
	}
}

// When the statistics of a deleted tag are swept, its history must go too. The history of its
// repository, and of other tags, must stay.
func TestSweptHistory(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	yesterday := time.Now().AddDate(0, 0, -1)
	v := &inventory{here: map[string]bool{thing(s.repositories[0], "v2"): true, thing(s.repositories[0], digest("a").String()): true}}
	s.counted(t, s.pull(0, "v1", "a", yesterday), s.pull(0, "v2", "a", yesterday), s.pull(0, "v2", "b", yesterday))
	s.counted(t, s.pull(0, "v1", "a", time.Now()), s.pull(0, "v2", "a", time.Now()), s.pull(0, "v2", "b", time.Now()))
	exec(t, s.stats, "UPDATE tagpullstatistics SET gone_since = now() - interval '31 days', last_tag_pull_date = now() - interval '31 days' WHERE tag_name = 'v1'")
	exec(t, s.stats, "UPDATE manifestpullstatistics SET gone_since = now() - interval '31 days', last_pull_date = now() - interval '31 days' WHERE manifest_digest = $1", digest("b").String())
	sweepAll(t, v.sweeper(t, s.stats))
	books := s.books(t)
	for name, want := range map[string]int64{tagName(s, 0, "v1"): 0, tagName(s, 0, "v2"): 4, manifestName(s, 0, "a"): 4, manifestName(s, 0, "b"): 0, fmt.Sprint("repository ", s.repositories[0]): 6} {
		if books[name].Count != want {
			t.Errorf("%s: %+v, want %d pulls", name, books[name], want)
		}
	}
}

// Plans are made while the tables are empty, and must not read whole tables after these have
// grown.
func TestHistoryIsReadByIndex(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	s.since(t)
	tx, err := s.stats.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test is over
	r := &Reader{stats: s.stats, q: tx}
	read := func() {
		t.Helper()
		ctx, d := t.Context(), oci.Compute(oci.SHA256, nil)
		_, err1 := r.RegistryHistory(ctx, 30)
		_, err2 := r.NamespaceHistory(ctx, 1, 30)
		_, err3 := r.RepositoryHistory(ctx, 1, 30)
		_, err4 := r.TagHistory(ctx, 1, "v1", 30)
		_, err5 := r.ManifestHistory(ctx, 1, d, 30)
		_, err6 := r.TopRepositories(ctx, 1, 30)
		_, err7 := r.TopTags(ctx, 1, 30)
		_, _, err8 := r.Pulled(ctx, []int64{1, 2}, 30)
		must(t, errors.Join(err1, err2, err3, err4, err5, err6, err7, err8))
	}
	for range 6 {
		read()
	}
	for _, sql := range []string{
		"INSERT INTO tagpullhistory SELECT n, 'v1', now()::date, 1 FROM generate_series(1, 5000) n",
		"INSERT INTO manifestpullhistory SELECT n, 'sha256:x', now()::date, 1 FROM generate_series(1, 5000) n",
		"INSERT INTO repositorypullhistory SELECT n, now()::date, n, 1 FROM generate_series(1, 5000) n",
		"INSERT INTO namespacepullhistory SELECT n, now()::date, 1 FROM generate_series(1, 5000) n",
		"INSERT INTO tagpullstatistics (repository_id, tag_name, day, day_pulls) SELECT n, 'v1', now()::date, 1 FROM generate_series(1, 5000) n",
	} {
		_, err := tx.Exec(t.Context(), sql)
		must(t, err)
	}
	const rows = `SELECT COALESCE(sum(seq_tup_read), 0)::bigint, COALESCE(sum(idx_tup_fetch), 0)::bigint FROM pg_stat_xact_user_tables WHERE relname LIKE '%pull%'`
	var wholeBefore, whole, foundBefore, found int64
	must(t, tx.QueryRow(t.Context(), rows).Scan(&wholeBefore, &foundBefore))
	read()
	must(t, tx.QueryRow(t.Context(), rows).Scan(&whole, &found))
	if whole -= wholeBefore; whole > 100 {
		t.Errorf("%d rows were read without an index", whole)
	}
	if found -= foundBefore; found > 100 {
		t.Errorf("%d rows were read by indexes", found)
	}
}
