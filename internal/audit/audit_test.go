package audit

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// all returns all entries that the filter `f` selects.
func all(t testing.TB, d *db.DB, f Filter) []Entry {
	t.Helper()
	var list []Entry
	for cursor := ""; ; {
		entries, next, err := New(d).List(t.Context(), f, cursor, 0)
		must(t, err)
		list = append(list, entries...)
		if cursor = next; cursor == "" {
			return list
		}
	}
}

// one returns the only entry of the log.
func one(t testing.TB, d *db.DB) Entry {
	t.Helper()
	list := all(t, d, Filter{})
	if len(list) != 1 {
		t.Fatalf("%d entries, want 1", len(list))
	}
	return list[0]
}

func TestAppend(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	full := Entry{
		Time: time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC), Kind: MoveTag, Actor: "acme+ci", Address: "192.0.2.7",
		UserAgent: "containerd/2.1", RequestID: "r1", Namespace: "acme", Repository: "acme/app", RepositoryID: 7,
		Tag: "v1", Digest: oci.Compute(oci.SHA512, []byte("x")), Policy: uuid.New(), Run: uuid.New(),
		Detail: map[string]any{"from": "sha256:1"}, CountedBy: CountedByAudit,
	}
	must(t, Append(t.Context(), d.Pool, full))
	got := one(t, d)
	if got.ID == 0 {
		t.Error("the entry has no id")
	}
	full.ID, got.Detail = got.ID, map[string]any{"from": "sha256:1"}
	a, _ := json.Marshal(full)
	if b, _ := json.Marshal(got); string(a) != string(b) {
		t.Errorf("got  %s\nwant %s", b, a)
	}
	if n := count(t, d, "SELECT count(*) FROM auditlog WHERE xid < pg_current_xact_id()"); n != 1 {
		t.Error("the entry has no xid")
	}
}

// The test adds a namespace and its audit log entry in one transaction, first rolled back,
// then committed: only the second attempt may leave an entry.
func TestAppendIsOfItsTransaction(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	ctx := WithSource(t.Context(), Source{"ana", "192.0.2.1", "curl", "r9"})
	undo := errors.New("undo")
	for _, want := range []error{undo, nil} {
		err := d.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO top_level_namespaces (name) VALUES ('acme')"); err != nil {
				return err
			}
			if err := Append(ctx, tx, Entry{Kind: CreateNamespace, Namespace: "acme"}); err != nil {
				return err
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Fatal(err)
		}
	}
	e := one(t, d)
	if e.Kind != CreateNamespace || e.Actor != "ana" || e.Address != "192.0.2.1" || e.UserAgent != "curl" || e.RequestID != "r9" ||
		e.Namespace != "acme" || time.Since(e.Time).Abs() > time.Minute {
		t.Errorf("the entry is %+v", e)
	}
}

// A client may send text that PostgreSQL doesn't accept, such as invalid UTF-8 or a NUL
// character. Append must repair the text and write the entry, so that the client's push
// doesn't fail.
func TestAppendTakesAnyText(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	long := strings.Repeat("ä\xff\x00", 5000)
	e := Entry{Kind: Kind(long), Actor: long, Address: long, UserAgent: long, RequestID: long, Namespace: long,
		Repository: long, RepositoryID: 1, Tag: long, Detail: map[string]any{
			"zero\x00": []any{"a\x00b", map[string]any{"n": json.Number("12345678901234567890")}},
			"kept":     `\u0000`, "invalid": "\xff", "half": json.RawMessage(`"\ud800"`),
		}}
	must(t, Append(t.Context(), d.Pool, e))
	got := one(t, d)
	for what, s := range map[string]string{"kind": string(got.Kind), "actor": got.Actor, "agent": got.UserAgent, "tag": got.Tag} {
		if len(s) > maxText || !strings.HasPrefix(s, "ä??ä") {
			t.Errorf("%s is %.20q (%d bytes)", what, s, len(s))
		}
	}
	const want = `{"half":"�","kept":"\\u0000","zero?":["a?b",{"n":12345678901234567890}],"invalid":"�"}`
	var a, b any
	must(t, json.Unmarshal(got.Detail.(json.RawMessage), &a))
	must(t, json.Unmarshal([]byte(want), &b))
	x, _ := json.Marshal(a)
	if y, _ := json.Marshal(b); string(x) != string(y) {
		t.Errorf("detail is %s, want %s", x, y)
	}
	if err := Append(t.Context(), d.Pool, Entry{Kind: PushRepo, Detail: func() {}}); !errors.Is(err, errUnfit) {
		t.Errorf("a detail that is no JSON: %v", err)
	}
}

// The test runs a DELETE statement that also inserts one audit log entry per deleted row,
// with the arguments that Args returns. The entries must have the source that the context
// carries.
func TestArgs(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	exec(t, d, "INSERT INTO gc_doomed_objects (storage_key) SELECT 'key' || n FROM generate_series(1, 3) n")
	ctx := WithSource(t.Context(), Source{Actor: "ana\xff", Address: "192.0.2.1"})
	run, digest := uuid.New(), oci.Compute(oci.SHA256, []byte("x"))
	tag, err := d.Pool.Exec(ctx, `
		WITH gone AS (DELETE FROM gc_doomed_objects WHERE storage_key <> @kept RETURNING storage_key)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest, run)
		SELECT 'autoprune_tag_delete', @actor, @address, @user_agent, @request_id, 'acme', 'acme/app', 7, storage_key, @digest, @run
		FROM gone`, Args(ctx, db.Args{"kept": "key2", "digest": digest.Bytes(), "run": run}))
	must(t, err)
	if tag.RowsAffected() != 2 {
		t.Errorf("%d entries, want 2", tag.RowsAffected())
	}
	var tags []string
	for _, e := range all(t, d, Filter{Run: run, RepositoryID: 7, Namespace: "acme", Digest: digest, Actor: "ana?"}) {
		if e.Kind != AutopruneTagDelete || e.Repository != "acme/app" || e.Address != "192.0.2.1" || e.UserAgent != "" {
			t.Errorf("the entry is %+v", e)
		}
		tags = append(tags, e.Tag)
	}
	if slices.Sort(tags); !slices.Equal(tags, []string{"key1", "key3"}) {
		t.Errorf("tags are %v", tags)
	}
	if n := count(t, d, "SELECT count(*) FROM auditlog WHERE user_agent IS NULL AND request_id IS NULL"); n != 2 {
		t.Errorf("%d entries lack what the source leaves empty, want 2", n)
	}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	seen := map[Kind]bool{}
	for _, k := range Kinds() {
		if seen[k] || strings.Trim(string(k), "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("kind %q is there twice, or no name", k)
		}
		seen[k] = true
	}
	if !seen[PullRepo] || !seen[ChangeMaintenance] {
		t.Error("kinds are missing")
	}
}

// The test deletes a repository. Its audit log entries, in the default partition and in
// monthly partitions, must keep the repository's name and lose its id.
func TestRepositoryGone(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	exec(t, d, "INSERT INTO top_level_namespaces (name) VALUES ('acme')")
	exec(t, d, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/' || r FROM top_level_namespaces, unnest(ARRAY['app', 'web']) r")
	id := int64(count(t, d, "SELECT id FROM repositories WHERE path = 'acme/app'"))
	web := int64(count(t, d, "SELECT id FROM repositories WHERE path = 'acme/web'"))
	_, err := NewPartitionManager(PartitionOptions{DB: d, Log: quiet}).Update(t.Context())
	must(t, err)
	var entries []Entry
	for i := range 1500 {
		e := Entry{Kind: PullRepo, Repository: "acme/app", RepositoryID: id, CountedBy: CountedByAudit}
		if i%3 == 0 {
			e.Time = time.Now().AddDate(1, 0, 0) // no partition exists for this month
		}
		entries = append(entries, e)
	}
	entries = append(entries, Entry{Kind: PushRepo, Repository: "acme/web", RepositoryID: web})
	must(t, Append(t.Context(), d.Pool, entries...))
	before := count(t, d, "SELECT max(xid::text::bigint) FROM auditlog")
	deleteRepository(t, d, "acme/app")
	if n := len(all(t, d, Filter{RepositoryID: id})); n != 1500 {
		t.Errorf("%d entries before the clean-up, want 1500", n)
	}
	drain(t, d)
	if n := count(t, d, "SELECT count(*) FROM auditlog WHERE repository_id = $1", id); n != 0 {
		t.Errorf("%d entries still have the id", n)
	}
	if n := len(all(t, d, Filter{Repository: "acme/app"})); n != 1500 {
		t.Errorf("%d entries have the name, want 1500", n)
	}
	if n := len(all(t, d, Filter{RepositoryID: web})); n != 1 {
		t.Errorf("%d entries of the other repository, want 1", n)
	}
	if after := count(t, d, "SELECT max(xid::text::bigint) FROM auditlog"); after != before {
		t.Error("the clean-up moved entries in the order in which they are read")
	}
}

// deleteRepository deletes a repository's row, as the catalog's method of this name does.
func deleteRepository(t testing.TB, d *db.DB, path string) {
	t.Helper()
	exec(t, d, "DELETE FROM repositories WHERE path = $1", path)
}

// BenchmarkAppend measures how many entries of pulls per second Append inserts: without
// the three secondary indexes ("none"), with one of them, and with all three.
func BenchmarkAppend(b *testing.B) {
	for _, keep := range []string{"none", "repository", "namespace", "pulls", "all"} {
		b.Run(keep, func(b *testing.B) {
			d := dbtest.New(b)
			_, err := NewPartitionManager(PartitionOptions{DB: d, Log: quiet}).Update(b.Context())
			must(b, err)
			for name, index := range map[string]string{"repository": "auditlog_repository_id_idx", "namespace": "auditlog_namespace_idx", "pulls": "auditlog_pulls_idx"} {
				if keep != "all" && keep != name {
					exec(b, d, "DROP INDEX "+index)
				}
			}
			batch := make([]Entry, 500)
			ctx := context.Background()
			for n := 0; b.Loop(); n++ {
				for i := range batch {
					batch[i] = pull(n*len(batch) + i)
				}
				must(b, Append(ctx, d.Pool, batch...))
			}
			b.ReportMetric(float64(len(batch)*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// pull returns an entry like those that a registry writes for a pull.
func pull(n int) Entry {
	return Entry{
		Time: time.Now(), Kind: PullRepo, Actor: "acme+ci", Address: "192.0.2.7", UserAgent: "containerd/2.1.0", RequestID: uuid.NewString(),
		Repository: "namespace" + string(rune('a'+n%7)) + "/app", RepositoryID: int64(n%1000 + 1), Tag: "v1.2.3",
		Digest: oci.Compute(oci.SHA256, []byte{byte(n), byte(n >> 8)}), CountedBy: CountedByAudit,
	}
}
