package audit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

func day(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05.999999", text)
	if err != nil {
		panic(err)
	}
	return t
}

// at returns a partition manager whose clock always shows the time `clock`.
func at(d *db.DB, clock time.Time, o PartitionOptions) *PartitionManager {
	o.DB, o.Log, o.Now = d, quiet, func() time.Time { return clock }
	return NewPartitionManager(o)
}

// where returns the partition of each entry, by the entry's tag.
func where(t testing.TB, d *db.DB) map[string]string {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), "SELECT tag, tableoid::regclass::text FROM auditlog")
	must(t, err)
	out := map[string]string{}
	var tag, table string
	_, err = pgx.ForEachRow(rows, []any{&tag, &table}, func() error {
		if out[tag] != "" {
			return fmt.Errorf("entry %s is there twice", tag)
		}
		out[tag] = table
		return nil
	})
	must(t, err)
	return out
}

func TestMonthBoundaries(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	zone := time.FixedZone("east", 9*3600)
	for _, step := range []struct {
		now  time.Time
		want string
	}{
		{day("2026-11-30 23:59:59.999999"), "[partitions.auditlog_2026_11 partitions.auditlog_2026_12]"},
		{day("2026-12-01 00:00:00").In(zone), "[partitions.auditlog_2027_01]"},
		{time.Date(2027, 1, 1, 8, 0, 0, 0, zone), "[]"}, // still December in UTC
		{day("2027-01-31 00:00:00"), "[partitions.auditlog_2027_02]"},
		{day("2027-01-31 00:00:00"), "[]"},
	} {
		done, err := at(d, step.now, PartitionOptions{}).Update(t.Context())
		must(t, err)
		if fmt.Sprint(done.Made) != step.want || done.Busy {
			t.Errorf("at %v: %+v, want %s", step.now, done, step.want)
		}
	}
	var entries []Entry
	for _, when := range []string{"2026-10-31 23:59:59.999999", "2026-11-01 00:00:00", "2026-11-30 23:59:59.999999", "2026-12-01 00:00:00",
		"2027-02-28 23:59:59.999999", "2027-03-01 00:00:00", "2028-01-01 00:00:00"} {
		entries = append(entries, Entry{Kind: PushRepo, Time: day(when), Tag: when})
	}
	must(t, Append(t.Context(), d.Pool, entries...))
	want := []string{"default", "2026_11", "2026_11", "2026_12", "2027_02", "default", "default"}
	check := func() {
		t.Helper()
		got := where(t, d)
		for i, e := range entries {
			if got[e.Tag] != "partitions.auditlog_"+want[i] {
				t.Errorf("%s is in %s, want %s", e.Tag, got[e.Tag], want[i])
			}
		}
	}
	check()
	// Update must move entries from the default partition to new partitions of their
	// months, past months included. Entries of a later month than the next must stay in the
	// default partition.
	done, err := at(d, day("2027-02-01 00:00:00"), PartitionOptions{}).Update(t.Context())
	must(t, err)
	if fmt.Sprint(done.Made, done.Moved) != "[partitions.auditlog_2026_10 partitions.auditlog_2027_03] 2" {
		t.Errorf("%+v", done)
	}
	want[0], want[5] = "2026_10", "2027_03"
	check()
	// All partitions must have the same indexes and constraints.
	for _, what := range []string{"SELECT count(*) FROM pg_index WHERE indrelid = c.oid AND indisvalid", "SELECT count(*) FROM pg_constraint WHERE conrelid = c.oid"} {
		if n := count(t, d, "SELECT count(DISTINCT ("+what+")) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'auditlog'::regclass"); n != 1 {
			t.Errorf("partitions differ in %s", what)
		}
	}
}

// TestDoubtfulClock: while the clock is in doubt, no old partition is dropped and no old entry is
// deleted, though Update goes on with the rest. What it asks for is the time by which it judges.
func TestDoubtfulClock(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	_, err := at(d, day("2026-01-15 00:00:00"), PartitionOptions{}).Update(t.Context())
	must(t, err)
	must(t, Append(t.Context(), d.Pool, Entry{Kind: PushRepo, Time: day("2026-01-20 00:00:00"), Tag: "in a partition"},
		Entry{Kind: PushRepo, Time: day("2025-11-20 00:00:00"), Tag: "in the default partition"}))
	now := day("2026-06-15 00:00:00")
	why, asked := fmt.Errorf("the clocks disagree: %w", worker.ErrRest), time.Time{}
	o := PartitionOptions{Retention: 60 * 24 * time.Hour, MayDelete: func(_ context.Context, now time.Time) error {
		asked = now
		return why
	}}
	done, err := at(d, now, o).Update(t.Context())
	if err != nil || len(done.Dropped)+int(done.Deleted) > 0 || len(done.Made) != 2 || len(where(t, d)) != 2 || !asked.Equal(now) {
		t.Errorf("in doubt: %+v, %v, asked for %v", done, err, asked)
	}
	why = errors.New("the database is away")
	if done, err := at(d, now, o).Update(t.Context()); !errors.Is(err, why) || len(done.Dropped)+int(done.Deleted) > 0 {
		t.Errorf("without an answer: %+v, %v", done, err)
	}
	why = nil
	done, err = at(d, now, o).Update(t.Context())
	if err != nil || len(done.Dropped) != 2 || done.Deleted != 1 || len(where(t, d)) != 0 {
		t.Errorf("in doubt no more: %+v, %v", done, err)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	const day24 = 24 * time.Hour
	for _, m := range []string{"2026-01-15 00:00:00", "2026-03-15 00:00:00"} {
		_, err := at(d, day(m), PartitionOptions{}).Update(t.Context())
		must(t, err)
	}
	o := PartitionOptions{Retention: 60 * day24}
	for _, step := range []struct {
		now  string
		want string
	}{
		{"2026-04-01 23:59:59", "[]"}, // 60 days before, it was still January
		{"2026-04-02 00:00:00", "[partitions.auditlog_2026_01]"},
		{"2026-04-02 00:00:00", "[]"},
	} {
		done, err := at(d, day(step.now), o).Update(t.Context())
		must(t, err)
		if fmt.Sprint(done.Dropped) != step.want {
			t.Errorf("at %s: %+v, want %s dropped", step.now, done, step.want)
		}
	}
	// The test writes entries of a month whose partition was dropped. Update must delete
	// these entries, and must not create that partition again.
	var late []Entry
	for n := range 2500 {
		late = append(late, Entry{Kind: PushRepo, Time: day("2026-01-20 00:00:00"), Tag: fmt.Sprint("late", n)})
	}
	must(t, Append(t.Context(), d.Pool, append(late, Entry{Kind: PushRepo, Time: day("2026-02-01 00:00:00"), Tag: "kept"})...))
	done, err := at(d, day("2026-04-02 00:00:00"), o).Update(t.Context())
	must(t, err)
	if done.Deleted != 2500 || len(done.Made)+len(done.Dropped) > 0 {
		t.Errorf("%+v, want 2500 deleted", done)
	}
	if got := where(t, d); len(got) != 1 || got["kept"] == "" {
		t.Errorf("%d entries are left, want the one that is kept", len(got))
	}
	if done, err := at(d, day("2099-01-01 00:00:00"), PartitionOptions{}).Update(t.Context()); err != nil || len(done.Dropped) > 0 {
		t.Errorf("without a retention: %+v, %v", done, err)
	}
}

// HEADs that nobody reads are deleted after a week, with and without a retention of the log, unless the
// database's clock isn't fit for that.
func TestOldHeads(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	exec(t, d, `INSERT INTO pullheads (time, client, repository_id, tag, port)
		SELECT now() - days * interval '24 hours', '', 1, 'latest', 0 FROM generate_series(3000, 1, -1) days`)
	update := func(may error, now func() time.Time, retention time.Duration, want int) {
		t.Helper()
		pm := NewPartitionManager(PartitionOptions{DB: d, Log: quiet, Now: now, Retention: retention,
			MayDelete: func(context.Context, time.Time) error { return may }})
		wantErr := may
		if errors.Is(may, worker.ErrRest) {
			wantErr = nil
		}
		if _, err := pm.Update(t.Context()); !errors.Is(err, wantErr) {
			t.Errorf("%v, want %v", err, wantErr)
		}
		if n := count(t, d, "SELECT count(*) FROM pullheads"); n != want {
			t.Errorf("%d HEADs are left, want %d; the clock: %v", n, want, may)
		}
	}
	for _, retention := range []time.Duration{0, 100 * 24 * time.Hour} {
		update(fmt.Errorf("set meanwhile: %w", worker.ErrRest), nil, retention, 3000)
		update(errors.New("no answer"), nil, retention, 3000)
	}
	update(nil, func() time.Time { return time.Now().Add(-100 * 24 * time.Hour) }, 0, 106)
	update(nil, nil, 0, 6)
	update(nil, nil, 0, 6)
}

// A pull that the statistics worker hasn't read must keep its month's partition from being
// dropped. If the pull is in the default partition, it must not be deleted.
func TestRetentionKeepsUncountedPulls(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	_, err := at(d, day("2026-01-15 00:00:00"), PartitionOptions{}).Update(t.Context())
	must(t, err)
	_, err = at(d, day("2026-03-15 00:00:00"), PartitionOptions{}).Update(t.Context())
	must(t, err)
	must(t, Append(t.Context(), d.Pool,
		Entry{Kind: PullRepo, Time: day("2026-01-31 23:00:00"), Tag: "audit", CountedBy: CountedByAudit},
		Entry{Kind: PullRepo, Time: day("2026-02-02 00:00:00"), Tag: "redis", CountedBy: CountedByRedis},
		Entry{Kind: PushRepo, Time: day("2026-02-02 00:00:00"), Tag: "push"},
		Entry{Kind: PullRepo, Time: day("2025-02-02 00:00:00"), Tag: "default", CountedBy: CountedByAudit},
		Entry{Kind: PullRepo, Time: day("2025-02-02 00:00:00"), Tag: "default redis", CountedBy: CountedByRedis}))
	must(t, Append(t.Context(), d.Pool, Entry{Kind: PullRepo, Time: day("2026-03-02 00:00:00"), Tag: "nobody yet"}))
	var read Position
	failing := errors.New("no answer")
	var fail error
	o := PartitionOptions{Retention: 24 * time.Hour, Read: func(context.Context) (Position, error) { return read, fail }}
	position := func(tag string) (p Position) {
		must(t, d.Pool.QueryRow(t.Context(), "SELECT xid::text::bigint, id FROM auditlog WHERE tag = $1", tag).Scan(&p.XID, &p.ID))
		return p
	}
	before := func(p Position) Position { return Position{p.XID, p.ID - 1} }
	first, inDefault, last := position("audit"), position("default"), position("nobody yet")
	for i, step := range []struct {
		read Position
		fail error
		want string // dropped partitions, those with uncounted pulls, deleted entries
	}{
		{Position{}, failing, "[] [] 0"},
		{before(first), nil, "[partitions.auditlog_2026_02 partitions.auditlog_2026_04] [partitions.auditlog_2026_01 partitions.auditlog_2026_03] 1"},
		{first, nil, "[partitions.auditlog_2026_01] [partitions.auditlog_2026_03] 0"},
		{inDefault, nil, "[] [partitions.auditlog_2026_03] 1"},
		{before(last), nil, "[] [partitions.auditlog_2026_03] 0"},
		{last, nil, "[partitions.auditlog_2026_03] [] 0"},
	} {
		read, fail = step.read, step.fail
		done, err := at(d, day("2026-07-15 00:00:00"), o).Update(t.Context())
		if !errors.Is(err, step.fail) {
			t.Fatal(err)
		}
		if got := fmt.Sprint(done.Dropped, done.Uncounted, done.Deleted); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// A transaction inserts a pull into a month whose retention is over. The partition manager
// must wait for that transaction's end, and then keep the month for the uncounted pull.
func TestRetentionWaitsForWriters(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	for _, m := range []string{"2026-01-15 00:00:00", "2026-03-15 00:00:00"} { // all months that there are to be
		_, err := at(d, day(m), PartitionOptions{}).Update(t.Context())
		must(t, err)
	}
	o := PartitionOptions{Retention: 24 * time.Hour, LockTimeout: 20 * time.Millisecond, Tries: 2,
		Read: func(context.Context) (Position, error) { return Position{}, nil }}
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	must(t, Append(t.Context(), tx, Entry{Kind: PullRepo, Time: day("2026-01-20 00:00:00"), Tag: "late", CountedBy: CountedByAudit}))
	done, err := at(d, day("2026-03-15 00:00:00"), o).Update(t.Context())
	must(t, err)
	if !done.Busy || len(done.Uncounted) > 0 || where(t, d)["late"] != "" {
		t.Errorf("while a writer is open: %+v", done)
	}
	// The writing transaction ends while the partition manager waits for it.
	o.LockTimeout, o.Tries = 400*time.Millisecond, 100
	var group errgroup.Group
	group.Go(func() (err error) {
		done, err = at(d, day("2026-03-15 00:00:00"), o).Update(t.Context())
		return err
	})
	eventually(t, "the partition manager waits", func() bool {
		return count(t, d, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	})
	must(t, tx.Commit(t.Context()))
	must(t, group.Wait())
	if fmt.Sprint(done.Uncounted) != "[partitions.auditlog_2026_01]" || where(t, d)["late"] == "" {
		t.Errorf("%+v; the late pull is gone: %v", done, where(t, d))
	}
}

// The partition manager moves entries out of the default partition while other goroutines
// write entries, read them, and clear repository ids in them. No writer may fail, and no
// reader may miss an entry or see it twice.
func TestDefaultIsMovedWhileOthersWrite(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	clock := day("2026-05-15 00:00:00")
	var written atomic.Int64
	write := func(ctx context.Context, n int) error {
		entries := make([]Entry, n)
		for i := range entries { // six months, and one far ahead
			at := clock.AddDate(0, i%7-4, 0)
			if i%7 == 6 {
				at = clock.AddDate(5, 0, 0)
			}
			entries[i] = Entry{Kind: PullRepo, Time: at, RepositoryID: int64(i%3 + 1), Repository: "acme/app", CountedBy: CountedByAudit}
		}
		if err := Append(ctx, d.Pool, entries...); err != nil {
			return err
		}
		written.Add(int64(n))
		return nil
	}
	must(t, write(t.Context(), 20_000))
	ctx, stop := context.WithCancel(t.Context())
	free := context.WithoutCancel(ctx)
	var group errgroup.Group
	loop := func(fn func() error) {
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := fn(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 3 {
		loop(func() error { return write(free, 50) })
	}
	loop(func() error {
		low := written.Load()
		var n, distinct int64
		if err := d.Pool.QueryRow(free, "SELECT count(*), count(DISTINCT id) FROM auditlog").Scan(&n, &distinct); err != nil {
			return err
		}
		if n < low || n != distinct {
			return fmt.Errorf("a reader sees %d entries, %d different ones, of at least %d", n, distinct, low)
		}
		return nil
	})
	loop(func() error { // clears ids as loose foreign keys do, and gives up at the lock timeout
		err := pgx.BeginFunc(free, d.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(free, "SET LOCAL lock_timeout = 200"); err != nil {
				return err
			}
			_, err := tx.Exec(free, "UPDATE auditlog SET repository_id = NULL WHERE id = (SELECT id FROM auditlog WHERE repository_id = 2 LIMIT 1)")
			return err
		})
		if db.Code(err) == db.CodeLockNotAvailable {
			return nil
		}
		return err
	})
	var managers errgroup.Group
	var moved atomic.Int64
	for range 2 { // two replicas update at once
		managers.Go(func() error {
			for range 3 {
				done, err := at(d, clock, PartitionOptions{Tries: 50}).Update(t.Context())
				if err != nil {
					return err
				}
				moved.Add(done.Moved)
			}
			return nil
		})
	}
	err := managers.Wait()
	stop()
	if e := group.Wait(); e != nil {
		t.Error(e)
	}
	must(t, err)
	if moved.Load() < 10_000 {
		t.Errorf("%d entries were moved: the test shows nothing", moved.Load())
	}
	_, err = at(d, clock, PartitionOptions{}).Update(t.Context())
	must(t, err)
	if n := count(t, d, "SELECT count(*) FROM auditlog"); int64(n) != written.Load() {
		t.Errorf("%d entries, want %d", n, written.Load())
	}
	if n := count(t, d, "SELECT count(*) FROM partitions.auditlog_default WHERE time < '2026-07-01'"); n != 0 {
		t.Errorf("%d entries of months with a partition are in the default one", n)
	}
	if n := count(t, d, "SELECT count(*) FROM pg_constraint WHERE conname = 'month'"); n != 0 {
		t.Error("the check that helped to attach is left")
	}
}

// An open transaction with an entry keeps the partition manager from locking the table.
// Update must give up and leave all entries in the default partition. After the
// transaction's end, the next Update must move them.
func TestPartitionManagerGivesUp(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	clock := day("2026-05-15 00:00:00")
	must(t, Append(t.Context(), d.Pool, Entry{Kind: PushRepo, Time: clock, Tag: "a"}))
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	must(t, Append(t.Context(), tx, Entry{Kind: PushRepo, Time: clock, Tag: "b"}))
	o := PartitionOptions{LockTimeout: 5 * time.Millisecond, Tries: 2}
	done, err := at(d, clock, o).Update(t.Context())
	must(t, err)
	if !done.Busy || len(done.Made) > 0 || done.Moved > 0 {
		t.Errorf("%+v, want busy", done)
	}
	must(t, tx.Commit(t.Context()))
	if got := where(t, d); !strings.HasSuffix(got["a"], "default") || !strings.HasSuffix(got["b"], "default") {
		t.Errorf("entries are in %v", got)
	}
	done, err = at(d, clock, o).Update(t.Context())
	must(t, err)
	if done.Busy || done.Moved != 2 {
		t.Errorf("%+v, want 2 moved", done)
	}
}

// Run must create the partitions of the current and the next month, by the database's
// clock.
func TestPartitionManagerRun(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	stop := start(t, NewPartitionManager(PartitionOptions{DB: d, Log: quiet}).Run)
	eventually(t, "two months", func() bool {
		return count(t, d, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'auditlog'::regclass") == 3
	})
	stop()
	must(t, Append(t.Context(), d.Pool, Entry{Kind: PushRepo, Tag: "now"}))
	if got := where(t, d)["now"]; got != partitionName(monthOf(time.Now())) {
		t.Errorf("an entry of now is in %s", got)
	}
}
