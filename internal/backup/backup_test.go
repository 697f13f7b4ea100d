package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

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

// A backup is stopped while it copies blobs. It leaves nothing but these, and the next one must copy
// only the rest. Later backups copy only new objects.
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
		t.Fatalf("the stopped backup: %v", err)
	}
	if _, err := Find(t.Context(), target, ""); err == nil || !strings.Contains(err.Error(), "no complete backup") {
		t.Errorf("after a stopped backup: %v", err)
	}
	copied := n.Load()
	b := r.backup(target)
	if b.Blobs.Copied < 10-copied-1 || b.Blobs.Copied > 10-copied {
		t.Errorf("after %d objects were copied, %d more were", copied, b.Blobs.Copied)
	}
	all, err := List(t.Context(), target)
	if err != nil || len(all) != 1 || all[0].Manifest == nil {
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

// The statistics are in another database. The snapshot of the audit log must be later than that
// of the statistics, so that the log has all pulls that the statistics have counted.
func TestStatisticsApart(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	stats := dbtest.EmptyDSN(t)
	if _, err := db.MigrateStats(t.Context(), stats, db.MigrateOptions{}); err != nil {
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
