package gc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/worker"
)

// collectKeeping runs gc.Collect with `keep` as the setting gc.keep_doomed.
func (b *storeBundle) collectKeeping(keep time.Duration) gc.Progress {
	b.t.Helper()
	c := gc.New(gc.Options{Catalog: b.catalog, DB: b.db, KeepDoomed: keep})
	p, err := gc.Collect(b.t.Context(), gc.CollectOptions{Collector: c, Store: b.store, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// The sweeper must delete objects of deleted blobs only after gc.keep_doomed, and objects
// of uploads at once. If a sweeper has claimed a pending deletion before, the time of its
// next attempt must not be delayed by gc.keep_doomed once more. If gc.keep_doomed is
// shortened, the new value must also apply to objects whose deletion is already pending.
func TestKeepDoomed(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	keys := b.doom(3)
	b.exec("UPDATE gc_doomed_objects SET delete_after = now() - interval '2 h' WHERE storage_key = $1", keys[0])
	b.exec("UPDATE gc_doomed_objects SET sweeping = true WHERE storage_key = $1", keys[1])
	base := blob.NewBase()
	b.write(base, 10)
	b.exec("INSERT INTO gc_doomed_objects (storage_key, of_upload, size) VALUES ($1, true, 10)", base)
	if p := b.collectKeeping(3 * time.Hour); p.Objects != 2 || p.Kept != 2 || p.KeptBytes != 20 {
		t.Errorf("with 3 h: %+v, want that 2 of 4 are swept", p)
	}
	if next, err := gc.New(gc.Options{Catalog: b.catalog, DB: b.db, KeepDoomed: 3 * time.Hour}).
		NextPending(t.Context(), 100*time.Hour); err != nil || next < 50*time.Minute || next > time.Hour {
		t.Errorf("the next is due in %v (%v), want an hour", next, err)
	}
	if p := b.collectKeeping(time.Hour); p.Objects != 1 || p.Kept != 1 || !slices.Equal(b.stored(), keys[2:]) {
		t.Errorf("with 1 h: %+v, stored %v", p, b.stored())
	}
	if p := b.collectKeeping(0); p.Objects != 1 || p.Kept != 0 || len(b.stored()) != 0 {
		t.Errorf("with nothing kept: %+v, stored %v", p, b.stored())
	}
}

// away is a store whose identity is that of another database.
type away struct{ blob.Store }

func (away) Check(context.Context) error { return fmt.Errorf("the volume: %w", blob.ErrWrongStore) }

// As long as the store carries another database's identity, the sweeper must claim no
// pending deletion and the reaper must delete no upload, even though the store would accept
// changes.
func TestNothingIsDoneWithAWrongStore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := setupStore(t)
	keys := b.doom(2)
	u, stray := b.upload(), b.object(5)
	b.exec("UPDATE uploads SET updated_at = now() - interval '9 days', repository = 'a' WHERE id = $1", u.ID)
	long := time.Now().Add(-9 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "objects", stray[:2], stray), long, long); err != nil {
		t.Fatal(err)
	}
	store := away{b.store}
	quiet := slog.New(slog.DiscardHandler)
	_, collected := gc.Collect(ctx, gc.CollectOptions{Collector: b.gc, Store: store, UploadAge: time.Hour, Log: quiet})
	if !errors.Is(collected, blob.ErrWrongStore) {
		t.Errorf("collecting: %v", collected)
	}
	stop := b.start(b.sweeper(func(o *gc.SweeperOptions) { o.Store = store }).Run)
	reaper, err := gc.NewReaper(gc.ReaperOptions{Catalog: b.catalog, Store: store, Age: time.Hour, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	stopReaper := b.start(reaper.Run)
	stop()
	stopReaper()
	var claimed, uploads int
	if err := b.db.Pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM gc_doomed_objects WHERE sweeping), (SELECT count(*) FROM uploads)`).
		Scan(&claimed, &uploads); err != nil || claimed != 0 || uploads != 1 || b.doomed() != len(keys) || len(b.stored()) != 4 {
		t.Errorf("%d claimed, %d uploads, %d doomed, %d stored (%v)", claimed, uploads, b.doomed(), len(b.stored()), err)
	}
}

// TestWrongClock: while clocks disagree, neither a worker nor a collection by hand deletes anything,
// and the collection says why.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	keys := b.doom(2)
	b.exec("INSERT INTO blobs (digest, size, storage_key) VALUES ('\\x01' || sha256('old'), 3, $1)", b.object(3))
	b.exec("UPDATE gc_blob_review_queue SET review_after = now() - interval '1 day'")
	asked := make(chan struct{}, 100)
	mayDelete := func(context.Context) error {
		asked <- struct{}{}
		return fmt.Errorf("the clock is wrong: %w", worker.ErrRest)
	}
	c := gc.New(gc.Options{Catalog: b.catalog, DB: b.db, MayDelete: mayDelete, Log: slog.New(slog.DiscardHandler)})
	o := gc.CollectOptions{Collector: c, Store: b.store, UploadAge: time.Hour, Log: slog.New(slog.DiscardHandler)}
	if _, err := gc.Collect(t.Context(), o); !errors.Is(err, worker.ErrRest) || !strings.Contains(err.Error(), "the clock is wrong") {
		t.Errorf("the collection ended with %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	reviewer, err := gc.NewReviewer(gc.ReviewerOptions{Collector: c, Kind: gc.ReviewOfBlobs, Log: o.Log})
	sweeper, err2 := gc.NewSweeper(gc.SweeperOptions{Collector: c, Store: b.store, Log: o.Log})
	reaper, err3 := gc.NewReaper(gc.ReaperOptions{Catalog: b.catalog, Store: b.store, MayDelete: mayDelete, Log: o.Log})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{reviewer.Run, sweeper.Run, reaper.Run} {
		for len(asked) > 0 {
			<-asked
		}
		wg.Go(func() { run(ctx) }) //nolint:errcheck // it returns nil
		<-asked
	}
	stop()
	wg.Wait()
	if n := len(b.stored()); n != 3 || b.doomed() != 2 {
		t.Errorf("%d objects are stored, %d rows are left; want 3 and 2 (%v)", n, b.doomed(), keys)
	}
	o.Collector = b.gc
	if p, err := gc.Collect(t.Context(), o); err != nil || p.BlobsDeleted != 1 || p.Objects != 3 || len(b.stored()) != 0 {
		t.Errorf("with a right clock: %+v, %v", p, err)
	}
}

// TestClockSetMeanwhile: a worker was told that it may delete, and then the database's clock is set.
// By that clock a hold has ended, and delays are over: nothing is deleted, and no review counts as
// failed.
func TestClockSetMeanwhile(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.doom(2)
	b.exec("INSERT INTO blobs (digest, size, storage_key) VALUES ('\\x01' || sha256('old'), 3, $1)", b.object(3))
	b.exec("UPDATE gc_blob_review_queue SET review_after = now() - interval '1 day'")
	b.untagged(2)
	b.exec("INSERT INTO holdreporters (name, lease, digests, expires_at) VALUES ('prod', '1 day', 1, now() - interval '59 days')")
	b.exec("INSERT INTO holds (digest, reporter_id) SELECT m.digest, r.id FROM manifests m, holdreporters r LIMIT 1")
	why := fmt.Errorf("set meanwhile: %w", worker.ErrRest)
	c := gc.New(gc.Options{Catalog: b.catalog, DB: b.db, Log: slog.New(slog.DiscardHandler), CheckTime: func(_ context.Context, now time.Time) error {
		if d := time.Since(now); d.Abs() > time.Hour {
			t.Errorf("the clock was asked for %v", now)
		}
		return why
	}})
	left := func() string {
		return fmt.Sprint(b.count("SELECT count(*) FROM manifests"), b.count("SELECT count(*) FROM blobs"), b.doomed(),
			b.count("SELECT count(*) FROM gc_doomed_objects WHERE sweeping"))
	}
	before := left()
	_, blobs := c.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfBlobs, Limit: 10})
	_, manifests := c.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfManifests, Limit: 10})
	_, claimed := c.ClaimPending(t.Context(), 10, time.Minute)
	for what, err := range map[string]error{"blobs": blobs, "manifests": manifests, "objects": claimed} {
		if failed := new(gc.ReviewError); !errors.Is(err, worker.ErrRest) || errors.As(err, &failed) {
			t.Errorf("%s: %v, want a rest", what, err)
		}
	}
	if after := left(); after != before {
		t.Errorf("manifests, blobs, doomed and claimed objects: %s, before %s", after, before)
	}
	why = nil
	if out, err := c.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfManifests, Limit: 10}); err != nil || out.Deleted != 2 {
		t.Errorf("with a right clock: %+v, %v", out, err)
	}
}
