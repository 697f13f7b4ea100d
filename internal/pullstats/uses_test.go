package pullstats

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
)

// Uses must return the time of a pull as soon as the pull's entry is committed, before and
// after the pull is counted.
func TestUses(t *testing.T) {
	t.Parallel()
	each(t, 2, func(t *testing.T, s *shop) {
		w := s.worker(t, func(o *SyncOptions) { o.Batch = 1 })
		must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon), s.pull(0, "", "b", noon), s.pull(1, "v1", "a", noon.Add(time.Hour))))
		check := func(tag, a, b time.Time) {
			t.Helper()
			got, err := w.Uses(t.Context(), s.repositories[0], []string{"v1", "v2"}, []string{digest("a").String(), digest("b").String(), digest("c").String()})
			must(t, err)
			if !got.Tags["v1"].Equal(tag) || !got.Manifests[digest("a").String()].Equal(a) || !got.Manifests[digest("b").String()].Equal(b) ||
				!got.Tags["v2"].IsZero() || !got.Manifests[digest("c").String()].IsZero() {
				t.Errorf("%+v, want %v %v %v", got, tag, a, b)
			}
		}
		check(noon, noon, noon)
		settle(t, w)
		check(noon, noon, noon)
		// Two pulls are written that aren't counted yet. The pull that is older than the
		// counted pull of its tag must not change the last-used time; the newer pull must
		// change it.
		must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon.Add(-time.Hour)), s.pull(0, "", "b", noon.Add(time.Minute))))
		check(noon, noon, noon.Add(time.Minute))
		settle(t, w)
		check(noon, noon, noon.Add(time.Minute))
	})
}

// There are more uncounted pulls than Uses reads from the audit log. Uses must count them
// first, and then return the time of the newest pull.
func TestUsesCatchesUp(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	w := s.worker(t)
	exec(t, s.log, `INSERT INTO auditlog (kind, xid, time, repository_id, tag, digest)
		SELECT 'pull_repo', '50', $1::timestamptz + n * interval '1 second', $2, 'v1', $3 FROM generate_series(1, 12000) n`,
		noon, s.repositories[0], digest("a").Bytes())
	got, err := w.Uses(t.Context(), s.repositories[0], []string{"v1"}, nil)
	if err != nil || !got.Tags["v1"].Equal(noon.Add(12000*time.Second)) {
		t.Errorf("%+v, %v", got, err)
	}
	if n := number(t, s.stats, "SELECT tag_pull_count FROM tagpullstatistics"); n != 12000 {
		t.Errorf("%d counted", n)
	}
	// If there are too many uncounted pulls, and an open transaction keeps them from being
	// counted, Uses must fail.
	tx, err := s.log.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck
	must(t, audit.Append(t.Context(), tx, s.pull(0, "v1", "a", noon)))
	exec(t, s.log, "INSERT INTO auditlog (kind, repository_id) SELECT 'pull_repo', $1 FROM generate_series(1, 12000)", s.repositories[0])
	if got, err := w.Uses(t.Context(), s.repositories[0], []string{"v1"}, nil); err == nil {
		t.Errorf("%+v, though not all was looked at", got)
	}
}

// The log's transaction ids begin anew, as after a restore. The worker must count nothing
// until Reset is called, and then all uncounted pulls.
func TestReset(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		w := s.worker(t)
		read := s.pull(0, "read", "a", noon)
		must(t, audit.Append(t.Context(), s.log.Pool, read))
		settle(t, w)
		// Make the state after a dump was loaded into a new server: the entries and the
		// watermark have transaction ids of the old server, which are higher than those of
		// the new one.
		unread := s.pull(0, "unread", "a", noon.Add(-time.Minute))
		must(t, audit.Append(t.Context(), s.log.Pool, unread))
		exec(t, s.log, "UPDATE auditlog SET xid = (1000000000 + id)::text::xid8")
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET last_processed_xid = '1000000001', last_processed_log_id = 1")
		if n := number(t, s.log, "SELECT id FROM auditlog WHERE tag = 'read'"); n != 1 {
			t.Fatalf("the entry that was read has id %d", n)
		}
		after := s.pull(0, "after", "a", noon.Add(time.Minute))
		must(t, audit.Append(t.Context(), s.log.Pool, after))

		compare(t, s.books(t), truth([]audit.Entry{read}))
		if err := w.Sync(t.Context()); !errors.Is(err, ErrForeignLog) {
			t.Fatalf("counting: %v", err)
		}
		if _, err := w.Read(t.Context()); !errors.Is(err, ErrForeignLog) {
			t.Errorf("reading up to where: %v", err)
		}
		if _, err := w.Uses(t.Context(), s.repositories[0], []string{"after"}, nil); !errors.Is(err, ErrForeignLog) {
			t.Errorf("uses: %v", err)
		}
		if st, err := w.Status(t.Context()); err != nil || !st.Foreign {
			t.Errorf("%+v, %v", st, err)
		}
		if n, err := w.Reset(t.Context()); err != nil || n != 2 {
			t.Fatalf("%d are to be counted, %v", n, err)
		}
		settle(t, w)
		compare(t, s.books(t), truth([]audit.Entry{read, unread, after}))
		// A second Reset must find nothing to count.
		if n, err := w.Reset(t.Context()); err != nil || n != 0 {
			t.Errorf("again: %d, %v", n, err)
		}
		settle(t, w)
		compare(t, s.books(t), truth([]audit.Entry{read, unread, after}))
	})
}

// Read must return the watermark to the partition manager of the audit log.
func TestRead(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	w := s.worker(t)
	if p, err := w.Read(t.Context()); err != nil || p != (audit.Position{}) {
		t.Fatalf("%+v, %v", p, err)
	}
	must(t, audit.Append(t.Context(), s.log.Pool, s.pull(0, "v1", "a", noon)))
	settle(t, w)
	var want audit.Position
	must(t, pgx.BeginFunc(t.Context(), s.log.Pool, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT xid::text::bigint, id FROM auditlog").Scan(&want.XID, &want.ID)
	}))
	if p, err := w.Read(t.Context()); err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
}

// A worker counts while another process calls Reset. The reset must wait for the worker's
// transaction. A worker that has read the log before the reset must count nothing after it.
func TestResetBesideWorkers(t *testing.T) {
	t.Parallel()
	each(t, 1, func(t *testing.T, s *shop) {
		other := s.worker(t)
		must(t, other.Sync(t.Context())) // the state is there
		var all []audit.Entry
		var done chan error
		// Reset must wait for a worker that is about to commit, but not for a worker that
		// has read the log and has not begun to count.
		for _, at := range []string{"before commit", "read", "read"} {
			e := s.pull(0, "v1", "a", noon.Add(time.Duration(len(all))*time.Minute))
			all = append(all, e)
			must(t, audit.Append(t.Context(), s.log.Pool, e))
			w := s.worker(t)
			done = nil
			w.crash = func(step string) error {
				if step != at || done != nil {
					return nil
				}
				done = make(chan error, 1)
				go func() {
					_, err := other.Reset(t.Context())
					done <- err
				}()
				if at == "read" {
					err := <-done
					done <- err
					return err
				}
				for deadline := time.Now().Add(2 * time.Minute); number(t, s.stats, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0; time.Sleep(2 * time.Millisecond) {
					if time.Now().After(deadline) {
						return errors.New("the reset doesn't wait")
					}
				}
				return nil
			}
			for deadline := time.Now().Add(time.Minute); done == nil; time.Sleep(5 * time.Millisecond) {
				must(t, w.Sync(t.Context()))
				if time.Now().After(deadline) {
					t.Fatal("nothing is counted")
				}
			}
			must(t, <-done)
			settle(t, other)
			compare(t, s.books(t), truth(all))
		}
	})
}

// Because a replica's clock is wrong, a pull that comes after another one has an earlier
// time. It must not lower the time in the counter, nor the last-used time.
func TestRedisUsesSkew(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	now := time.Now().Truncate(time.Microsecond)
	w := s.flusher(t, r)
	check := func(when string) {
		t.Helper()
		uses, err := s.asked(t, r)
		must(t, err)
		if at := uses.Tags["v1"]; at.Before(now) || at.After(now.Add(time.Second)) {
			t.Errorf("%s: v1 was used at %v, want %v and a second more at most", when, at, now)
		}
		if at := uses.Manifests[digest("a").String()]; at.Before(now) || at.After(now.Add(time.Second)) {
			t.Errorf("%s: the manifest was used at %v, want %v and a second more at most", when, at, now)
		}
	}
	recorded(t, rec, s.pull(0, "v1", "a", now))
	for _, skew := range []time.Duration{-time.Second, -10 * time.Minute, -59 * time.Minute} {
		recorded(t, rec, s.pull(0, "v1", "a", now.Add(skew)))
		recorded(t, rec, s.pull(0, "v1", "b", now.Add(skew)))
		check("recorded")
		must(t, w.Flush(t.Context()))
		check("flushed")
	}
	if got := s.books(t)[tagName(s, 0, "v1")]; !got.Last.Equal(now) || got.Count != 7 || got.Other != digest("a").String() {
		t.Errorf("v1 has %+v", got)
	}
	rec.opt.LastUsed.used(s.repositories[0], "v1", digest("a"), now)
	rec.opt.LastUsed.used(s.repositories[0], "v1", digest("a"), now.Add(-time.Hour))
	must(t, rec.opt.LastUsed.Close(t.Context()))
	other := s.recorder(t, r, unlogged)
	other.opt.LastUsed.used(s.repositories[0], "v1", digest("a"), now.Add(-time.Hour))
	must(t, other.opt.LastUsed.Close(t.Context()))
	var tag, manifest time.Time
	must(t, s.stats.Pool.QueryRow(t.Context(), "SELECT (SELECT last_check_date FROM tagpullstatistics WHERE tag_name = 'v1'), (SELECT last_check_date FROM manifestpullstatistics WHERE manifest_digest = $1)",
		digest("a").String()).Scan(&tag, &manifest))
	if !tag.Equal(now) || !manifest.Equal(now) {
		t.Errorf("the last-used times are %v and %v, want %v", tag, manifest, now)
	}
}
