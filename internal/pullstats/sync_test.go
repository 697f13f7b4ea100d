package pullstats

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// each runs a test twice: with audit log and statistics in one database, and in two
// databases.
func each(t *testing.T, repositories int, fn func(t *testing.T, s *shop)) {
	for name, apart := range map[string]bool{"one database": false, "two databases": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, open(t, apart, repositories))
		})
	}
}

// A pull by tag must count for the tag and its manifest, a pull by digest for the manifest
// alone. The statistics must say that the tag points to the manifest of its newest pull, in
// whatever order the pulls are read.
func TestSync(t *testing.T) {
	t.Parallel()
	each(t, 2, func(t *testing.T, s *shop) {
		w := s.worker(t, func(o *SyncOptions) { o.Batch = 2 })
		var all []audit.Entry
		for _, step := range [][]audit.Entry{
			{s.pull(0, "v1", "a", noon), s.pull(0, "", "a", noon.Add(time.Minute)), s.pull(0, "v1", "b", noon.Add(2*time.Minute))},
			{s.pull(0, "v1", "a", noon.Add(-time.Hour)), s.pull(1, "v1", "a", noon), s.pull(0, "v2", "a", noon.Add(30*time.Second))},
			{s.pull(0, "old", "a", noon.Add(-2*time.Hour)), s.pull(0, "", "c", noon), s.pull(0, "", "c", noon.Add(-time.Hour))},
			{},
		} {
			must(t, audit.Append(t.Context(), s.log.Pool, step...))
			all = append(all, step...)
			settle(t, w)
			compare(t, s.books(t), truth(all))
		}
		got := s.books(t)
		// Manifest a was last pulled by digest, and before that by the tag v2, so v2 must
		// still be its last tag.
		if a := got[fmt.Sprintf("manifest %d %s", s.repositories[0], digest("a"))]; a.Other != "v2" || a.Count != 5 || !a.Last.Equal(noon.Add(time.Minute)) {
			t.Errorf("manifest a: %+v", a)
		}
		if v1 := got[fmt.Sprintf("tag %d v1", s.repositories[0])]; v1.Other != digest("b").String() || v1.Count != 3 {
			t.Errorf("tag v1: %+v", v1)
		}
		if st, err := w.Status(t.Context()); err != nil || st.Counted != 9 || st.Behind != 0 || !st.Last.Equal(noon.Add(2*time.Minute)) {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// The log has pulls that Redis has counted and pulls of deleted repositories. The worker
// must not count them, and must go on to the pulls after them.
func TestSyncPassesOver(t *testing.T) {
	t.Parallel()
	each(t, 3, func(t *testing.T, s *shop) {
		redis, mine, gone, dead := s.pull(0, "v1", "a", noon), s.pull(0, "v1", "a", noon), s.pull(1, "v1", "a", noon), s.pull(2, "v1", "a", noon)
		redis.CountedBy, mine.CountedBy, gone.RepositoryID = audit.CountedByRedis, audit.CountedByAudit, 0
		other := audit.Entry{Kind: audit.PushRepo, Repository: "acme/app1", RepositoryID: s.repositories[0], Tag: "v1", Digest: digest("a")}
		must(t, audit.Append(t.Context(), s.log.Pool, redis, gone, dead, other, mine))
		exec(t, s.log, "DELETE FROM repositories WHERE id = $1", s.repositories[2]) // its entries still have the id
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		w := s.worker(t, func(o *SyncOptions) { o.Batch, o.Metrics = 1, m })
		settle(t, w)
		compare(t, s.books(t), truth([]audit.Entry{mine}))
		for result, want := range map[string]float64{entryCounted: 1, entryElsewhere: 1, entryGone: 2} {
			if got := testutil.ToFloat64(m.entries.WithLabelValues(result)); got != want {
				t.Errorf("%s: %v, want %v", result, got, want)
			}
		}
	})
}

// A transaction writes an entry and stays open, and another entry with a greater id is
// committed. The worker must wait until the first transaction ends, and then count both
// entries.
func TestSyncWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		w := s.worker(t)
		tx, err := s.log.Pool.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(t.Context()) //nolint:errcheck // after a failure
		early := s.pull(0, "early", "a", noon.Add(time.Second))
		must(t, audit.Append(t.Context(), tx, early))
		late := s.pull(0, "late", "a", noon)
		must(t, audit.Append(t.Context(), s.log.Pool, late))
		must(t, w.Sync(t.Context()))
		compare(t, s.books(t), books{})
		if st, err := w.Status(t.Context()); err != nil || st.Behind < time.Hour {
			t.Errorf("%+v, %v: the late one waits", st, err)
		}
		must(t, tx.Commit(t.Context()))
		settle(t, w)
		compare(t, s.books(t), truth([]audit.Entry{early, late}))
	})
}

// A client deletes a repository while the worker counts its pulls. The deletion must wait
// until the counts are committed, so that the clean-up after it finds the repository's
// statistics.
func TestSyncHoldsRepositories(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		w := s.worker(t)
		must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon)))
		tried := false
		w.crash = func(step string) error {
			if step != "before commit" {
				return nil
			}
			tried = true
			return pgx.BeginFunc(t.Context(), s.log.Pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = 50"); err != nil {
					return err
				}
				if _, err := tx.Exec(t.Context(), "DELETE FROM repositories WHERE id = $1", s.repositories[0]); err == nil {
					return errors.New("the repository went while its pulls were being counted")
				}
				return nil
			})
		}
		// The DELETE fails, because the worker has locked the repository. So the transaction
		// of the DELETE is rolled back, and BeginFunc returns ErrTxCommitRollback, which
		// becomes the error of Sync.
		for deadline := time.Now().Add(time.Minute); !tried; time.Sleep(5 * time.Millisecond) {
			if err := w.Sync(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxCommitRollback) || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	})
}

// Status.Since must be the time of the log's first pull, and must move forward when unread
// entries may have been dropped or when a process doesn't record pulls.
func TestRecordedSince(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon), s.pull(0, "v1", "a", noon.Add(time.Hour))))
		since := func(w *SyncWorker) time.Time {
			t.Helper()
			must(t, w.Sync(t.Context()))
			st, err := w.Status(t.Context())
			must(t, err)
			return st.Since
		}
		if got := since(s.worker(t)); !got.Equal(noon) {
			t.Errorf("%v, want that of the first entry", got)
		}
		kept := func(o *SyncOptions) { o.Retention = 24 * time.Hour }
		if got := since(s.worker(t, kept)); !got.Equal(noon) {
			t.Errorf("%v after a restart", got)
		}
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET updated_at = now() - interval '25 hours'")
		if got := since(s.worker(t)); !got.Equal(noon) {
			t.Errorf("%v, though entries are kept for ever", got)
		}
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET updated_at = now() - interval '25 hours'")
		if got := since(s.worker(t, kept)); time.Since(got) < 23*time.Hour || time.Since(got) > 25*time.Hour {
			t.Errorf("%v, though entries may have gone unread", got)
		}
		must(t, statsdb.Unrecorded(t.Context(), s.stats, time.Hour))
		if got := since(s.worker(t, kept)); time.Until(got) < 50*time.Minute {
			t.Errorf("%v, though pulls aren't recorded", got)
		}
	})
	t.Run("an empty log", func(t *testing.T) {
		t.Parallel()
		s := open(t, false, 1)
		if st, err := s.worker(t).Status(t.Context()); err != nil || time.Since(st.Since).Abs() > time.Minute || st.Behind != 0 {
			t.Errorf("%+v, %v", st, err)
		}
	})
}

// The worker must count as soon as it runs, and then once in each interval.
func TestRun(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon)))
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	w := s.worker(t, func(o *SyncOptions) { o.Interval, o.Metrics = 60*time.Millisecond, m })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	want := int64(1)
	until(t, "each pull is counted", func() bool {
		if number(t, s.stats, "SELECT COALESCE(sum(tag_pull_count), 0) FROM tagpullstatistics") != want {
			return false
		}
		if want++; want <= 3 {
			must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon)))
		}
		return want > 3
	})
	stop()
	must(t, <-done)
}

// TestReadingIsNotWaitedForInVain: who waits for a worker that reads the audit log gives up with its
// context, since it may have a connection and locks for which that worker waits.
func TestReadingIsNotWaitedForInVain(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	w := s.worker(t)
	must(t, w.reading.Acquire(t.Context(), 1))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another batch is read, Sync returns %v", err)
	}
	if _, err := w.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another batch is read, Status returns %v", err)
	}
	w.reading.Release(1)
	must(t, w.Sync(t.Context()))
}
