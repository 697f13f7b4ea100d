package pullstats

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exec(t testing.TB, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func number(t testing.TB, d *db.DB, sql string, args ...any) (n int64) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// alive locks those of the repositories that exist and returns their ids, as
// catalog.AliveRepositories does.
func alive(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// namespaces locks those of the repositories that exist and returns the ids of their
// namespaces, as catalog.LivingNamespaces does.
func namespaces(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id, top_level_namespace_id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	of := map[int64]int64{}
	var id, namespace int64
	_, err = pgx.ForEachRow(rows, []any{&id, &namespace}, func() error { of[id] = namespace; return nil })
	return of, err
}

// shop is a test's registry, as far as pull statistics need one: an audit log, the
// statistics, and some repositories.
type shop struct {
	log, stats   *db.DB
	namespace    int64
	repositories []int64
}

// open makes a shop with the given number of repositories. If apart is set, the statistics
// are in another database than the audit log.
func open(t testing.TB, apart bool, repositories int) *shop {
	t.Helper()
	s := &shop{log: dbtest.New(t)}
	if s.stats = s.log; apart {
		s.stats = dbtest.New(t)
	}
	exec(t, s.log, "INSERT INTO top_level_namespaces (name) VALUES ('acme')")
	exec(t, s.log, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/app' || n FROM top_level_namespaces, generate_series(1, $1::int) n", repositories)
	rows, err := s.log.Pool.Query(t.Context(), "SELECT id FROM repositories ORDER BY id")
	must(t, err)
	s.repositories, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	must(t, err)
	s.namespace = number(t, s.log, "SELECT id FROM top_level_namespaces")
	return s
}

// living returns the repositories with their namespace.
func (s *shop) living() statsdb.Living {
	l := statsdb.Living{}
	for _, id := range s.repositories {
		l[id] = s.namespace
	}
	return l
}

func (s *shop) worker(t testing.TB, change ...func(*SyncOptions)) *SyncWorker {
	t.Helper()
	o := SyncOptions{Databases: statsdb.Databases{Log: s.log, Stats: s.stats, Alive: namespaces}, Logger: quiet}
	for _, f := range change {
		f(&o)
	}
	w, err := NewSyncWorker(o)
	must(t, err)
	w.lag, w.confirm = 0, 0 // no need to wait: recorders of tests report what they have written, or have ended
	return w
}

// settle lets w count until no pull in the log is left uncounted. This may take a while: an
// open transaction of another test delays the counting, even if it is in another database of
// the server.
func settle(t testing.TB, w *SyncWorker) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		must(t, w.Sync(t.Context()))
		st, err := w.Status(t.Context())
		must(t, err)
		n := number(t, w.opt.Log, "SELECT count(*) FROM auditlog WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint)", strconv.FormatUint(st.Read.XID, 10), st.Read.ID)
		n += number(t, w.opt.Log, "SELECT count(*) FROM pullheads WHERE (xid, id) > ($1::text::xid8, $2::bigint)", strconv.FormatUint(st.Read.XID, 10), st.Read.ID)
		n += number(t, w.opt.Stats, "SELECT count(*) FROM pullstatisticspending WHERE NOT head AND time < now()")
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d pulls are never counted: %+v", n, st)
		}
	}
}

func digest(name string) oci.Digest { return oci.Compute(oci.SHA256, []byte(name)) }

// pull returns the audit log's entry of a pull. content names the manifest.
func (s *shop) pull(repository int, tag, content string, at time.Time) audit.Entry {
	return audit.Entry{
		Kind: audit.PullRepo, Repository: fmt.Sprint("acme/app", repository+1), RepositoryID: s.repositories[repository],
		Tag: tag, Digest: digest(content), Time: at,
	}
}

// row is the statistics of a tag or a manifest. Of a repository it has only the days and, as
// Count, the sum of their pulls.
type row struct {
	Count int64
	Last  time.Time
	Other string
	Days  string // the history: each day with its pulls
}

// books maps a tag or a manifest (kind, repository id and name), or a repository (kind and id),
// to its statistics.
type books map[string]row

func (s *shop) books(t testing.TB) books {
	t.Helper()
	rows, err := s.stats.Pool.Query(t.Context(), `
		WITH days AS (
			SELECT 'tag ' || repository_id || ' ' || tag_name AS name, day, pulls FROM tagpullhistory
			UNION ALL
			SELECT 'tag ' || repository_id || ' ' || tag_name, day, day_pulls FROM tagpullstatistics WHERE day IS NOT NULL
			UNION ALL
			SELECT 'manifest ' || repository_id || ' ' || manifest_digest, day, pulls FROM manifestpullhistory
			UNION ALL
			SELECT 'manifest ' || repository_id || ' ' || manifest_digest, day, day_pulls FROM manifestpullstatistics WHERE day IS NOT NULL
			UNION ALL
			SELECT 'repository ' || repository_id, day, pulls FROM repositorypullhistory
		), histories AS (
			SELECT name, string_agg(to_char(day, 'MM-DD') || ' ' || pulls, ', ' ORDER BY day) AS days, sum(pulls)::bigint AS pulls FROM days GROUP BY name
		), counts AS (
			SELECT 'tag ' || repository_id || ' ' || tag_name AS name, tag_pull_count AS pulls, last_tag_pull_date AS last, COALESCE(current_manifest_digest, '') AS other
			FROM tagpullstatistics WHERE tag_pull_count > 0
			UNION ALL
			SELECT 'manifest ' || repository_id || ' ' || manifest_digest, total_pull_count, last_pull_date, COALESCE(last_tag_pulled, '')
			FROM manifestpullstatistics WHERE total_pull_count > 0)
		SELECT name, COALESCE(c.pulls, h.pulls), COALESCE(c.last, '-infinity'), COALESCE(c.other, ''), COALESCE(h.days, 'none')
		FROM counts c FULL JOIN histories h USING (name)`)
	must(t, err)
	out := books{}
	var name string
	var last pgtype.Timestamptz
	var r row
	_, err = pgx.ForEachRow(rows, []any{&name, &r.Count, &last, &r.Other, &r.Days}, func() error {
		r.Last = last.Time.UTC() // zero for a repository
		out[name] = r
		return nil
	})
	must(t, err)
	s.compareSums(t)
	return out
}

// compareSums fails the test unless the history of the registry and of the namespace are the
// sums of those of the repositories.
func (s *shop) compareSums(t testing.TB) {
	t.Helper()
	if n := number(t, s.stats, `
		SELECT count(*) FROM (SELECT day, sum(pulls) AS pulls FROM repositorypullhistory WHERE namespace_id = $1 GROUP BY day) r
		FULL JOIN (SELECT day, pulls FROM namespacepullhistory WHERE namespace_id = $1) n USING (day)
		FULL JOIN pullhistory a USING (day)
		WHERE r.pulls IS DISTINCT FROM n.pulls OR r.pulls IS DISTINCT FROM a.pulls`, s.namespace); n != 0 {
		t.Errorf("on %d days the repositories have other pulls than their namespace or the registry", n)
	}
}

// truth returns the statistics that must result if each of the entries is counted once.
func truth(entries []audit.Entry) books {
	out := books{}
	both := map[string]time.Time{}
	days := map[string]map[string]int64{}
	n := int64(1)
	add := func(name string, at time.Time, other string) {
		r := out[name]
		r.Count += n
		if at.After(r.Last) {
			r.Last = at
		}
		if other != "" && at.After(both[name]) {
			r.Other, both[name] = other, at
		}
		out[name] = r
		if days[name] == nil {
			days[name] = map[string]int64{}
		}
		days[name][at.UTC().Format("01-02")] += n
	}
	for _, e := range entries {
		n = int64(max(e.Pulls, 1))
		if e.Tag != "" {
			add(fmt.Sprintf("tag %d %s", e.RepositoryID, e.Tag), e.Time, e.Digest.String())
		}
		add(fmt.Sprintf("manifest %d %s", e.RepositoryID, e.Digest), e.Time, e.Tag)
		add(fmt.Sprintf("repository %d", e.RepositoryID), e.Time, "")
	}
	for name, r := range out {
		var list []string
		for _, day := range slices.Sorted(maps.Keys(days[name])) {
			list = append(list, fmt.Sprint(day, " ", days[name][day]))
		}
		if r.Days = strings.Join(list, ", "); strings.HasPrefix(name, "repository ") {
			r.Last = time.Time{}
		}
		out[name] = r
	}
	return out
}

// compare fails the test for each tag or manifest whose statistics in got and want differ.
func compare(t testing.TB, got, want books) {
	t.Helper()
	var names []string
	for name := range got {
		names = append(names, name)
	}
	for name := range want {
		names = append(names, name)
	}
	slices.Sort(names)
	wrong := 0
	for _, name := range slices.Compact(names) {
		if got[name] != want[name] {
			if wrong++; wrong <= 10 {
				t.Errorf("%s: %+v, want %+v", name, got[name], want[name])
			}
		}
	}
	if wrong > 10 {
		t.Errorf("and %d more", wrong-10)
	}
}
