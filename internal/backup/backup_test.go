package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// registry is a catalog and a blob store that belong together.
type registry struct {
	catalogtest.Bundle
	t     *testing.T
	dsn   string
	store *blob.Dir
	id    string
}

func setup(t *testing.T) *registry {
	t.Helper()
	dsn := dbtest.DSN(t)
	r := &registry{catalogtest.Replica(t, dsn), t, dsn, newStore(t), uuid.NewString()}
	if err := r.store.SetIdentity(t.Context(), r.id, false); err != nil {
		t.Fatal(err)
	}
	r.Exec(t, "INSERT INTO store_identity (id, place, confirmed_at) VALUES ($1, 'here', now())", r.id)
	return r
}

func newStore(t *testing.T) *blob.Dir {
	t.Helper()
	s, err := blob.OpenDir(blob.DirOptions{Path: pgtest.TempDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newTarget(t *testing.T) Target {
	t.Helper()
	target, err := InDirectory(filepath.Join(pgtest.TempDir(t), "backup"))
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// push stores content as a blob of acme/app, and puts an image with it under a tag.
func (r *registry) push(tag, content string) oci.Digest {
	r.t.Helper()
	base := blob.NewBase()
	key := base + "-0"
	if err := r.store.Put(r.t.Context(), key, int64(len(content)), strings.NewReader(content)); err != nil {
		r.t.Fatal(err)
	}
	d := r.Push(r.t, "acme/app", content)
	r.Exec(r.t, "UPDATE blobs SET storage_key = $2 WHERE digest = $1", d.Bytes(), key)
	r.Put(r.t, "acme/app", catalogtest.Image(r.t, d, nil, nil), tag)
	return d
}

func (r *registry) options(target Target) Options {
	return Options{Main: r.dsn, Target: target, Store: r.store, Identity: r.id, Place: "here", Blobs: Copy, Purser: "test", Log: quiet}
}

func (r *registry) backup(target Target, change ...func(*Options)) Result {
	r.t.Helper()
	o := r.options(target)
	for _, f := range change {
		f(&o)
	}
	res, err := Run(r.t.Context(), o)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func find(t *testing.T, target Target, id string) *Manifest {
	t.Helper()
	m, err := Find(t.Context(), target, id)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// restoreOptions are options for a restore of the newest backup into a new registry, whose database has
// its tables already, as after a server was started on it. That is quicker than to make them.
func restoreOptions(t *testing.T, target Target) RestoreOptions {
	t.Helper()
	return RestoreOptions{Main: dbtest.DSN(t), Target: target, Manifest: find(t, target, ""), Store: newStore(t), Place: "there", Log: quiet}
}

// emptyRestoreOptions are restoreOptions for a database without tables.
func emptyRestoreOptions(t *testing.T, target Target) RestoreOptions {
	t.Helper()
	o := restoreOptions(t, target)
	o.Main = dbtest.EmptyDSN(t)
	return o
}

// dump returns all rows of a database, by tables and sorted, without the tables and columns that
// a restore changes on purpose.
func dump(t *testing.T, dsn string) map[string][]string {
	t.Helper()
	conn, done, err := db.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	s, err := readSource(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]string)
	for _, table := range s.tables {
		if slices.Contains([]string{"webhookposition", "pullstatisticsprocessingstate", "store_identity", "uploads", "gc_doomed_objects"}, table.Name) {
			continue
		}
		table.Columns = slices.DeleteFunc(table.Columns, func(c string) bool { return c == "xid" })
		var b bytes.Buffer
		if _, err := conn.PgConn().CopyTo(t.Context(), &b, copyOut(table)); err != nil {
			t.Fatal(err)
		}
		lines := slices.Sorted(strings.Lines(b.String()))
		out[table.Name] = lines
	}
	return out
}

func wantSame(t *testing.T, got, want map[string][]string) {
	t.Helper()
	for table, rows := range want {
		if !slices.Equal(got[table], rows) {
			t.Errorf("table %s has\n%v, want\n%v", table, got[table], rows)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d tables, want %d", len(got), len(want))
	}
}

// wantObjects expects that the store has an object of each blob of the database, with the
// blob's content.
func wantObjects(t *testing.T, dsn string, s blob.Store) {
	t.Helper()
	d := dbtest.Open(t, dsn)
	rows, err := d.Pool.Query(t.Context(), "SELECT storage_key, size, digest FROM blobs")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var o object
		if err := rows.Scan(&o.key, &o.size, &o.digest); err != nil {
			t.Fatal(err)
		}
		r, err := s.Open(t.Context(), o.key, 0, -1)
		if err == nil {
			_, err = io.Copy(io.Discard, newVerifier(o, r))
			err = errors.Join(err, r.Close())
		}
		if err != nil {
			t.Errorf("object %s: %v", o.key, err)
		}
		n++
	}
	if rows.Err() != nil || n == 0 {
		t.Errorf("%d blobs, %v", n, rows.Err())
	}
}

// A backup is restored elsewhere, with another number of partitions. All rows and objects must
// be there, and new rows must get new ids.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 5 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	r.Exec(t, "INSERT INTO auditlog (time, kind) VALUES (now() - interval '90 days', 'push_repo')")
	r.Exec(t, "CREATE TABLE loose_foreign_keys_deleted_records_7 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (7)")
	target := newTarget(t)
	want := dump(t, r.dsn)
	b := r.backup(target)
	if b.Blobs.Count != 5 || b.Blobs.Copied != 5 || b.Blobs.Missing != 0 || b.Blobs.Bytes != 5*int64(len("content 0")) {
		t.Errorf("the backup has %+v", b.Blobs)
	}
	o := emptyRestoreOptions(t, target)
	o.Partitions = 1
	if res, err := Restore(t.Context(), o); err != nil || res.Objects != 5 || res.Identity != r.id {
		t.Fatalf("%+v, %v", res, err)
	}
	wantSame(t, dump(t, o.Main), want)
	wantObjects(t, o.Main, o.Store)
	if id, err := o.Store.Identity(t.Context()); id != r.id || err != nil {
		t.Errorf("the store's identity is %q, %v", id, err)
	}
	restored := &registry{catalogtest.Replica(t, o.Main), t, o.Main, o.Store.(*blob.Dir), r.id}
	restored.push("more", "more")
	wantObjects(t, o.Main, o.Store)
}

// Blobs are deleted from the database between the snapshot and the end of the copying. Sweepers
// must not delete their objects before the end, and must delete them afterwards.
func TestSweepersWait(t *testing.T) {
	t.Parallel()
	r := setup(t)
	old := r.push("old", "deleted before the backup")
	r.collect(old)
	for i := range 20 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	sweeper, err := gc.NewSweeper(gc.SweeperOptions{Collector: r.Collector, Store: r.store, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var first sync.Once
	refused := 0
	target := newTarget(t)
	r.backup(target, func(o *Options) {
		o.Parallel = 1
		o.copied = func(string) {
			first.Do(func() {
				for i := range 20 {
					r.collect(oci.Compute(oci.SHA256, fmt.Append(nil, "content ", i)))
				}
			})
			if _, err := r.ClaimPending(context.Background(), 1000, 0); errors.Is(err, gc.ErrSweepsPaused) {
				refused++
			} else {
				t.Errorf("a sweeper claimed objects during the backup: %v", err)
			}
		}
	})
	if refused == 0 {
		t.Fatal("nothing was copied")
	}
	o := restoreOptions(t, target)
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantObjects(t, o.Main, o.Store)
	// After the backup a sweeper deletes all of them.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sweeper.Run(ctx) }()
	catalogtest.Eventually(t, "the objects are swept", func() bool { return r.Rows(t, "gc_doomed_objects") == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// collect deletes a blob's manifests and then the blob, as garbage collection does.
func (r *registry) collect(d oci.Digest) {
	r.t.Helper()
	r.Exec(r.t, "DELETE FROM tags WHERE manifest_id IN (SELECT id FROM manifests WHERE configuration_blob_digest = $1)", d.Bytes())
	r.Exec(r.t, "DELETE FROM manifests WHERE configuration_blob_digest = $1", d.Bytes())
	r.Exec(r.t, `WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key, size)
		INSERT INTO gc_doomed_objects (storage_key, size) SELECT storage_key, size FROM d`, d.Bytes())
}

// Two backups can't run at the same time.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "one")
	conn, done, err := db.Connect(t.Context(), r.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	r.backup(newTarget(t), func(o *Options) {
		o.copied = func(string) {
			if paused, err := gc.SweepsPausedIn(context.Background(), conn); !paused || err != nil {
				t.Errorf("another backup isn't kept out: %v", err)
			}
		}
	})
	if paused, err := gc.SweepsPausedIn(t.Context(), conn); paused || err != nil {
		t.Errorf("the lock is held after the backup: %v", err)
	}
}

// A backup is killed while it copies blobs. It must not be taken for complete, and the next one
// must copy only the rest. Later backups copy only new objects.
func TestIncremental(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 10 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	target := newTarget(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := r.options(target)
	var n atomic.Int64
	o.Parallel = 1
	o.copied = func(string) {
		if n.Add(1) == 4 {
			cancel()
		}
	}
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("the killed backup: %v", err)
	}
	if _, err := Find(t.Context(), target, ""); err == nil || !strings.Contains(err.Error(), "no complete backup") {
		t.Errorf("after a killed backup: %v", err)
	}
	copied := n.Load()
	b := r.backup(target)
	if b.Blobs.Copied < 10-copied-1 || b.Blobs.Copied > 10-copied {
		t.Errorf("after %d objects were copied, %d more were", copied, b.Blobs.Copied)
	}
	all, err := List(t.Context(), target)
	if err != nil || len(all) != 2 || all[0].Manifest != nil || all[1].Manifest == nil {
		t.Errorf("the list: %+v, %v", all, err)
	}
	r.push("new", "new content")
	if b := r.backup(target); b.Blobs.Copied != 1 || b.Blobs.Count != 11 {
		t.Errorf("the third backup copied %d of %d", b.Blobs.Copied, b.Blobs.Count)
	}
	if b := r.backup(target, func(o *Options) { o.Blobs = Reference }); b.Blobs.Copied != 0 || b.Blobs.Count != 11 {
		t.Errorf("a backup by reference copied %d of %d", b.Blobs.Copied, b.Blobs.Count)
	}
}

// Old backups are deleted, with the objects that only they need. While another backup in the
// target is incomplete, no objects are deleted.
func TestPrune(t *testing.T) {
	t.Parallel()
	r := setup(t)
	target := newTarget(t)
	a, b := r.push("a", "content a"), r.push("b", "content b")
	first := r.backup(target)
	r.collect(a)
	second := r.backup(target)
	r.collect(b)
	r.push("c", "content c")
	if err := putBytes(t.Context(), target, backupsDir+second.ID[:8]+"T235959.000Z/begun", nil); err != nil {
		t.Fatal(err)
	}
	third := r.backup(target, func(o *Options) { o.Keep = 2 })
	if p := third.Pruned; p.Backups != 1 || !p.Waiting || p.Objects != 0 {
		t.Errorf("beside an incomplete backup: %+v", p)
	}
	if _, err := Find(t.Context(), target, first.ID); err == nil {
		t.Error("the oldest backup is there")
	}
	if err := target.Delete(t.Context(), []string{backupsDir + second.ID[:8] + "T235959.000Z/begun"}); err != nil {
		t.Fatal(err)
	}
	if p := r.backup(target, func(o *Options) { o.Keep = 3 }).Pruned; p.Backups != 0 || p.Objects != 1 || p.Bytes != int64(len("content a")) {
		t.Errorf("the object that only the first backup needs: %+v", p)
	}
	for _, m := range []*Manifest{find(t, target, second.ID), find(t, target, third.ID)} {
		if v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: m, Deep: true}); err != nil || v.Missing != 0 {
			t.Errorf("backup %s: %+v, %v", m.ID, v, err)
		}
	}
}

var errKilled = errors.New("killed")

// A restore is killed at each of its steps. Until it has ended, no server may start on the
// database. When it is run again, it must go on and end.
func TestKilledRestore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 3 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	target := newTarget(t)
	want := dump(t, r.dsn)
	r.backup(target)
	for _, statsApart := range testscale.Pick([]bool{true}, []bool{false, true}) {
		o := emptyRestoreOptions(t, target)
		o.Parallel = 1
		if statsApart {
			o.Stats = dbtest.EmptyDSN(t)
		}
		for _, at := range testscale.Pick([]string{"objects", "identity", "metadata", "reset", "end"}, []string{"objects", "object", "identity", "rows", "metadata", "migrate", "reset", "end"}) {
			o.reached = func(step string) error {
				if step == at {
					return errKilled
				}
				return nil
			}
			if _, err := Restore(t.Context(), o); !errors.Is(err, errKilled) {
				t.Fatalf("killed at %s: %v", at, err)
			}
			if _, err := db.Migrate(t.Context(), o.Main, db.MigrateOptions{}); !errors.Is(err, db.ErrRestoring) {
				t.Errorf("a server that starts after %s: %v", at, err)
			}
		}
		o.reached = nil
		if _, err := Restore(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Migrate(t.Context(), o.Main, db.MigrateOptions{}); err != nil {
			t.Errorf("a server that starts afterwards: %v", err)
		}
		if statsApart {
			for table := range want {
				if isStats(table) {
					delete(want, table)
				}
			}
		}
		wantSame(t, dump(t, o.Main), want)
		wantObjects(t, o.Main, o.Store)
		if _, err := Restore(t.Context(), o); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("restored twice: %v", err)
		}
	}
}

// Each file of a backup is damaged or missing once. The restore must fail, and load no rows: after
// the file is back, a restore into the same database must succeed.
func TestDamaged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	target := newTarget(t)
	r.backup(target)
	m := find(t, target, "")
	o := restoreOptions(t, target)
	var files []string
	for f, err := range target.Files(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if f.Key != markFile && !strings.HasSuffix(f.Key, "/begun") {
			files = append(files, f.Key)
		}
	}
	tried := 0
	for _, name := range files {
		path := filepath.Join(target.Place(), name)
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range []func([]byte) []byte{
			func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
			func(b []byte) []byte { return b[:len(b)-2] },
			func([]byte) []byte { return nil },
		} {
			if changed := change(bytes.Clone(old)); changed == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, changed, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			o.Manifest, err = Find(t.Context(), target, m.ID)
			if err == nil && strings.HasPrefix(name, objectsDir) {
				v, verr := Verify(t.Context(), VerifyOptions{Target: target, Manifest: o.Manifest, Deep: true})
				if verr != nil || v.Missing != 1 {
					t.Errorf("verifying with a damaged %s: %+v, %v", name, v, verr)
				}
			}
			if err == nil {
				o.Store = newStore(t)
				_, err = Restore(t.Context(), o)
			}
			if !errors.Is(err, ErrDamaged) && !strings.Contains(fmt.Sprint(err), "is incomplete") {
				t.Errorf("with a damaged %s: %v", name, err)
			}
			tried++
		}
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if tried < 30 {
		t.Errorf("only %d damages", tried)
	}
	o.Manifest = find(t, target, "")
	o.Store = newStore(t)
	if _, err := Restore(t.Context(), o); err != nil {
		t.Errorf("with the files as they were: %v", err)
	}
}

// The store lacks an object, and another one is damaged. The backup is complete without them,
// and names them.
func TestMissing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	lost, damaged := r.push("a", "content a"), r.push("b", "content b")
	r.push("c", "content c")
	key := func(d oci.Digest) (key string) {
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT storage_key FROM blobs WHERE digest = $1", d.Bytes()).Scan(&key); err != nil {
			t.Fatal(err)
		}
		return key
	}
	if err := r.store.Delete(t.Context(), []string{key(lost)}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Put(t.Context(), key(damaged), 9, strings.NewReader("content x")); err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	b := r.backup(target)
	want := []string{key(lost), key(damaged)}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(b.Blobs.FirstMissing)); b.Blobs.Missing != 2 || !slices.Equal(got, want) || b.Blobs.Copied != 1 {
		t.Errorf("the backup lacks %v, want %v", got, want)
	}
	o := restoreOptions(t, target)
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 2 || res.Objects != 1 {
		t.Errorf("restored: %+v, %v", res, err)
	}
}

// A restore refuses a database or a store that isn't empty, and the store of another registry.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	target := newTarget(t)
	byReference := r.backup(target, func(o *Options) { o.Blobs = Reference })
	r.backup(target)
	other := setup(t)
	other.push("v1", "content")
	for name, c := range map[string]struct {
		change func(o *RestoreOptions)
		want   string
	}{
		"a database in use":            {func(o *RestoreOptions) { o.Main = other.dsn }, "top_level_namespaces: it is not empty"},
		"statistics in use":            {func(o *RestoreOptions) { o.Stats = other.dsn }, "top_level_namespaces: it is not empty"},
		"a store in use":               {func(o *RestoreOptions) { o.Store = other.store }, "belongs to a registry"},
		"another registry's store":     {func(o *RestoreOptions) { o.Store, o.Keep = other.store, true }, "belongs to another database"},
		"an empty store that is kept":  {func(o *RestoreOptions) { o.Keep = true }, "of 1 objects of the backup, drawn at random, it has 0"},
		"strict, and a kept store":     {func(o *RestoreOptions) { o.Keep, o.Strict = true, true }, "purser check"},
		"from, without a kept store":   {func(o *RestoreOptions) { o.From = r.id }, "only a store that is kept"},
		"no copies":                    {func(o *RestoreOptions) { o.Manifest = byReference.Manifest }, "no copies of the blobs"},
		"a new identity, an old store": {func(o *RestoreOptions) { o.Keep, o.NewIdentity = true, true }, "keeps its identity"},
		"a newer schema":               {func(o *RestoreOptions) { o.Manifest.Schema.Main++ }, "newer"},
		"a build before 1.0": {func(o *RestoreOptions) {
			o.Manifest.Schema = db.Versions{Main: 45, Stats: 10} // as such a build writes it
		}, "before Purser 1.0"},
	} {
		o := restoreOptions(t, target)
		c.change(&o)
		if _, err := Restore(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Run(t.Context(), other.options(target)); err == nil || !strings.Contains(err.Error(), "another registry") {
		t.Errorf("a backup into another registry's target: %v", err)
	}
	full, err := InDirectory(r.store.Path())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), r.options(full)); err == nil || !strings.Contains(err.Error(), "has other files") {
		t.Errorf("a backup into a directory in use: %v", err)
	}
	// The store of the old registry can be kept.
	o := restoreOptions(t, target)
	o.Manifest, o.Store, o.Keep = byReference.Manifest, r.store, true
	if _, err := Restore(t.Context(), o); err != nil {
		t.Error(err)
	}
	wantObjects(t, o.Main, r.store)
	// A restored registry that runs beside the old one has an identity of its own.
	o = restoreOptions(t, target)
	o.NewIdentity = true
	res, err := Restore(t.Context(), o)
	if err != nil || res.Identity == r.id {
		t.Errorf("a new identity: %+v, %v", res, err)
	}
	if id, err := o.Store.Identity(t.Context()); id != res.Identity || err != nil {
		t.Errorf("the store's identity is %s, %v", id, err)
	}
}

// Files of another registry, whose import isn't finished, aren't taken for the restored registry's. In
// a new store the copies are its own.
func TestRestoreOfImported(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.push("v1", "content")
	const key = "docker/registry/v2/blobs/sha256/aa/aa/data"
	was, there, err := r.StoredBlob(t.Context(), d)
	if err != nil || !there {
		t.Fatal(there, err)
	}
	put := func(s any) {
		t.Helper()
		if err := s.(blob.Putter).Put(t.Context(), key, int64(len("content")), strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
	}
	put(r.store)
	for _, sql := range []string{
		"UPDATE blobs SET storage_key = '" + key + "' WHERE storage_key = '" + was.Key + "'",
		"INSERT INTO imports (source, format) VALUES ('docker/registry/v2/', 'distribution')",
		"INSERT INTO gc_foreign_objects (storage_key) VALUES ('docker/registry/v2/blobs/sha256/bb/bb/data')",
	} {
		r.Exec(t, sql)
	}
	target := newTarget(t)
	r.backup(target)
	o := restoreOptions(t, target)
	put(o.Store)
	if _, err := Restore(t.Context(), o); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), key) {
		t.Errorf("into the other registry's storage: %v", err)
	}
	o = restoreOptions(t, target)
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantObjects(t, o.Main, o.Store)
	restored := catalogtest.Replica(t, o.Main)
	if list, waiting, _, err := restored.Imports(t.Context()); err != nil || len(list) != 1 || list[0].Finished.IsZero() || waiting != 0 {
		t.Errorf("the imports in a new store: %+v, %d objects wait, %v", list, waiting, err)
	}
}

// The statistics are in another database. The snapshot of the audit log must be later than that
// of the statistics, so that the log has all pulls that the statistics have counted.
func TestStatisticsApart(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	stats := dbtest.EmptyDSN(t)
	if _, err := db.MigrateStats(t.Context(), stats); err != nil {
		t.Fatal(err)
	}
	s := dbtest.Open(t, stats)
	if _, err := s.Pool.Exec(t.Context(), "INSERT INTO pullstatisticsprocessingstate (recorded_since) VALUES (now())"); err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	b := r.backup(target, func(o *Options) {
		o.Stats = stats
		o.paused = func() {
			// The statistics are written. What is logged and counted now is in the log alone.
			if err := audit.New(r.DB).Append(context.Background(), audit.Entry{Kind: audit.RunGC}); err != nil {
				t.Error(err)
			}
		}
	})
	if len(b.Stats.Tables) < 10 || slices.ContainsFunc(b.Main.Tables, func(t Table) bool { return isStats(t.Name) }) {
		t.Errorf("the statistics have %d tables", len(b.Stats.Tables))
	}
	o := restoreOptions(t, target) // into one database
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := dbtest.Open(t, o.Main).Pool.QueryRow(t.Context(), "SELECT count(*) FROM pullstatisticsprocessingstate").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows of the statistics' state, %v", n, err)
	}
}

// Backup and restore work with a target and a store in S3, and files of a target are divided.
func TestInS3(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.push("a", "content a")
	for i := range 3 {
		r.push(fmt.Sprint("v", i), strings.Repeat(fmt.Sprint(i), 6<<20)) // more than a part
	}
	options := blobtest.S3Server(t)
	open := func(prefix string) *s3.Store {
		o := options
		o.Prefix = prefix
		s, err := s3.New(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	target := InBucket(open("backups/purser"), "s3://bucket/backups/purser")
	want := dump(t, r.dsn)
	r.backup(target)
	o := emptyRestoreOptions(t, target)
	o.Store = open("restored")
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantSame(t, dump(t, o.Main), want)
	wantObjects(t, o.Main, o.Store)
	r.collect(a)
	if p := r.backup(target, func(o *Options) { o.Keep = 1 }).Pruned; p.Backups != 1 || p.Objects != 1 {
		t.Errorf("pruned %+v", p)
	}
	if v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: find(t, target, ""), Deep: true}); err != nil || v.Missing != 0 || v.Objects != 3 {
		t.Errorf("%+v, %v", v, err)
	}
}

// chunkWriter divides a table into files at the ends of lines, and chunkReader joins them.
func TestChunks(t *testing.T) {
	t.Parallel()
	target := newTarget(t)
	w := newChunkWriter(t.Context(), target, "backups/x/", "table", func(int64, int64) {})
	w.size = 100
	var want bytes.Buffer
	for i := range 100 {
		line := fmt.Sprintf("line %d of %s\n", i, strings.Repeat("x", i))
		want.WriteString(line)
		for _, part := range []string{line[:3], line[3:]} {
			if _, err := io.WriteString(w, part); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if len(w.files) < 20 || w.lines != 100 {
		t.Errorf("%d files, %d lines", len(w.files), w.lines)
	}
	got, err := io.ReadAll(newChunkReader(t.Context(), target, "backups/x/", w.files))
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d bytes instead of %d, %v", len(got), want.Len(), err)
	}
}

// The rows of a stopped registry go to another database. A transfer that is interrupted at its
// end, after which the old registry changes, must begin again with the rows as they are then.
func TestTransfer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	o := TransferOptions{
		From: r.dsn, To: dbtest.EmptyDSN(t), Store: r.store, Identity: r.id, Place: "here", Purser: "test", Log: quiet,
		Scratch:   filepath.Join(t.TempDir(), "rows"),
		BeforeEnd: func(context.Context) error { return errKilled },
	}
	if _, err := Transfer(t.Context(), o); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	r.push("v2", "content that came later")
	want := dump(t, r.dsn)
	o.BeforeEnd = func(ctx context.Context) error {
		if _, err := db.Migrate(ctx, o.To, db.MigrateOptions{}); !errors.Is(err, db.ErrRestoring) {
			t.Errorf("a server that starts too early: %v", err)
		}
		return db.MarkMoved(ctx, r.DB.Pool, "to there")
	}
	if res, err := Transfer(t.Context(), o); err != nil || res.Rows == 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	wantSame(t, dump(t, o.To), want)
	if _, err := db.Migrate(t.Context(), o.To, db.MigrateOptions{}); err != nil {
		t.Errorf("a server that starts on the new database: %v", err)
	}
	if _, err := db.Migrate(t.Context(), r.dsn, db.MigrateOptions{}); !errors.Is(err, db.ErrMoved) {
		t.Errorf("a server that starts on the old one: %v", err)
	}
	if _, err := os.Stat(o.Scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the rows are left: %v", err)
	}
}

// Blobs move to S3 while the registry serves, and the last pass copies the rest. It is refused
// while a server runs. Afterwards the old store belongs to nobody.
func TestMoveBlobs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 5 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	to, err := s3.New(blobtest.S3Server(t))
	if err != nil {
		t.Fatal(err)
	}
	o := MoveBlobsOptions{Main: r.dsn, From: r.store, FromPlace: "here", Identity: r.id, To: to, ToPlace: "s3://there", Log: quiet}
	pass := func(want int64) {
		t.Helper()
		if res, err := MoveBlobs(t.Context(), o); err != nil || res.Copied != want || res.Missing != 0 || res.Finished != o.Finish {
			t.Fatalf("%+v, %v, want %d copied", res, err, want)
		}
	}
	pass(5)
	pass(0)
	r.push("v5", "content 5")
	o.Finish = true
	r.Exec(t, "INSERT INTO servers (replica, host, settings) VALUES ($1, 'a server', '{}')", uuid.New())
	if _, err := MoveBlobs(t.Context(), o); !errors.Is(err, ErrRunning) {
		t.Errorf("beside a server: %v", err)
	}
	r.Exec(t, "UPDATE servers SET stopped = true")
	// A server that runs while the pass copies may take pushes that the pass doesn't know.
	o.reached = func(step string) {
		if step == "copied" {
			r.Exec(t, "UPDATE servers SET seen_at = clock_timestamp()")
		}
	}
	if _, err := MoveBlobs(t.Context(), o); !errors.Is(err, errRan) {
		t.Errorf("a server ran meanwhile: %v", err)
	}
	if id, err := to.Identity(t.Context()); id == r.id || err != nil {
		t.Errorf("a refused pass has given the new store the identity %q, %v", id, err)
	}
	// A server that starts while the stores are exchanged waits with its record.
	o.reached = func(step string) {
		if step == "locked" {
			err := pgx.BeginFunc(t.Context(), r.DB.Pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '50ms'")
				if err == nil {
					_, err = tx.Exec(t.Context(), "INSERT INTO servers (replica, host, settings) VALUES (gen_random_uuid(), 'another', '{}')")
				}
				return err
			})
			if db.Code(err) != db.CodeLockNotAvailable {
				t.Errorf("a server starts meanwhile: %v", err)
			}
		}
	}
	pass(0)
	wantObjects(t, r.dsn, to)
	if id, err := to.Identity(t.Context()); id != r.id || err != nil {
		t.Errorf("the new store has the identity %q, %v", id, err)
	}
	if id, err := r.store.Identity(t.Context()); id == r.id || id == "" || err != nil {
		t.Errorf("the old store has the identity %q, %v", id, err)
	}
	full := newStore(t)
	if err := full.Put(t.Context(), blob.NewBase()+"-0", 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	o.From, o.To, o.ToPlace, o.Finish = to, full, "full", false
	if _, err := MoveBlobs(t.Context(), o); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a store in use: %v", err)
	}
}

// A restore and a backup need no more rights than the registry has: those of the database's
// owner, who may not switch off the checks of foreign keys.
func TestOrdinaryRole(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	r.Put(t, "acme/app", catalogtest.Index(t, oci.Compute(oci.SHA256, catalogtest.Image(t, r.push("v2", "other"), nil, nil))), "index")
	target := newTarget(t)
	want := dump(t, r.dsn)
	r.backup(target)
	o := emptyRestoreOptions(t, target)
	admin := dbtest.Open(t, o.Main)
	role := "owner_" + blob.NewBase()
	cfg := admin.Pool.Config().ConnConfig
	for _, sql := range []string{
		"CREATE ROLE " + role + " LOGIN", "GRANT ALL ON DATABASE " + cfg.Database + " TO " + role, "ALTER SCHEMA public OWNER TO " + role,
	} {
		if _, err := admin.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Pool.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	o.Main = fmt.Sprintf("host=%s port=%d dbname=%s user=%s sslmode=disable", cfg.Host, cfg.Port, cfg.Database, role)
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantSame(t, dump(t, o.Main), want)
	again := Options{Main: o.Main, Target: newTarget(t), Store: o.Store, Identity: r.id, Blobs: Copy, Purser: "test", Log: quiet}
	if b, err := Run(t.Context(), again); err != nil || b.Blobs.Count != 2 || b.Blobs.Missing != 0 {
		t.Errorf("%+v, %v", b.Manifest, err)
	}
}
