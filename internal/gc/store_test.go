package gc_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
)

// storeBundle is a catalog and a blob store that only this test uses.
type storeBundle struct {
	t       *testing.T
	db      *db.DB
	catalog *catalog.Catalog
	gc      *gc.Collector
	store   *blob.Dir
	dir     string
	reg     *prometheus.Registry
	metrics *gc.Metrics
}

func setupStore(t *testing.T) *storeBundle {
	t.Helper()
	d := dbtest.New(t)
	dir := pgtest.TempDir(t)
	store, err := blob.OpenDir(blob.DirOptions{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	metrics := gc.NewMetrics(reg)
	c := catalog.New(catalog.Options{DB: d, Replica: uuid.New(), Log: slog.New(slog.DiscardHandler)})
	return &storeBundle{t, d, c, gc.New(gc.Options{Catalog: c, DB: d, Log: slog.New(slog.DiscardHandler)}), store, dir, reg, metrics}
}

// exec runs SQL that must succeed.
func (b *storeBundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// object stores an object of `size` bytes, to which no row of the database belongs, and
// returns the object's storage key.
func (b *storeBundle) object(size int) (key string) {
	b.t.Helper()
	_, key = b.write(blob.NewBase(), size)
	return key
}

// write stores one complete object of `size` bytes for the upload whose storage keys begin
// with `base`.
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

// doom stores n objects of 10 bytes, inserts a pending deletion for each of them, and
// returns their storage keys.
func (b *storeBundle) doom(n int) []string {
	b.t.Helper()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = b.object(10)
	}
	b.exec("INSERT INTO gc_doomed_objects (storage_key, size) SELECT unnest($1::text[]), 10", keys)
	return keys
}

// stored returns the storage keys of all objects in the store.
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

// doomed counts the pending deletions.
func (b *storeBundle) doomed() (n int) {
	b.t.Helper()
	if err := b.db.Pool.QueryRow(b.t.Context(), "SELECT count(*) FROM gc_doomed_objects").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// eventually calls `ok` until it returns true, and fails the test after 2 min. It polls,
// because the database and the store send no signal when they reach a state.
func (b *storeBundle) eventually(what string, ok func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			b.t.Fatalf("waited in vain: %s; %d objects are stored, %d rows are left", what, len(b.stored()), b.doomed())
		case <-tick.C:
		}
	}
}

// sweeper returns a sweeper of the bundle's store. The function `change` may alter its
// options.
func (b *storeBundle) sweeper(change func(*gc.SweeperOptions)) *gc.Sweeper {
	b.t.Helper()
	o := gc.SweeperOptions{
		Collector: b.gc, Store: b.store, Log: slog.New(slog.DiscardHandler), Metrics: b.metrics,
		Timeout: 10 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	s, err := gc.NewSweeper(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// start calls `run`, a worker's loop, in a goroutine until `stop` is called or the test
// ends.
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

func (b *storeBundle) counters(objects, bytes, failures float64) {
	b.t.Helper()
	got := map[string]float64{}
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	for name, want := range map[string]float64{
		"purser_gc_swept_objects_total": objects, "purser_gc_swept_bytes_total": bytes,
		"purser_gc_sweep_failures_total": failures,
	} {
		if got[name] != want {
			b.t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
}

// faulty is a store whose deletions the test replaces with functions that may fail.
type faulty struct {
	blob.Store
	delete       func(ctx context.Context, keys []string) error
	deleteUpload func(ctx context.Context, base, keep string) error
}

func (f faulty) Delete(ctx context.Context, keys []string) error {
	if f.delete != nil {
		return f.delete(ctx, keys)
	}
	return f.Store.Delete(ctx, keys)
}

func (f faulty) DeleteUpload(ctx context.Context, base, keep string) error {
	if f.deleteUpload != nil {
		return f.deleteUpload(ctx, base, keep)
	}
	return f.Store.DeleteUpload(ctx, base, keep)
}

// upload starts an upload, stores an object of 10 bytes for it, and returns the upload.
func (b *storeBundle) upload() catalog.Upload {
	b.t.Helper()
	list, err := b.catalog.StartUploads(b.t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	b.write(list[0].StorageKey, 10)
	return list[0]
}
