package gc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// restartable is a PostgreSQL server that only this test uses. The test can stop it
// abruptly and start it again.
type restartable struct {
	t      *testing.T
	dir    string
	server *builtinpg.Server
}

func (s *restartable) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := builtinpg.Start(ctx, builtinpg.Options{
		DataDir: s.dir, Log: slog.New(slog.DiscardHandler),
		// Without fsync, data that PostgreSQL has written survives a stop of the server,
		// because the machine itself doesn't crash. But each commit must wait until its
		// data are written, so synchronous_commit stays on.
		Settings: map[string]string{"fsync": "off", "shared_buffers": "32MB", "max_connections": "60"},
	})
	if err != nil {
		s.t.Fatalf("starting PostgreSQL: %v", err)
	}
	s.server = server
}

// stop ends the server and all connections at once, without a checkpoint.
func (s *restartable) stop() {
	s.t.Helper()
	at, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.server.Stop(at); err != nil && !errors.Is(err, context.Canceled) {
		s.t.Fatalf("stopping PostgreSQL: %v", err)
	}
}

// onRestartable returns a storeBundle on a PostgreSQL server that the test can restart.
func onRestartable(t *testing.T) (*storeBundle, *restartable) {
	t.Helper()
	base, err := os.MkdirTemp("", "purser-restart-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) }) //nolint:errcheck // a leftover temporary directory harms nobody
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &restartable{t: t, dir: filepath.Join(base, "pg")}
	s.start()
	t.Cleanup(s.stop)
	dsn := s.server.DSN("")
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	open := func(o db.Options) *db.DB {
		o.DSN, o.Log = dsn, slog.New(slog.DiscardHandler)
		d, err := db.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		return d
	}
	dir := pgtest.TempDir(t)
	store, err := blob.OpenDir(blob.DirOptions{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	metrics := gc.NewMetrics(reg)
	requests := open(db.Options{})
	c := catalog.New(catalog.Options{
		DB: requests, Replica: uuid.New(), Log: slog.New(slog.DiscardHandler),
	})
	collector := gc.New(gc.Options{
		Catalog: c, DB: requests, Log: slog.New(slog.DiscardHandler),
		Reviews: open(db.Options{LockTimeout: 200 * time.Millisecond, StatementTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second}),
	})
	return &storeBundle{t, requests, c, collector, store, dir, reg, metrics}, s
}

// pusher pushes one image after the other under the same tag. Each push leaves the
// previous image without a tag.
type pusher struct {
	b    *storeBundle
	path string
	// The map `may` has the digests to which the tag may point after a restart: the digest
	// of the last put that succeeded, and the digests of later puts that returned an error
	// but may have been committed nevertheless.
	may map[oci.Digest]bool
	ok  int
}

// upload stores a blob and commits it.
func (p *pusher) upload(ctx context.Context, content string) (d oci.Digest, err error) {
	d = oci.Compute(oci.SHA256, []byte(content))
	list, err := p.b.catalog.StartUploads(ctx, catalog.StartOptions{N: 1})
	if err != nil {
		return d, err
	}
	u := list[0]
	next := int64(1)
	w, err := p.b.store.Resume(ctx, u.StorageKey, nil, 0,
		func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { next += int64(n); return next - int64(n), nil })
	if err != nil {
		return d, err
	}
	defer w.Close() //nolint:errcheck // Finish has said whether all is well
	if _, err := w.Write([]byte(content)); err != nil {
		return d, err
	}
	key, err := w.Finish(ctx)
	if err != nil {
		return d, err
	}
	u.Repository, u.Size = p.path, int64(len(content))
	return d, p.b.catalog.CommitUpload(ctx, u, d, key, false)
}

// push pushes an image with a configuration and a layer of its own, and a second layer
// that all images share.
func (p *pusher) push(ctx context.Context, name string) error {
	var blobs []map[string]any
	for i, content := range []string{"config " + name, "layer " + name, "shared"} {
		d, err := p.upload(ctx, content)
		if err != nil {
			return err
		}
		mediaType := "application/vnd.oci.image.layer.v1.tar"
		if i == 0 {
			mediaType = "application/vnd.oci.image.config.v1+json"
		}
		blobs = append(blobs, map[string]any{"mediaType": mediaType, "digest": d.String(), "size": len(content)})
	}
	payload, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest, "config": blobs[0], "layers": blobs[1:]})
	if err != nil {
		return err
	}
	m, err := oci.ParseManifest("", payload)
	if err != nil {
		return err
	}
	d := oci.Compute(oci.SHA256, payload)
	p.may[d] = true
	err = p.b.catalog.PutManifest(ctx, catalog.NewManifest{
		Repository: p.path, Digest: d, Manifest: m, Payload: payload, Tags: []string{"t"}})
	if err == nil {
		p.may = map[oci.Digest]bool{d: true}
		p.ok++
	}
	return err
}

// loop pushes images until ctx ends. It ignores two kinds of failures: the database is
// unavailable, or a review deletes an image's blobs before the image's manifest is put,
// which may happen because this test has no review delays.
func (p *pusher) loop(ctx context.Context) error {
	for i := 0; ctx.Err() == nil; i++ {
		err := p.push(context.WithoutCancel(ctx), fmt.Sprint(p.path, " ", i))
		switch {
		case err == nil, oci.CodeOf(err) == oci.ManifestBlobUnknown:
		case db.Unavailable(err):
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(20 * time.Millisecond)):
			}
		default:
			return fmt.Errorf("%s, push %d: %w", p.path, i, err)
		}
	}
	return nil
}

// whole checks that the tag points to an image in `may`, and that the image's configuration
// and layers can be read with the right contents.
func (p *pusher) whole() {
	t, ctx := p.b.t, p.b.t.Context()
	t.Helper()
	found, err := p.b.catalog.ManifestByTag(ctx, p.path, "t")
	if err != nil {
		t.Errorf("%s: %v", p.path, err)
		return
	}
	if !p.may[found.Digest] {
		t.Errorf("%s: the tag points to %s, which isn't what was put last", p.path, found.Digest)
	}
	m, err := oci.ParseManifest("", found.Payload)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range append(m.Layers, *m.Config) {
		info, err := p.b.catalog.BlobNow(ctx, p.path, want.Digest)
		if err != nil {
			t.Errorf("%s: %v", p.path, err)
			continue
		}
		r, err := p.b.store.Open(ctx, info.StorageKey, 0, -1)
		if err != nil {
			t.Errorf("%s: object of %s: %v", p.path, want.Digest, err)
			continue
		}
		content, err := io.ReadAll(r)
		r.Close() //nolint:errcheck // it was only read
		if err != nil || oci.Compute(oci.SHA256, content) != want.Digest {
			t.Errorf("%s: the content of %s is another: %q, %v", p.path, want.Digest, content, err)
		}
	}
}

// The test stops PostgreSQL abruptly and starts it again, once or at night several times, while
// clients push and reviews run. The reviewers must continue by themselves. Nothing that a tag references
// may be lost, and at the end no unreferenced content may be left.
func TestReviewsGoOnWhenPostgreSQLIsRestarted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it restarts PostgreSQL")
	}
	b, pg := onRestartable(t)
	if err := b.gc.SetReviewDelays(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	sweeper := b.sweeper(nil)
	soon := func(o *gc.ReviewerOptions) { o.Idle, o.Batch, o.Deleted = 50*time.Millisecond, 20, sweeper.Wake }
	for range 2 {
		b.start(b.reviewer(gc.ReviewOfManifests, soon).Run)
		b.start(b.reviewer(gc.ReviewOfBlobs, soon).Run)
	}
	b.start(sweeper.Run)
	deleted := func() float64 {
		return b.metric("purser_gc_reviews_total", map[string]string{"kind": "manifest", "result": "deleted"})
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var pushing sync.WaitGroup
	pushers := make([]*pusher, 3)
	failures := make(chan error, len(pushers))
	for i := range pushers {
		pushers[i] = &pusher{b: b, path: fmt.Sprintf("n/r%d", i), may: map[oci.Digest]bool{}}
		pushing.Go(func() { failures <- pushers[i].loop(ctx) })
	}
	// The counters of deletions are in this process. So they show, without a query of the
	// database, whether the reviewers continue by themselves after each restart.
	for range testscale.Pick(1, 3) {
		before := deleted()
		b.eventually("manifests are deleted", func() bool { return deleted() >= before+10 })
		pg.stop()
		pg.start()
	}
	before := deleted()
	b.eventually("manifests are deleted after the last restart", func() bool { return deleted() >= before+10 })
	stop()
	pushing.Wait()
	for range pushers {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}

	// Make all reviews due: a review that failed is postponed for longer than this test
	// waits.
	b.exec("UPDATE gc_manifest_review_queue SET review_after = now()")
	b.exec("UPDATE gc_blob_review_queue SET review_after = now()")
	b.eventually("the queues are empty and no deletion is pending", func() bool {
		return b.count(`SELECT (SELECT count(*) FROM gc_manifest_review_queue) + (SELECT count(*) FROM gc_blob_review_queue)
			+ (SELECT count(*) FROM gc_doomed_objects WHERE again_at IS NULL)`) == 0
	})
	pushed := 0
	for _, p := range pushers {
		p.whole()
		pushed += p.ok
	}
	t.Logf("%d pushes and %v deletions", pushed, deleted())
	if n := b.count("SELECT count(*) FROM manifests"); n != len(pushers) {
		t.Errorf("%d manifests are left, want one for each of %d tags", n, len(pushers))
	}
	if n := b.count("SELECT count(*) FROM blobs"); n != 2*len(pushers)+1 {
		t.Errorf("%d blobs are left, want %d", n, 2*len(pushers)+1)
	}
	// Each remaining object must belong to a blob, to an unfinished upload, or to a pending
	// deletion that the sweeper will repeat when the longest request is over.
	if n := b.count(`SELECT count(*) FROM unnest($1::text[]) AS key
		WHERE NOT EXISTS (SELECT FROM blobs WHERE storage_key = key)
		AND NOT EXISTS (SELECT FROM uploads WHERE key LIKE storage_key || '-%')
		AND NOT EXISTS (SELECT FROM gc_doomed_objects WHERE storage_key = key OR of_upload AND key LIKE storage_key || '-%')`, b.stored()); n != 0 {
		t.Errorf("%d stored objects have no owner", n)
	}
}
