package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestPagesOfLongEntries: the entries of a page of a thousand are so long that the page ends before. The
// pages together have each entry once.
func TestPagesOfLongEntries(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	const entries, long = 40, 40 << 10
	for range entries {
		must(t, New(d).Append(t.Context(), Entry{Kind: ChangeUser, Actor: "root", Detail: map[string]any{"text": strings.Repeat("d", long)}}))
	}
	seen := map[int64]bool{}
	for cursor, pages := "", 0; ; pages++ {
		page, next, err := New(d).List(t.Context(), Filter{}, cursor, MaxPage)
		must(t, err)
		size := 0
		for _, e := range page {
			text, err := json.Marshal(e.Detail)
			must(t, err)
			size += len(text)
			seen[e.ID] = true
		}
		if size > db.PageBytes || size < long || len(page) == 0 {
			t.Errorf("a page has %d entries of %d bytes", len(page), size)
		}
		if pages == 0 && next == "" {
			t.Error("the first page is the last")
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if len(seen) != entries {
		t.Errorf("%d entries are listed, want %d", len(seen), entries)
	}
}

// TestFilters lists entries with random filters, page sizes and bounds on the entries
// examined per page. Each listing must have the same entries as a filter in Go that is
// applied to all entries.
func TestFilters(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	rng := rand.New(rand.NewPCG(5, 6))
	base := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	clock := base.AddDate(0, 0, 20)
	_, err := NewPartitionManager(PartitionOptions{DB: d, Now: func() time.Time { return clock }, Log: quiet}).Update(t.Context())
	must(t, err)
	policies := []uuid.UUID{uuid.Nil, uuid.New(), uuid.New()}
	kinds := []Kind{PullRepo, PushRepo, DeleteTag, CreateTag}
	pick := func(n int) string { return []string{"", "a", "b", "c"}[rng.IntN(n)] }
	digest := func(s string) oci.Digest {
		if s == "" {
			return oci.Digest{}
		}
		return oci.Compute(oci.SHA256, []byte(s))
	}
	moment := func() time.Time { // many share one; three partitions and the default one
		return base.Add(time.Duration(rng.IntN(100)-20) * 24 * time.Hour)
	}
	var entries []Entry
	for range 600 {
		e := Entry{Kind: kinds[rng.IntN(len(kinds))], Time: moment(), Actor: pick(3), Tag: pick(4), Digest: digest(pick(3)),
			Policy: policies[rng.IntN(3)], Run: policies[rng.IntN(3)], Address: []string{"", "192.0.2.1", "192.0.3.1", "2001:db8::1", "fe80::1%eth0"}[rng.IntN(5)]}
		if ns := pick(3); ns != "" {
			e.Namespace, e.Repository, e.RepositoryID = ns, ns+"/"+pick(4), int64(rng.IntN(5))
		}
		entries = append(entries, e)
	}
	must(t, Append(t.Context(), d.Pool, entries...))
	truth := all(t, d, Filter{})
	if len(truth) != len(entries) {
		t.Fatalf("%d entries, want %d", len(truth), len(entries))
	}
	if !slices.IsSortedFunc(truth, func(a, b Entry) int {
		if c := b.Time.Compare(a.Time); c != 0 {
			return c
		}
		return int(b.ID - a.ID)
	}) {
		t.Error("entries aren't in order, newest first")
	}
	found := 0
	for i := range 200 {
		f := Filter{Actor: pick(2), Namespace: pick(2), Tag: pick(3), Digest: digest(pick(2))}
		if i%3 == 0 {
			f = Filter{}
		}
		if rng.IntN(3) == 0 {
			f.From = moment()
		}
		if rng.IntN(3) == 0 {
			f.To = moment()
		}
		for range rng.IntN(4) {
			f.Kinds = append(f.Kinds, kinds[rng.IntN(len(kinds))])
		}
		if rng.IntN(4) == 0 {
			f.Repository = "a/" + pick(4)
		}
		if rng.IntN(4) == 0 {
			f.RepositoryID = int64(rng.IntN(5))
		}
		if rng.IntN(4) == 0 {
			f.Policy, f.Run = policies[rng.IntN(3)], policies[rng.IntN(3)]
		}
		if f.Namespace == "" && f.Repository == "" && f.RepositoryID == 0 && rng.IntN(3) == 0 {
			f.Among = []NamespaceIs{}
			for _, name := range []string{"a", "b", "none"}[rng.IntN(3):] {
				f.Among = append(f.Among, NamespaceIs{Name: name})
			}
			f.Among = f.Among[:rng.IntN(len(f.Among)+1)]
		}
		if rng.IntN(4) == 0 {
			f.Address = netip.MustParsePrefix([]string{"192.0.2.1/32", "192.0.2.0/23", "2001:db8::/32", "198.51.100.0/24"}[rng.IntN(4)])
		}
		var want []int64
		for _, e := range truth {
			if f.selects(e) {
				want = append(want, e.ID)
			}
		}
		n, bound := rng.IntN(50)+1, []int{7, 60, scanned}[rng.IntN(3)]
		var got []int64
		for cursor := ""; ; {
			list, next, err := New(d).list(t.Context(), f, cursor, n, bound)
			must(t, err)
			if len(list) > n || next != "" && next == cursor {
				t.Fatalf("%d entries on a page of %d; next cursor %s after %s", len(list), n, next, cursor)
			}
			for _, e := range list {
				got = append(got, e.ID)
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v by %d of %d: %d entries, want %d", f, n, bound, len(got), len(want))
		}
		found += len(got)
	}
	if found < 3_000 {
		t.Errorf("all filters found %d entries together: they show nothing", found)
	}
}

// selects applies a Filter in Go.
func (f Filter) selects(e Entry) bool {
	equal := func(filter, value string) bool { return filter == "" || filter == value }
	return (f.From.IsZero() || !e.Time.Before(f.From)) && (f.To.IsZero() || e.Time.Before(f.To)) &&
		(len(f.Kinds) == 0 || slices.Contains(f.Kinds, e.Kind)) &&
		equal(f.Actor, e.Actor) && equal(f.Namespace, e.Namespace) && equal(f.Repository, e.Repository) &&
		(f.RepositoryID == 0 || f.RepositoryID == e.RepositoryID) && equal(f.Tag, e.Tag) &&
		(f.Digest.IsZero() || f.Digest == e.Digest) &&
		(f.Policy == uuid.Nil || f.Policy == e.Policy) && (f.Run == uuid.Nil || f.Run == e.Run) &&
		(f.Among == nil || slices.ContainsFunc(f.Among, func(n NamespaceIs) bool { return n.Name == e.Namespace })) &&
		(!f.Address.IsValid() || contains(f.Address, e.Address))
}

func contains(network netip.Prefix, address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && network.Contains(a)
}

// A client lists entries page by page while others write entries. The pages together must
// have each entry exactly once that existed at the beginning.
func TestCursorWhileEntriesCome(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	add := func(ctx context.Context, n int) error {
		entries := make([]Entry, n)
		for i := range entries { // some entries come while pages are read
			entries[i] = Entry{Kind: PushRepo, Repository: "acme/app", Time: time.Now().Add(-time.Duration(rand.IntN(1000)) * time.Millisecond)}
		}
		return Append(ctx, d.Pool, entries...)
	}
	must(t, add(t.Context(), 500))
	want := map[int64]bool{}
	for _, e := range all(t, d, Filter{}) {
		want[e.ID] = true
	}
	var writers errgroup.Group
	ctx, stop := context.WithCancel(t.Context())
	writers.Go(func() error {
		for ctx.Err() == nil {
			if err := add(context.WithoutCancel(ctx), 10); err != nil {
				return err
			}
		}
		return nil
	})
	seen := map[int64]bool{}
	for cursor := ""; ; {
		list, next, err := New(d).List(t.Context(), Filter{Namespace: "acme"}, cursor, 7)
		must(t, err)
		for _, e := range list {
			if seen[e.ID] {
				t.Fatalf("entry %d is told twice", e.ID)
			}
			seen[e.ID] = true
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	stop()
	must(t, writers.Wait())
	for id := range want {
		if !seen[id] {
			t.Errorf("entry %d is left out", id)
		}
	}
	for _, bad := range []string{"x", "AAAA", "!", strings.Repeat("A", 23)} {
		if _, _, err := New(d).List(t.Context(), Filter{}, bad, 1); !errors.Is(err, ErrCursor) {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
}

// fill is an SQL statement that inserts $1 entries, most of them pulls. The times of the
// entries are $2 seconds apart; the newest is shortly before 2026-03-20.
const fill = `
	INSERT INTO auditlog (time, kind, actor, address, user_agent, namespace, repository, repository_id, tag, digest, counted_by)
	SELECT '2026-03-20'::timestamptz - n * $2::int * interval '1 second',
		CASE WHEN n % 100 = 0 THEN 'push_repo' WHEN n % 1009 = 0 THEN 'delete_tag' ELSE 'pull_repo' END,
		'account' || n % 50, '192.0.2.7', 'containerd/2.1', 'n' || n % 100, 'n' || n % 100 || '/r' || n % 1000, n % 1000 + 1,
		'v' || n % 20, '\x01'::bytea || sha256(n::text::bytea), 'audit'
	FROM generate_series(1, $1::int) n`

// lines is an io.Writer that counts the lines written to it, and records the largest size
// of the heap in the meantime.
type lines struct {
	n    int
	peak uint64
	last []byte // up to 8 KiB
}

func (w *lines) Write(b []byte) (int, error) {
	before := w.n / 5000
	w.n += bytes.Count(b, []byte("\n"))
	if w.n/5000 != before {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		w.peak = max(w.peak, m.HeapAlloc)
	}
	w.last = append(w.last, b...)
	w.last = append(w.last[:0], w.last[max(len(w.last)-8192, 0):]...)
	return len(b), nil
}

// Exporting 60,000 entries must need about as much memory as exporting 600. The test isn't
// parallel because it measures the heap of the whole process.
func TestExport(t *testing.T) { //nolint:paralleltest
	d := dbtest.New(t)
	exec(t, d, fill, 60_000, 10)
	peak := func(f Filter, want int) uint64 {
		w := new(lines)
		n, err := New(d).Export(t.Context(), w, f, Lines)
		must(t, err)
		if int(n) != want || w.n != want {
			t.Errorf("%d entries are said to be exported, %d are; want %d", n, w.n, want)
		}
		var e struct {
			Kind   Kind
			Digest string
		}
		end := bytes.TrimSuffix(w.last, []byte("\n"))
		must(t, json.Unmarshal(end[bytes.LastIndexByte(end, '\n')+1:], &e))
		if e.Kind == "" || !strings.HasPrefix(e.Digest, "sha256:") {
			t.Errorf("the last line is %s", end)
		}
		return w.peak
	}
	short := peak(Filter{Namespace: "n7"}, 600)
	long := peak(Filter{}, 60_000)
	if long > max(short, 8<<20)+4<<20 {
		t.Errorf("the heap grew to %d bytes", long)
	}
	t.Logf("heap at most %d KiB", long>>10)
}

// For filters that an index serves, PostgreSQL must not read or sort a whole partition.
func TestPlans(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs many entries")
	}
	d := dbtest.New(t)
	clock := time.Date(2026, 3, 20, 0, 0, 0, 0, time.UTC)
	manager := NewPartitionManager(PartitionOptions{DB: d, Now: func() time.Time { return clock }, Log: quiet})
	for _, m := range []time.Month{11, 12, 13, 15} {
		clock = time.Date(2025, m, 20, 0, 0, 0, 0, time.UTC)
		_, err := manager.Update(t.Context())
		must(t, err)
	}
	must(t, d.Pool.AcquireFunc(t.Context(), unbounded(t, fill, 200_000, 50)))
	exec(t, d, `INSERT INTO auditlog (kind, time, namespace, run)
		SELECT 'autoprune_tag_delete', '2025-11-21'::timestamptz + i % 110 * interval '1 day', 'n7',
			md5((i % 50)::text)::uuid
		FROM generate_series(1, 50000) AS i`)
	born := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	exec(t, d, "UPDATE auditlog SET namespace_id = 7 WHERE namespace = 'n8' AND time >= '2026-01-01'")
	exec(t, d, "ANALYZE auditlog")
	if n := count(t, d, "SELECT count(*) FROM partitions.auditlog_default"); n != 0 {
		t.Fatalf("%d entries are in the default partition", n)
	}
	var among []NamespaceIs
	for i := range 100 {
		among = append(among, NamespaceIs{Name: fmt.Sprint("n", i)})
	}
	cursor := &place{time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), 100_000}
	for name, f := range map[string]Filter{
		"all": {}, "namespace": {Namespace: "n7"}, "name used again": {Namespace: "n8", NamespaceID: 7, Born: born}, "repository": {Repository: "n7/r7"}, "repository id": {RepositoryID: 8},
		"many namespaces": {Among: among}, "an actor of many": {Among: among, Actor: "nobody"}, "a network of many": {Among: among, Address: netip.MustParsePrefix("198.51.100.0/24")},
		"address": {Address: netip.MustParsePrefix("198.51.100.1/32")},
		"kind":    {Kinds: []Kind{DeleteTag}}, "kinds": {Kinds: []Kind{PushRepo, DeleteTag, MoveTag}}, "pulls": {Kinds: []Kind{PullRepo}},
		"time":  {From: time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC), To: time.Date(2026, 1, 6, 0, 0, 0, 0, time.UTC)},
		"actor": {Actor: "nobody"}, "tag": {Tag: "none"}, "run": {Run: uuid.MustParse("cfcd208495d565ef66e7dff9f98764da")}, // md5 of 0
		"digest": {Digest: oci.Compute(oci.SHA256, nil), Namespace: "n7", Kinds: []Kind{PushRepo, PullRepo}},
	} {
		for _, after := range []*place{nil, cursor} {
			sql, args := f.query(after, DefaultPage+1, scanned)
			plan, buffers := explain(t, d.Pool.Pool, sql, args)
			sorts := strings.Contains(plan, "Sort Method") && f.Among == nil // it sorts what it has read by namespace
			if strings.Contains(plan, "Seq Scan on auditlog_2") || strings.Contains(plan, "Bitmap") || sorts {
				t.Errorf("%s (cursor %v) reads or sorts a table whole:\n%s", name, after != nil, plan)
			}
			if buffers > 25_000 {
				t.Errorf("%s (cursor %v) reads %d pages:\n%s", name, after != nil, buffers, plan)
			}
		}
	}
	sql := `SELECT id FROM auditlog WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint)
		AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT 1000`
	if plan, _ := explain(t, d.Pool.Pool, sql, []any{"1", int64(5)}); strings.Contains(plan, "Seq Scan on auditlog_2") {
		t.Errorf("reading pulls reads a table whole:\n%s", plan)
	}
}

// PostgreSQL keeps a plan for each text of a statement. For lists over many namespaces it must keep a few
// small ones, however many namespaces the lists have.
func TestMemoryOfManyNamespaces(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	for i := range 6 { // with the default partition as many as there are with the default retention
		from := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 1-i, 0)
		exec(t, d, fmt.Sprintf("CREATE TABLE partitions.month_%d PARTITION OF auditlog FOR VALUES FROM ('%s') TO ('%s')",
			i, from.Format(time.RFC3339), from.AddDate(0, 1, 0).Format(time.RFC3339)))
	}
	conn, err := d.Pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	memory := func() (n int64) {
		must(t, conn.QueryRow(t.Context(), "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts", pgx.QueryExecModeSimpleProtocol).Scan(&n))
		return n
	}
	before := memory()
	for n := 91; n <= 100; n++ {
		var among []NamespaceIs
		for i := range n {
			among = append(among, NamespaceIs{fmt.Sprint("n", i), int64(i + 1), time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)})
		}
		for _, f := range []Filter{
			{Among: among}, {Among: among, Actor: "a"}, {Among: among, Tag: "a"}, {Among: among, Kinds: []Kind{PushRepo}},
			{Among: among, From: time.Unix(0, 0)}, {Among: among, Actor: "a", Tag: "x"}, {Among: among, Run: uuid.New()},
		} {
			sql, args := f.query(nil, DefaultPage+1, scanned)
			rows, err := conn.Query(t.Context(), sql, args...)
			must(t, err)
			_, _, err = page(rows, DefaultPage)
			must(t, err)
		}
	}
	if grown := (memory() - before) >> 20; grown > 40 {
		t.Errorf("70 lists over 91 to 100 namespaces made a session %d MiB larger", grown)
	}
}
