package gc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

// strays inserts n blobs that no manifest uses and that are due for review, stores their
// objects, and returns the objects' storage keys.
func (b *storeBundle) strays(n int) (keys []string) {
	b.t.Helper()
	for range n {
		keys = append(keys, b.object(10))
	}
	b.exec(`INSERT INTO blobs (digest, size, storage_key, created_at)
		SELECT '\x01'::bytea || sha256(key::bytea), 10, key, now() - interval '1 day' FROM unnest($1::text[]) AS key`, keys)
	b.exec("UPDATE gc_blob_review_queue SET review_after = now()")
	return keys
}

// untagged inserts n manifests that have no tags and no blobs and are due for review.
func (b *storeBundle) untagged(n int) {
	b.t.Helper()
	b.exec("INSERT INTO top_level_namespaces (name) VALUES ('r') ON CONFLICT DO NOTHING")
	b.exec("INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'r' FROM top_level_namespaces ON CONFLICT DO NOTHING")
	b.exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256((i || clock_timestamp()::text)::bytea), 'm', '', 0
		FROM repositories r, generate_series(1, $1::int) i`, n)
	b.exec("UPDATE gc_manifest_review_queue SET review_after = now()")
}

func (b *storeBundle) count(sql string, args ...any) (n int) {
	b.t.Helper()
	if err := b.db.Pool.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// refuse installs a trigger by which PostgreSQL refuses to delete the blob with the storage
// key `key`, until `stop` is called.
func (b *storeBundle) refuse(key string) (stop func()) {
	b.t.Helper()
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF OLD.storage_key = TG_ARGV[0] THEN RAISE 'refused for a test'; END IF; RETURN OLD; END $$`)
	b.exec("CREATE TRIGGER refuse BEFORE DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION refuse('" + key + "')")
	return func() { b.exec("DROP TRIGGER refuse ON blobs") }
}

func (b *storeBundle) reviewer(kind gc.ReviewKind, change func(*gc.ReviewerOptions)) *gc.Reviewer {
	b.t.Helper()
	o := gc.ReviewerOptions{Collector: b.gc, Kind: kind, Log: slog.New(slog.DiscardHandler), Metrics: b.metrics}
	if change != nil {
		change(&o)
	}
	r, err := gc.NewReviewer(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// metric returns the value of the counter with the name `name` and the labels `labels`.
func (b *storeBundle) metric(name string, labels map[string]string) float64 {
	b.t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matches := 0
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == l.GetValue() {
					matches++
				}
			}
			if matches == len(labels) {
				return m.GetCounter().GetValue()
			}
		}
	}
	b.t.Fatalf("no metric %s %v", name, labels)
	return 0
}

func TestReviewersAndSweeperWorkTogether(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	kept := b.object(10)
	b.strays(7)
	b.untagged(5)
	sweeper := b.sweeper(nil)
	blobs := b.reviewer(gc.ReviewOfBlobs, func(o *gc.ReviewerOptions) { o.Batch, o.Deleted = 3, sweeper.Wake })
	manifests := b.reviewer(gc.ReviewOfManifests, func(o *gc.ReviewerOptions) { o.Deleted = blobs.Wake })
	b.start(sweeper.Run)
	b.start(blobs.Run)
	b.start(manifests.Run)
	b.eventually("all that dangles is gone", func() bool {
		return b.count("SELECT (SELECT count(*) FROM blobs) + (SELECT count(*) FROM manifests)") == 0 && b.doomed() == 0
	})
	if got := b.stored(); !slices.Equal(got, []string{kept}) {
		t.Errorf("stored: %v, want only %s", got, kept)
	}
	b.eventually("the reviews are counted", func() bool {
		return b.metric("purser_gc_reviews_total", map[string]string{"kind": "blob", "result": "deleted"}) == 7 &&
			b.metric("purser_gc_reviews_total", map[string]string{"kind": "manifest", "result": "deleted"}) == 5
	})
	b.eventually("what was done is recorded", func() bool {
		return b.count("SELECT COALESCE(sum(blobs_deleted * 10000 + manifests_deleted * 1000 + bytes_swept), 0) FROM gc_activity") == 75070
	})
}

// The review of one blob among 40 fails again and again. The reviewer must postpone this
// blob's row in gc_blob_review_queue, finally mark the row as failed, and review all other
// blobs.
func TestRowThatFailsIsFoundPostponedAndFailed(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	keys := b.strays(40)
	stop := b.refuse(keys[20])
	r := b.reviewer(gc.ReviewOfBlobs, func(o *gc.ReviewerOptions) { o.MaxFailures = 2 })
	b.start(r.Run)
	b.eventually("the others are deleted", func() bool { return b.count("SELECT count(*) FROM blobs") == 1 })
	b.eventually("the row is put off", func() bool {
		return b.count(`SELECT count(*) FROM gc_blob_review_queue WHERE review_count = 1 AND last_error LIKE '%refused for a test%'
			AND review_after > now() + interval '25 s' AND set_aside_at IS NULL`) == 1
	})
	b.exec("UPDATE gc_blob_review_queue SET review_after = now()")
	r.Wake()
	b.eventually("the review counts as failed", func() bool {
		return b.count("SELECT count(*) FROM gc_blob_review_queue WHERE set_aside_at IS NOT NULL") == 1
	})
	kind := map[string]string{"kind": "blob"}
	b.eventually("failures are counted", func() bool {
		return b.metric("purser_gc_review_errors_total", kind) == 2 && b.metric("purser_gc_set_aside_total", kind) == 1
	})
	stop()
	b.exec("UPDATE gc_blob_review_queue SET set_aside_at = NULL, review_after = now()")
	r.Wake()
	b.eventually("brought back, it is deleted", func() bool { return b.count("SELECT count(*) FROM blobs") == 0 })
}

// A trigger makes the deletion of each blob take a minute, and reviews have a timeout of 1
// s. The reviewer must cancel the reviews and count them as failed.
func TestReviewThatTakesTooLongIsEnded(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.strays(2) // the pauses after failures grow
	b.exec(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN OLD; END $$`)
	b.exec("CREATE TRIGGER dawdle BEFORE DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION dawdle()")
	b.start(b.reviewer(gc.ReviewOfBlobs, func(o *gc.ReviewerOptions) { o.Timeout = time.Second / 2 }).Run)
	b.eventually("all rows are put off", func() bool {
		return b.count("SELECT count(*) FROM gc_blob_review_queue WHERE review_count = 1 AND review_after > now()") == 2
	})
	if n := b.count("SELECT count(*) FROM blobs"); n != 2 {
		t.Errorf("%d blobs are left, want 2", n)
	}
}

// TestReviewerLosesPatience: a reviewer that others keep from a lock tries again, but not for ever.
// A batch that has begun makes it patient again.
func TestReviewerLosesPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, err := gc.NewReviewer(gc.ReviewerOptions{Collector: gc.New(gc.Options{}), Kind: gc.ReviewOfManifests})
		if err != nil {
			t.Fatal(err)
		}
		locked := fmt.Errorf("looking for manifests: %w", &pgconn.PgError{Code: db.CodeLockNotAvailable})
		for range 2 {
			began := time.Now()
			for r.Yields(t.Context(), locked) {
			}
			if d := time.Since(began); d < gc.Patience || d > gc.Patience+time.Second {
				t.Errorf("the reviewer has tried for %v, want %v", d, gc.Patience)
			}
			if r.Yields(t.Context(), locked) {
				t.Error("it goes on")
			}
			if r.Yields(t.Context(), nil) || r.Yields(t.Context(), errors.New("no such table")) {
				t.Error("it repeats a batch that has begun, or one that failed for another reason")
			}
		}
	})
}

func TestCollectUntilNothingIsDue(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.strays(6)
	b.untagged(3)
	var last gc.Progress
	got, err := gc.Collect(t.Context(), gc.CollectOptions{
		Collector: b.gc, Store: b.store, Batch: 2, Log: slog.New(slog.DiscardHandler),
		Progress: func(p gc.Progress) { last = p },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := gc.Progress{ManifestsReviewed: 3, ManifestsDeleted: 3, BlobsReviewed: 6, BlobsDeleted: 6, Objects: 6, Bytes: 60}
	if got != want || last != want {
		t.Errorf("progress %+v, at the end %+v; want %+v", last, got, want)
	}
	if n := len(b.stored()); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

func TestCollectDryRunDeletesNothing(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.strays(6)
	b.untagged(3)
	found := map[gc.ReviewKind]int{}
	got, err := gc.Collect(t.Context(), gc.CollectOptions{
		Collector: b.gc, DryRun: true, Batch: 2, Log: slog.New(slog.DiscardHandler),
		WouldDelete: func(r gc.DryRunDeletion) { found[r.Kind]++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	if found[gc.ReviewOfBlobs] != 6 || found[gc.ReviewOfManifests] != 3 || got.BlobsDeleted != 6 || got.ManifestsDeleted != 3 || got.Bytes != 60 {
		t.Errorf("found %v, progress %+v", found, got)
	}
	if n := b.count("SELECT (SELECT count(*) FROM blobs) * 10 + (SELECT count(*) FROM manifests)"); n != 63 || len(b.stored()) != 6 {
		t.Errorf("%d blobs and manifests (as BM), %d objects are left", n, len(b.stored()))
	}
}

func TestCollectTellsOfObjectsThatFail(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	keys := b.strays(3)
	store := faulty{Store: b.store, delete: func(ctx context.Context, list []string) error {
		var errs []error
		for _, k := range list {
			if k == keys[1] {
				errs = append(errs, &blob.DeleteError{Key: k, Err: errors.New("no")})
			} else {
				errs = append(errs, b.store.Delete(ctx, []string{k}))
			}
		}
		return errors.Join(errs...)
	}}
	got, err := gc.Collect(t.Context(), gc.CollectOptions{Collector: b.gc, Store: store, Log: slog.New(slog.DiscardHandler)})
	failed, ok := errors.AsType[*gc.StoreError](err)
	if !ok || failed.Failed != 1 || got.Objects != 2 || got.Failed != 1 {
		t.Errorf("progress %+v, %v; want one failure", got, err)
	}
}

// If the store fails, Collect must still do all work in the database. If the store has
// deleted no object of a batch, Collect must not call the store again.
func TestCollectGoesOnWithoutAStore(t *testing.T) {
	t.Parallel()
	away := errors.New("connection refused")
	for _, opened := range []bool{false, true} {
		b := setupStore(t)
		b.strays(6)
		b.untagged(3)
		calls := 0
		o := gc.CollectOptions{Collector: b.gc, Batch: 2, StoreError: away, Log: slog.New(slog.DiscardHandler)}
		if opened {
			o.StoreError, o.Store = nil, faulty{Store: b.store, delete: func(context.Context, []string) error { calls++; return away }}
		}
		got, err := gc.Collect(t.Context(), o)
		if !errors.Is(err, away) {
			t.Errorf("opened: %t: error %v", opened, err)
		}
		if got.ManifestsDeleted != 3 || got.BlobsDeleted != 6 || got.Objects != 0 || len(b.stored()) != 6 || b.doomed() != 6 {
			t.Errorf("opened: %t: progress %+v; %d doomed, %d stored", opened, got, b.doomed(), len(b.stored()))
		}
		if opened && calls != 1 {
			t.Errorf("a store that deletes nothing was asked %d times", calls)
		}
	}
}

func TestReviewerOptionsAreChecked(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	for _, o := range []gc.ReviewerOptions{{}, {Collector: b.gc}, {Collector: b.gc, Kind: "tag"}} {
		if _, err := gc.NewReviewer(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if _, err := gc.Collect(t.Context(), gc.CollectOptions{Collector: b.gc}); err == nil {
		t.Error("collecting without a store is accepted")
	}
	if n, err := testutil.GatherAndCount(b.reg, "purser_gc_reviews_total"); n != 8 || err != nil {
		t.Errorf("%d series of reviews, %v; want all 8 from the start", n, err)
	}
}
