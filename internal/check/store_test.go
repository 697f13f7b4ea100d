package check_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// storeBundle is a catalog, with a database of its own, and a store for one test.
type storeBundle struct {
	t       *testing.T
	db      *db.DB
	catalog *catalog.Catalog
	gc      *gc.Collector
	store   *blob.Dir
	dir     string
}

func setupStore(t *testing.T) *storeBundle {
	t.Helper()
	d := dbtest.New(t)
	dir := pgtest.TempDir(t)
	store, err := blob.OpenDir(blob.DirOptions{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	c := catalog.New(catalog.Options{DB: d, Replica: uuid.New(), Log: slog.New(slog.DiscardHandler)})
	return &storeBundle{t, d, c, gc.New(gc.Options{Catalog: c, DB: d, Log: slog.New(slog.DiscardHandler)}), store, dir}
}

func TestMain(m *testing.M) { dbtest.Main(m) }

// exec runs SQL that must succeed.
func (b *storeBundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// object stores an object of size bytes that no row owns, and returns its key.
func (b *storeBundle) object(size int) (key string) {
	b.t.Helper()
	_, key = b.write(blob.NewBase(), size)
	return key
}

// write writes one complete object of an upload; `base` is the prefix of the keys of the
// upload's objects. It returns the object's writer, which is closed, and the object's key.
func (b *storeBundle) write(base string, size int) (blob.Writer, string) {
	b.t.Helper()
	var next int64
	w, err := b.store.Resume(b.t.Context(), base, nil, 0,
		func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { next += int64(n); return next - int64(n), nil })
	if err != nil {
		b.t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // Finish has said whether all is well
	if _, err := w.Write(bytes.Repeat([]byte("x"), size)); err != nil {
		b.t.Fatal(err)
	}
	key, err := w.Finish(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return w, key
}

// stored returns the keys of all objects in the store.
func (b *storeBundle) stored() []string {
	b.t.Helper()
	var keys []string
	err := filepath.WalkDir(filepath.Join(b.dir, "objects"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			keys = append(keys, e.Name())
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return keys
}

// doomed returns the number of pending deletions.
func (b *storeBundle) doomed() (n int) {
	b.t.Helper()
	if err := b.db.Pool.QueryRow(b.t.Context(), "SELECT count(*) FROM gc_doomed_objects").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// start runs a worker until stop is called or the test ends.
func (b *storeBundle) start(run func(context.Context) error) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(stop)
	return stop
}

// sweeper returns a sweeper for this store.
func (b *storeBundle) sweeper() *gc.Sweeper {
	b.t.Helper()
	s, err := gc.NewSweeper(gc.SweeperOptions{
		Collector: b.gc, Store: b.store, Log: slog.New(slog.DiscardHandler), Timeout: 10 * time.Second,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// upload starts an upload and stores an object of it.
func (b *storeBundle) upload() catalog.Upload {
	b.t.Helper()
	list, err := b.catalog.StartUploads(b.t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	b.write(list[0].StorageKey, 10)
	return list[0]
}

// doom stores n objects of 10 bytes, inserts pending deletions for them, and returns their
// keys.
func (b *storeBundle) doom(n int) []string {
	b.t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = b.object(10)
	}
	b.exec("INSERT INTO gc_doomed_objects (storage_key, size) SELECT unnest($1::text[]), 10", keys)
	return keys
}

// begun starts an upload, writes content to one of its objects, and returns the object's
// key.
func (b *storeBundle) begun(ctx context.Context, content string) (u catalog.Upload, key string, err error) {
	list, err := b.catalog.StartUploads(ctx, catalog.StartOptions{N: 1})
	if err != nil {
		return u, "", err
	}
	u = list[0]
	u.Repository, u.Size = "team/app", int64(len(content))
	var next int64
	w, err := b.store.Resume(ctx, u.StorageKey, nil, 0,
		func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { next += int64(n); return next - int64(n), nil })
	if err != nil {
		return u, "", err
	}
	defer w.Close() //nolint:errcheck // Finish has said whether all is well
	if _, err := io.WriteString(w, content); err != nil {
		return u, "", err
	}
	key, err = w.Finish(ctx)
	return u, key, err
}

func (b *storeBundle) tryPush(ctx context.Context, content string) (catalog.StoredBlob, error) {
	d := oci.Compute(oci.SHA256, []byte(content))
	u, key, err := b.begun(ctx, content)
	if err == nil {
		err = b.catalog.CommitUpload(ctx, u, d, key, false)
	}
	if err != nil {
		return catalog.StoredBlob{}, err
	}
	o, _, err := b.catalog.StoredBlob(ctx, d)
	return o, err
}

// push stores content as a blob and returns its row.
func (b *storeBundle) push(content string) catalog.StoredBlob {
	b.t.Helper()
	o, err := b.tryPush(b.t.Context(), content)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

func (b *storeBundle) file(key string) string { return filepath.Join(b.dir, "objects", key[:2], key) }

// old sets the time of an object's file so far back that no running request can have written
// the object.
func (b *storeBundle) old(key string) string {
	b.t.Helper()
	long := time.Now().Add(-3 * time.Hour)
	if err := os.Chtimes(b.file(key), long, long); err != nil {
		b.t.Fatal(err)
	}
	return key
}

// collect deletes a blob as a review of garbage collection does: it replaces the blob's row
// by a pending deletion.
func (b *storeBundle) collect(d oci.Digest) {
	b.t.Helper()
	b.exec(`WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key)
		INSERT INTO gc_doomed_objects (storage_key) SELECT storage_key FROM d`, d.Bytes())
}

// sweep deletes the objects of all pending deletions that are due.
func (b *storeBundle) sweep() {
	b.t.Helper()
	list, err := b.gc.ClaimPending(b.t.Context(), 1000, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range list {
		if d.OfUpload {
			err = b.store.DeleteUpload(b.t.Context(), d.StorageKey, d.Keep)
		} else {
			err = b.store.Delete(b.t.Context(), []string{d.StorageKey})
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	if err := b.gc.SettlePending(b.t.Context(), list); err != nil {
		b.t.Fatal(err)
	}
}

// check runs a check and returns its findings, sorted, as "PROBLEM KEY" or, if a finding
// was repaired, "PROBLEM KEY repaired".
func (b *storeBundle) check(o check.Options) ([]string, check.CheckReport, error) {
	b.t.Helper()
	o.Catalog = b.catalog
	if o.Store == nil {
		o.Store = b.store
	}
	var found []string
	o.Found = func(f check.Finding) {
		text := string(f.Problem) + " " + f.Key
		if f.Repaired {
			text += " repaired"
		}
		found = append(found, text)
	}
	report, err := check.Run(b.t.Context(), o)
	slices.Sort(found)
	return found, report, err
}

// finds runs a check, which must succeed and have exactly the findings want.
func (b *storeBundle) finds(o check.Options, want ...string) check.CheckReport {
	b.t.Helper()
	report, err := b.compares(o, want)
	if err != nil {
		b.t.Fatal(err)
	}
	return report
}

// findsIncompletely is like finds, for a check that can't read a part of the store.
func (b *storeBundle) findsIncompletely(o check.Options, want ...string) check.CheckReport {
	b.t.Helper()
	report, err := b.compares(o, want)
	if !errors.Is(err, check.ErrIncomplete) || !report.Remaining() {
		b.t.Fatalf("%v, remaining: %v", err, report.Remaining())
	}
	return report
}

// compares runs a check, which must have exactly the findings want.
func (b *storeBundle) compares(o check.Options, want []string) (check.CheckReport, error) {
	b.t.Helper()
	found, report, err := b.check(o)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		b.t.Fatalf("found, %v:\n%s\nwant:\n%s", err, strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
	return report, err
}
