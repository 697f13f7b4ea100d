package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// put inserts an entry of a pull with the given transaction id and entry id.
func put(t testing.TB, d *db.DB, xid string, id int, tag string, at time.Time) {
	t.Helper()
	exec(t, d, "INSERT INTO auditlog (kind, xid, id, tag, time, repository_id, digest) VALUES ('pull_repo', $1::text::xid8, $2, $3, $4, 7, $5)",
		xid, id, tag, at, oci.Compute(oci.SHA256, []byte(tag)).Bytes())
}

func tagsOf(pulls []Pull) string {
	var tags []string
	for _, p := range pulls {
		tags = append(tags, p.Tag)
	}
	return strings.Join(tags, " ")
}

// Pulls must return the pulls two at a time, in the order of their positions, and each
// once.
func TestPulls(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	at := day("2026-02-03 04:05:06.000007")
	for _, place := range []struct {
		xid string
		id  int
	}{{"100", 1}, {"99", 2}, {"9", 4}, {"9", 30}, {"10", 5}, {"100", 20}} {
		put(t, d, place.xid, place.id, fmt.Sprint(place.xid, "-", place.id), at)
	}
	must(t, Append(t.Context(), d.Pool, Entry{Kind: PushRepo, Tag: "push"}))
	var got []Pull
	for at := (Position{}); ; at = got[len(got)-1].Position {
		page, err := New(d).Pulls(t.Context(), at, 2)
		must(t, err)
		if got = append(got, page...); len(page) == 0 {
			break
		}
	}
	if want := "9-4 9-30 10-5 99-2 100-1 100-20"; tagsOf(got) != want {
		t.Errorf("got %s, want %s", tagsOf(got), want)
	}
	if !slices.IsSortedFunc(got, func(a, b Pull) int {
		if a.Less(b.Position) {
			return -1
		}
		return 1
	}) {
		t.Error("positions are in another order")
	}
	if p := got[0]; p.Digest != oci.Compute(oci.SHA256, []byte("9-4")) || !p.Time.Equal(at) || p.RepositoryID != 7 || p.CountedBy != "" {
		t.Errorf("%+v", p)
	}
	// PullsOf must return the pulls of one repository (7) after a position.
	list, all, err := New(d).PullsOf(t.Context(), 7, Position{10, 5})
	if err != nil || !all || tagsOf(list) != "99-2 100-1 100-20" {
		t.Errorf("%s, %v, %v", tagsOf(list), all, err)
	}
	if list, all, err := New(d).PullsOf(t.Context(), 8, Position{}); err != nil || !all || len(list) > 0 {
		t.Errorf("%v, %v, %v", list, all, err)
	}
	exec(t, d, "INSERT INTO auditlog (kind, xid) SELECT 'pull_repo', '50' FROM generate_series(1, $1::int)", maxUnread-5)
	if list, all, err := New(d).PullsOf(t.Context(), 7, Position{}); err != nil || all {
		t.Errorf("%d pulls, %v, %v: more than are looked at", len(list), all, err)
	}
	if list, all, err := New(d).PullsOf(t.Context(), 7, Position{9, 4}); err != nil || !all || len(list) != 5 {
		t.Errorf("%d pulls, %v, %v: as many as are looked at", len(list), all, err)
	}
}

// A transaction writes a pull and stays open, and a later transaction writes a second
// pull. Pulls must return neither until the first transaction ends, and then both.
func TestPullsOfOpenTransactions(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // after a failure
	must(t, Append(t.Context(), tx, Entry{Kind: PullRepo, RepositoryID: 7, Tag: "first"}))
	must(t, Append(t.Context(), d.Pool, Entry{Kind: PullRepo, RepositoryID: 7, Tag: "second"}))
	pulls := func() string {
		list, err := New(d).Pulls(t.Context(), Position{}, 10)
		must(t, err)
		return tagsOf(list)
	}
	if got := pulls(); got != "" {
		t.Errorf("%s before the first transaction ended", got)
	}
	if list, _, err := New(d).PullsOf(t.Context(), 7, Position{}); err != nil || tagsOf(list) != "second" {
		t.Errorf("%s, %v", tagsOf(list), err)
	}
	must(t, tx.Commit(t.Context()))
	eventually(t, "both can be read", func() bool { return pulls() == "first second" })
}

// PullState must report whether the server's transaction ids have begun anew.
func TestPullState(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	state := func(read Position) PullState {
		t.Helper()
		s, err := New(d).PullState(t.Context(), read)
		must(t, err)
		return s
	}
	if s := state(Position{}); s.Foreign || !s.Oldest.IsZero() || time.Since(s.Now).Abs() > time.Minute {
		t.Errorf("an empty log: %+v", s)
	}
	put(t, d, "20", 1, "a", day("2026-02-01 00:00:00"))
	put(t, d, "20", 2, "b", day("2026-01-01 00:00:00"))
	exec(t, d, "UPDATE auditlog SET counted_by = 'redis' WHERE id = 1")
	if s := state(Position{}); s.Foreign || !s.Oldest.Equal(day("2026-01-01 00:00:00")) {
		t.Errorf("%+v", s)
	}
	if s := state(Position{20, 2}); s.Foreign || !s.Oldest.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := state(Position{1 << 40, 1}); !s.Foreign {
		t.Error("a position of the future is taken")
	}
	put(t, d, "1099511627776", 3, "c", day("2026-01-01 00:00:00"))
	if s := state(Position{}); !s.Foreign {
		t.Error("an entry of the future is taken")
	}
}

// After ResetPulls, exactly those pulls must come after the new position that the
// statistics worker hadn't read before.
func TestResetPulls(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	late, future := day("2026-02-01 00:00:00"), "1099511627776"
	put(t, d, "20", 1, "read", late.Add(-time.Hour))
	put(t, d, future, 2, "read of the future", late)
	put(t, d, future, 9, "unread of the future", late.Add(-time.Minute))
	put(t, d, "30", 10, "after the restore", late.Add(time.Minute))
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // after a failure
	must(t, Append(t.Context(), tx, Entry{Kind: PullRepo, Tag: "meanwhile"}))
	read := Position{1 << 40, 5}
	if s, err := New(d).PullState(t.Context(), read); err != nil || !s.Foreign {
		t.Fatalf("%+v, %v", s, err)
	}
	var to Position
	var n int64
	must(t, d.Tx(t.Context(), func(tx pgx.Tx) (err error) {
		to, n, err = ResetPulls(t.Context(), tx, read, late)
		return err
	}))
	if n != 2 {
		t.Errorf("%d are unread, want 2", n)
	}
	must(t, tx.Commit(t.Context()))
	if s, err := New(d).PullState(t.Context(), to); err != nil || s.Foreign {
		t.Errorf("%+v, %v", s, err)
	}
	want := []string{"after the restore", "meanwhile", "unread of the future"}
	eventually(t, "the rest can be read", func() bool {
		list, err := New(d).Pulls(t.Context(), to, 10)
		must(t, err)
		var tags []string
		for _, p := range list {
			tags = append(tags, p.Tag)
		}
		slices.Sort(tags)
		return slices.Equal(tags, want)
	})
}

// The queries that workers repeat must use the database index of pulls, and read at most
// 100 database pages although the table has 200,000 entries.
func TestPullsAreFoundByIndex(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	must(t, d.Pool.AcquireFunc(t.Context(), unbounded(t, `
		INSERT INTO auditlog (kind, xid, time, repository_id, repository, user_agent)
		SELECT CASE WHEN n % 10 = 0 THEN 'push_repo' ELSE 'pull_repo' END, '100', now(), n % 50, 'acme/app', repeat('x', 100)
		FROM generate_series(1, 200000) n`)))
	exec(t, d, "ANALYZE auditlog")
	id := count(t, d, "SELECT max(id) - 200 FROM auditlog")
	for name, sql := range map[string]string{
		"page": `SELECT id FROM auditlog WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint)
			AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT $3`,
		"oldest": `SELECT time, $3::int FROM auditlog WHERE kind = 'pull_repo' AND counted_by IS DISTINCT FROM 'redis'
			AND (xid, id) > ($1::text::xid8, $2::bigint) ORDER BY xid, id LIMIT 1`,
		"of a repository": `WITH unread AS MATERIALIZED (SELECT * FROM auditlog WHERE kind = 'pull_repo'
			AND (xid, id) > ($1::text::xid8, $2::bigint) ORDER BY xid, id LIMIT 10001) SELECT id FROM unread WHERE repository_id = $3`,
		"future": `SELECT $1::text, $2::bigint, $3::int, EXISTS (SELECT FROM auditlog WHERE kind = 'pull_repo' AND xid >= pg_snapshot_xmax(pg_current_snapshot()))`,
	} {
		plan, buffers := explain(t, d.Pool.Pool, sql, []any{"100", id, 1000})
		if buffers > 100 || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s read %d pages:\n%s", name, buffers, plan)
		}
	}
}
