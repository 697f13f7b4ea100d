package gc_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/gc"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	if _, err := gc.NewSweeper(gc.SweeperOptions{}); err == nil {
		t.Error("a sweeper without a catalog is accepted")
	}
	if _, err := gc.NewReaper(gc.ReaperOptions{}); err == nil {
		t.Error("a reaper without a catalog is accepted")
	}
	reg := prometheus.NewRegistry()
	gc.NewMetrics(reg)
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 17 {
		t.Errorf("%d metrics, %v; want 17", n, err)
	}
}

func TestSweepDeletesPendingDeletionsAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	kept := b.object(5)
	b.doom(25)
	early := b.doom(1)[0]
	b.exec("UPDATE gc_doomed_objects SET delete_after = now() + interval '1 hour' WHERE storage_key = $1", early)
	b.exec("INSERT INTO gc_doomed_objects (storage_key, size) VALUES ($1, 7)", blob.NewBase()+"-0") // missing already
	stop := b.start(b.sweeper(func(o *gc.SweeperOptions) { o.Batch = 10 }).Run)
	b.eventually("only the early one is left", func() bool { return b.doomed() == 1 })
	stop()
	want := []string{kept, early}
	slices.Sort(want)
	if got := b.stored(); !slices.Equal(got, want) {
		t.Errorf("stored: %v, want %v", got, want)
	}
	b.counters(26, 257, 0)
}

// TestUploadsLeaveRoomForBlobs: however many deletions of uploads are due, each batch has those of
// blobs too, and the other way round; what one kind doesn't need is for the other.
func TestUploadsLeaveRoomForBlobs(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	claim := func(n int) (uploads, blobs int) {
		t.Helper()
		list, err := b.gc.ClaimPending(t.Context(), n, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			if d.OfUpload {
				uploads++
			} else {
				blobs++
			}
		}
		return uploads, blobs
	}
	b.exec(`INSERT INTO gc_doomed_objects (storage_key, of_upload, delete_after)
		SELECT 'upload' || i, true, now() - interval '1 hour' FROM generate_series(1, 100) i`)
	b.exec("INSERT INTO gc_doomed_objects (storage_key) SELECT 'blob' || i FROM generate_series(1, 15) i")
	for _, want := range [][2]int{{5, 5}, {5, 5}, {5, 5}, {10, 0}} {
		if uploads, blobs := claim(10); uploads != want[0] || blobs != want[1] {
			t.Errorf("%d uploads and %d blobs are claimed, want %v", uploads, blobs, want)
		}
	}
	b.exec("INSERT INTO gc_doomed_objects (storage_key, delete_after) SELECT 'more' || i, now() - interval '2 hours' FROM generate_series(1, 150) i")
	if uploads, blobs := claim(100); uploads != 50 || blobs != 50 {
		t.Errorf("%d uploads and %d blobs are claimed, want half of each", uploads, blobs)
	}
	uploads, blobs := 0, 0
	for range 50 { // alone, each is claimed sooner or later
		u, o := claim(1)
		uploads, blobs = uploads+u, blobs+o
	}
	if uploads+blobs != 50 || uploads == 0 || blobs == 0 {
		t.Errorf("one at a time, %d uploads and %d blobs are claimed", uploads, blobs)
	}
	if uploads, blobs := claim(100); uploads+blobs != 75 {
		t.Errorf("the rest are %d uploads and %d blobs, want 75 together", uploads, blobs)
	}
}

func TestUploadIsSweptAgainAfterTheLongestRequest(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	base := blob.NewBase()
	_, first := b.write(base, 10)
	other := b.object(10)
	b.exec("INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at) VALUES ($1, true, 10, now() + interval '2 hours')", base)
	s := b.sweeper(nil)
	stop := b.start(s.Run)
	again := func() (due bool) {
		if err := b.db.Pool.QueryRow(t.Context(),
			"SELECT delete_after = again_at FROM gc_doomed_objects WHERE storage_key = $1", base).Scan(&due); err != nil {
			t.Fatal(err)
		}
		return due
	}
	b.eventually("the first sweep is over", again)
	if got := b.stored(); !slices.Equal(got, []string{other}) {
		t.Fatalf("stored after the first sweep: %v, want only %s, without %s", got, other, first)
	}
	// A request whose upload another request has taken over writes one more object of the
	// upload, after the first sweep.
	if err := os.WriteFile(filepath.Join(b.dir, "objects", base[:2], base+"-7"), []byte("late"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.exec("UPDATE gc_doomed_objects SET again_at = now(), delete_after = now()")
	s.Wake()
	b.eventually("the second sweep is over", func() bool { return b.doomed() == 0 })
	stop()
	if got := b.stored(); !slices.Equal(got, []string{other}) {
		t.Errorf("stored after the second sweep: %v, want only %s", got, other)
	}
	b.counters(1, 10, 0) // the second sweep isn't counted
}

func TestUploadKeepsTheCommittedObject(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	base := blob.NewBase()
	_, key := b.write(base, 10)
	if err := os.WriteFile(filepath.Join(b.dir, "objects", base[:2], base+"-9"), []byte("leftover"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.exec("INSERT INTO gc_doomed_objects (storage_key, of_upload, keep) VALUES ($1, true, $2)", base, key)
	b.start(b.sweeper(nil).Run)
	b.eventually("the leftovers are swept", func() bool { return b.doomed() == 0 })
	if got := b.stored(); !slices.Equal(got, []string{key}) {
		t.Errorf("stored: %v, want %s", got, key)
	}
}

func TestFailureOfOneObjectIsPutOff(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	keys := b.doom(5)
	bad := keys[2]
	store := faulty{Store: b.store, delete: func(ctx context.Context, keys []string) error {
		good := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == bad })
		err := b.store.Delete(ctx, good)
		if len(good) < len(keys) {
			err = errors.Join(err, &blob.DeleteError{Key: bad, Err: &fs.PathError{Op: "remove", Path: bad, Err: fs.ErrPermission}})
		}
		return err
	}}
	b.start(b.sweeper(func(o *gc.SweeperOptions) { o.Store = store }).Run)
	b.eventually("the others are gone", func() bool { return b.doomed() == 1 })
	var attempts int
	var cause string
	var delay time.Duration
	b.eventually("the failure is put off", func() bool {
		if err := b.db.Pool.QueryRow(t.Context(), `
			SELECT attempts, COALESCE(last_error, ''), delete_after - now() FROM gc_doomed_objects WHERE storage_key = $1`,
			bad).Scan(&attempts, &cause, &delay); err != nil {
			t.Fatal(err)
		}
		return attempts > 0
	})
	if cause != "remove: permission denied" || delay > time.Second {
		t.Errorf("put off by %v with %q", delay, cause)
	}
	if got := b.stored(); !slices.Equal(got, []string{bad}) {
		t.Errorf("stored: %v, want %s", got, bad)
	}
}

func TestStoreThatHangsOnlyCostsTime(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.doom(8)
	base := blob.NewBase()
	b.write(base, 10)
	b.exec("INSERT INTO gc_doomed_objects (storage_key, of_upload) VALUES ($1, true)", base)
	var mu sync.Mutex
	var sizes []int
	hangs := 1
	hang := func(ctx context.Context, n int) bool {
		mu.Lock()
		sizes = append(sizes, n)
		now := len(sizes) <= hangs
		mu.Unlock()
		if now {
			<-ctx.Done()
		}
		return now
	}
	store := faulty{Store: b.store, delete: func(ctx context.Context, keys []string) error {
		if hang(ctx, len(keys)) {
			return ctx.Err() // it names no key, so each key counts as failed
		}
		return b.store.Delete(ctx, keys)
	}}
	store.deleteUpload = func(ctx context.Context, base, keep string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	b.start(b.sweeper(func(o *gc.SweeperOptions) {
		o.Store, o.Batch, o.Timeout = store, 9, 20*time.Millisecond
	}).Run)
	b.eventually("all but the upload that keeps hanging are swept", func() bool {
		return b.doomed() == 1 && len(b.stored()) == 1
	})
	mu.Lock()
	defer mu.Unlock()
	if sizes[0] != 8 || sizes[1] >= sizes[0] {
		t.Errorf("requests of %v objects: they don't get smaller when they time out", sizes)
	}
	var attempts int
	if err := b.db.Pool.QueryRow(t.Context(), "SELECT attempts FROM gc_doomed_objects WHERE storage_key = $1", base).Scan(&attempts); err != nil {
		t.Fatal(err)
	}
	if attempts == 0 {
		t.Error("the upload that hangs isn't put off")
	}
}

func TestCrashBetweenDeleteAndSettle(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.doom(5)
	deleted := make(chan struct{})
	crash := faulty{Store: b.store, delete: func(ctx context.Context, keys []string) error {
		if err := b.store.Delete(ctx, keys); err != nil {
			return err
		}
		close(deleted)
		panic("the process dies here")
	}}
	stop := b.start(b.sweeper(func(o *gc.SweeperOptions) {
		o.Store, o.Timeout, o.ClaimTime = crash, 50*time.Millisecond, 200*time.Millisecond
	}).Run)
	<-deleted
	stop()
	if len(b.stored()) != 0 || b.doomed() != 5 {
		t.Fatalf("%d objects and %d rows after the crash, want 0 and 5", len(b.stored()), b.doomed())
	}
	b.start(b.sweeper(nil).Run)
	b.eventually("the rows are settled once the claim is over", func() bool { return b.doomed() == 0 })
}

func TestStopInTheMiddleCountsNothingAsFailed(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.doom(3)
	begun := make(chan struct{})
	store := faulty{Store: b.store, delete: func(ctx context.Context, keys []string) error {
		// The store deletes one object. Then the test stops the sweeper while the call is
		// still running.
		err := b.store.Delete(ctx, keys[:1])
		close(begun)
		<-ctx.Done()
		for _, k := range keys[1:] {
			err = errors.Join(err, &blob.DeleteError{Key: k, Err: ctx.Err()})
		}
		return err
	}}
	stop := b.start(b.sweeper(func(o *gc.SweeperOptions) { o.Store = store }).Run)
	<-begun
	stop()
	var attempts int
	if err := b.db.Pool.QueryRow(t.Context(), "SELECT sum(attempts) FROM gc_doomed_objects").Scan(&attempts); err != nil {
		t.Fatal(err)
	}
	if b.doomed() != 2 || attempts != 0 {
		t.Errorf("%d rows with %d attempts, want 2 with none", b.doomed(), attempts)
	}
	b.counters(1, 10, 0)
}

func TestSweepersShareTheWork(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	const n = 300
	b.doom(n)
	var mu sync.Mutex
	times := map[string]int{}
	counting := faulty{Store: b.store, delete: func(ctx context.Context, keys []string) error {
		mu.Lock()
		for _, k := range keys {
			times[k]++
		}
		mu.Unlock()
		return b.store.Delete(ctx, keys)
	}}
	for range 3 {
		b.start(b.sweeper(func(o *gc.SweeperOptions) { o.Store, o.Batch = counting, 7 }).Run)
	}
	b.eventually("all are swept", func() bool { return b.doomed() == 0 })
	mu.Lock()
	defer mu.Unlock()
	if len(times) != n || len(b.stored()) != 0 {
		t.Errorf("%d objects deleted, %d left, want %d and 0", len(times), len(b.stored()), n)
	}
	for k, c := range times {
		if c != 1 {
			t.Errorf("%s deleted %d times", k, c)
		}
	}
}

func TestReaperGivesUpAbandonedUploads(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	ctx := t.Context()
	const abandoned = 12
	for range abandoned {
		b.upload()
	}
	b.exec("UPDATE uploads SET updated_at = now() - interval '25 hours'")
	alive := b.upload()
	b.exec("UPDATE uploads SET updated_at = now() - interval '23 hours' WHERE id = $1", alive.ID)
	sweeper := b.sweeper(nil)
	reaper, err := gc.NewReaper(gc.ReaperOptions{
		Catalog: b.catalog, Age: 24 * time.Hour, Batch: 5, Reaped: sweeper.Wake,
		Log: slog.New(slog.DiscardHandler), Metrics: b.metrics,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.start(sweeper.Run)
	b.start(reaper.Run)
	b.eventually("the objects of abandoned uploads are gone", func() bool { return len(b.stored()) == 1 })
	if _, err := b.catalog.Upload(ctx, "team/app", alive.UploadID()); err != nil {
		t.Errorf("the upload that is still used: %v", err)
	}
	if got := b.stored()[0]; got[:32] != alive.StorageKey {
		t.Errorf("stored: %s, want an object of %s", got, alive.StorageKey)
	}
	var n int
	if err := b.db.Pool.QueryRow(ctx, "SELECT count(*) FROM uploads").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d uploads left (%v), want 1", n, err)
	}
}
