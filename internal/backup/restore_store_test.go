package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// restoreStore fills a store again, and expects how many objects it had, got and lacks.
func (r *registry) restoreStore(target Target, store blob.Store, there, copied, missing int64) StoreRestored {
	r.t.Helper()
	got, err := RestoreStore(r.t.Context(), StoreOptions{DB: r.DB, Target: target, Store: store, Log: quiet})
	if err != nil {
		r.t.Fatal(err)
	}
	if got.Blobs != there+copied+missing || got.There != there || got.Objects != copied || got.Missing != missing || int(missing) != len(got.FirstMissing) {
		r.t.Errorf("%+v, want %d there, %d copied, %d missing", got, there, copied, missing)
	}
	return got
}

// The store is lost, or some of its objects. What the backups have comes back, and nothing else: not
// what is damaged there, and not what the database doesn't name.
func TestRestoreStore(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	r.collect(digests[3]) // the backup has an object that nobody needs
	store := newStore(t)
	if got := r.restoreStore(target, store, 0, 3, 0); got.Bytes != int64(3*len(contents[0])) {
		t.Errorf("%d bytes were copied", got.Bytes)
	}
	wantObjects(t, r.dsn, store)
	r.restoreStore(target, store, 3, 0, 0)
	late := r.push("late", "pushed after the backup")
	if got := r.restoreStore(target, store, 3, 0, 1); got.FirstMissing[0] != (MissingBlob{late, int64(len("pushed after the backup"))}) {
		t.Errorf("missing: %+v", got.FirstMissing)
	}
	for _, damage := range []string{"conten", ""} { // in the store
		if err := store.Put(t.Context(), r.key(digests[0]), int64(len(damage)), strings.NewReader(damage)); err != nil {
			t.Fatal(err)
		}
		r.restoreStore(target, store, 2, 1, 1)
	}
	write(t, r.copyOf(target, digests[1]), []byte("content X"))
	r.restoreStore(target, newStore(t), 0, 2, 2)
	removeAll(t, r.copyOf(target, digests[1]))
	r.restoreStore(target, newStore(t), 0, 2, 2)
	if lost := lostIn(t, r.dsn); len(lost) != 0 {
		t.Errorf("%v are marked as lost", lost)
	}
	r.backup(target) // a later backup of the store that has everything
	whole := newStore(t)
	r.restoreStore(target, whole, 0, 4, 0)
	wantObjects(t, r.dsn, whole)
}

// Content has decayed in the store, and the blobs are marked as lost. It comes back if a backup has it.
// Nothing is copied for a blob whose object has come back whole by other means.
func TestRestoreStoreOfDecayed(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	r.loses(digests[:3]...)
	for i, content := range []string{"content X", "content Y", contents[2]} {
		if err := r.store.Put(t.Context(), r.key(digests[i]), int64(len(content)), strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	removeAll(t, r.copyOf(target, digests[1]))
	removeAll(t, r.copyOf(target, digests[2]))
	if got := r.restoreStore(target, r.store, 2, 1, 1); got.FirstMissing[0].Digest != digests[1] {
		t.Errorf("missing: %+v", got.FirstMissing)
	}
	if lost := lostIn(t, r.dsn); len(lost) != 3 {
		t.Errorf("lost are %v: only a check says that a blob is found", lost)
	}
	r.collect(digests[1])
	wantObjects(t, r.dsn, r.store)
}

// closedDir is a store some of whose objects may not be looked at, opened or replaced.
type closedDir struct {
	*blob.Dir
	stat, open, put []string // their keys
}

func closed(keys []string, key string) error {
	if slices.Contains(keys, key) {
		return &fs.PathError{Op: "open", Path: key, Err: fs.ErrPermission}
	}
	return nil
}

func (c closedDir) Stat(ctx context.Context, key string) (blob.Object, error) {
	if err := closed(c.stat, key); err != nil {
		return blob.Object{}, err
	}
	return c.Dir.Stat(ctx, key)
}

func (c closedDir) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if err := closed(c.open, key); err != nil {
		return nil, err
	}
	return c.Dir.Open(ctx, key, off, length)
}

func (c closedDir) Put(ctx context.Context, key string, size int64, r io.Reader) error {
	if err := closed(c.put, key); err != nil {
		return err
	}
	return c.Dir.Put(ctx, key, size, r)
}

// Objects of lost blobs can't be read, and one of them can't be replaced either. All others come back. A
// store that is closed to the process otherwise, and a closed target, end the restore.
func TestRestoreStoreOfUnreadable(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	r.loses(digests[:3]...)
	for i := range 2 {
		if err := r.store.Put(t.Context(), r.key(digests[i]), int64(len(contents[i])), strings.NewReader(contents[i])); err != nil {
			t.Fatal(err)
		}
	}
	unlost := r.key(digests[3])
	for _, o := range []StoreOptions{
		{Target: failingTarget{target, fs.ErrPermission}, Store: r.store},
		{Target: target, Store: closedDir{Dir: r.store, stat: []string{unlost}}},
	} {
		o.DB, o.Log = r.DB, quiet
		if _, err := RestoreStore(t.Context(), o); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("from %T into %T: %v", o.Target, o.Store, err)
		}
	}
	if err := r.store.Delete(t.Context(), []string{r.key(digests[2]), unlost}); err != nil {
		t.Fatal(err)
	}
	stuck := r.key(digests[1])
	store := closedDir{Dir: r.store, stat: []string{stuck}, open: []string{r.key(digests[0])}, put: []string{stuck}}
	if got := r.restoreStore(target, store, 0, 3, 1); len(got.FirstMissing) != 1 || got.FirstMissing[0].Digest != digests[1] {
		t.Errorf("missing: %+v", got.FirstMissing)
	}
	wantObjects(t, r.dsn, r.store)
}

// hookedTarget calls a function before it opens a file.
type hookedTarget struct {
	Target
	open func(name string)
}

func (h hookedTarget) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	h.open(name)
	return h.Target.Open(ctx, name)
}

// While a store is filled again, each blob is deleted at the moment at which its object is copied.
// Sweepers wait, and afterwards they delete every object, so that none is left without an owner.
func TestRestoreStoreBesideDeletion(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	byFile := map[string]oci.Digest{}
	for _, d := range digests {
		byFile[object{key: r.key(d)}.file()] = d
	}
	var mu sync.Mutex
	hooked := hookedTarget{target, func(name string) {
		mu.Lock()
		defer mu.Unlock()
		r.collect(byFile[name])
		if _, err := r.ClaimPending(context.Background(), 1000, 0); !errors.Is(err, gc.ErrSweepsPaused) {
			t.Errorf("a sweeper claimed objects while a store was filled: %v", err)
		}
	}}
	store := newStore(t)
	r.restoreStore(hooked, store, 0, 4, 0)
	sweeper, err := gc.NewSweeper(gc.SweeperOptions{Collector: r.Collector, Store: store, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sweeper.Run(ctx) }()
	catalogtest.Eventually(t, "the objects are swept", func() bool { return r.Rows(t, "gc_doomed_objects") == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for o, err := range store.List(t.Context(), "") {
		t.Errorf("the object %s is left, %v", o.Key, err)
	}
}

// A store isn't filled while a backup runs, which pauses sweepers too, and a target that fails ends it.
func TestRestoreStoreFails(t *testing.T) {
	t.Parallel()
	r, _, target := backedUp(t)
	o := StoreOptions{DB: r.DB, Target: target, Store: newStore(t), Log: quiet}
	conn, err := r.DB.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := gc.PauseSweeps(t.Context(), conn.Conn()); err != nil {
		t.Fatal(err)
	}
	if _, err := RestoreStore(t.Context(), o); !errors.Is(err, gc.ErrPausing) {
		t.Errorf("beside a backup: %v", err)
	}
	gc.ResumeSweeps(t.Context(), conn.Conn())
	away := errors.New("the volume is away")
	o.Target = failingTarget{target, away}
	if got, err := RestoreStore(t.Context(), o); !errors.Is(err, away) || got.Missing != 0 {
		t.Errorf("a target that fails: %+v, %v", got, err)
	}
	r.restoreStore(target, o.Store, 0, 4, 0)
}

// failingTarget can't open its files.
type failingTarget struct {
	Target
	err error
}

func (f failingTarget) Open(context.Context, string) (io.ReadCloser, error) { return nil, f.err }
