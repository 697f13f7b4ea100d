package gc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// concurrentTimeVariable is the environment variable that says how long each test runs its
// concurrent clients and reviewers (see the type storm), by default 3 s. If in that time no
// manifest or no blob was deleted, or no reviewer's connection was killed, the test continues
// for up to half a minute.
const concurrentTimeVariable = "PURSER_TEST_CONCURRENT"

// TestConcurrentReviewsAtOnce runs clients that send all kinds of requests to two replicas,
// and reviewers of blobs and of manifests whose connections are killed or time out at
// random. There are no review delays and only few repositories and blobs, so that requests
// and reviews collide. At the end it reviews until the review queues are empty. No content
// in use may be lost, and no garbage may be left.
func TestConcurrentReviewsAtOnce(t *testing.T) { catalogtest.AtBoth(t, testConcurrentReviewsAtOnce) }

func testConcurrentReviewsAtOnce(t *testing.T, dsn string) {
	s := newStorm(t, dsn)
	s.a.Delays(t)
	s.clients, s.repositories, s.layers, s.configs, s.unlink = 6, 2, 6, 3, true
	s.run(t)
}

// TestConcurrentPromises runs the same clients and reviewers as
// TestConcurrentReviewsAtOnce, with a review delay of 500 ms for uploads and promises of
// existence, and none for other events. There are so many blobs that a client seldom asks
// for the same blob again within 500 ms, so promises expire. Content must exist as long as
// its promise lasts.
func TestConcurrentPromises(t *testing.T) {
	t.Parallel()
	s := newStorm(t, dbtest.DSN(t))
	s.promise = 500 * time.Millisecond
	if err := s.a.SetReviewDelays(t.Context(), 0, map[string]time.Duration{
		"blob_upload": s.promise, "manifest_upload": s.promise}); err != nil {
		t.Fatal(err)
	}
	s.clients, s.repositories, s.layers, s.configs = 16, 2, 60, 20
	s.run(t)
}

// storm is one run of concurrent clients and reviewers on one database.
type storm struct {
	a, b    bundle
	dsn     string
	unlink  bool          // clients unlink blobs
	promise time.Duration // how long a promise of existence lasts; 0: there is none
	// These are the numbers of clients, repositories, layers and configurations.
	clients, repositories, layers, configs int

	mu    sync.Mutex
	keys  []string     // every object that was written
	known []oci.Digest // manifests that were put, for referrers
	did   map[string]int
}

func newStorm(t *testing.T, dsn string) *storm {
	s := &storm{a: replica(t, dsn), b: replica(t, dsn), dsn: dsn, did: map[string]int{}}
	s.a.Listen(t)
	s.b.Listen(t)
	s.linger(t)
	return s
}

func (s *storm) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did[what]++
}

// calm says whether no manifest or no blob was deleted so far, or no connection was killed,
// so that the test doesn't prove anything yet.
func (s *storm) calm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.did["manifest deleted"], s.did["blob deleted"], s.did["killed"]) == 0
}

func (s *storm) run(t *testing.T) {
	length := testscale.Pick(2*time.Second, 30*time.Second)
	if text := os.Getenv(concurrentTimeVariable); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	clients, ctx := errgroup.WithContext(t.Context())
	reviewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var reviewers errgroup.Group
	for i, kind := range []gc.ReviewKind{reviewingManifests, reviewingBlobs, reviewingManifests, reviewingBlobs} {
		rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
		usual, hasty := s.reviewer(t, "200ms", "0"), s.reviewer(t, "200ms", "6ms")
		reviewers.Go(func() error { return s.review(reviewing, kind, usual, hasty, rng) })
	}
	reviewers.Go(func() error {
		return s.queueReferrers(reviewing, s.reviewer(t, "200ms", "0"), rand.New(rand.NewPCG(seed, 200)))
	})
	reviewers.Go(func() error { return s.kill(reviewing) })
	end := time.Now().Add(length)
	for w := range s.clients {
		rng := rand.New(rand.NewPCG(seed, uint64(w)))
		b := []bundle{s.a, s.b}[w%2]
		clients.Go(func() error {
			for i := 0; time.Now().Before(end) || s.calm() && time.Since(end) < 2*time.Minute; i++ {
				if err := s.act(ctx, t, b, rng, fmt.Sprintf("%d.%d", w, i)); err != nil {
					return fmt.Errorf("client %d, step %d: %w", w, i, err)
				}
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := reviewers.Wait(); err != nil {
		t.Errorf("reviewing: %v", err)
	}
	t.Logf("seed %d: %v", seed, s.did)
	if s.did["manifest deleted"] == 0 && s.did["blob deleted"] == 0 {
		t.Error("the reviewers deleted nothing: this run says nothing")
	}
	s.a.Complete(t)
	s.drain(t)
	s.a.Complete(t)
	s.a.nothingDangles(t)
	s.owned(t)
}

// dawdle is a pgx tracer that pauses a connection before some of its statements, so that
// statements of other connections run in between.
type dawdle struct{}

func (dawdle) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if rand.IntN(3) == 0 {
		time.Sleep(rand.N(4 * time.Millisecond))
	}
	return ctx
}

func (dawdle) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// linger installs triggers that make some clients' transactions sleep up to 10 ms before
// their commit, so that they keep their locks for longer.
func (s *storm) linger(t *testing.T) {
	t.Helper()
	s.a.Exec(t, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF random() < 0.3 AND current_setting('application_name') <> 'storm reviewer' THEN
				PERFORM pg_sleep(random() * 0.01);
			END IF;
			RETURN NULL;
		END $$`)
	s.a.Exec(t, "CREATE TRIGGER zz_linger AFTER INSERT OR DELETE ON manifests FOR EACH STATEMENT EXECUTE FUNCTION linger()")
	s.a.Exec(t, "CREATE TRIGGER zz_linger AFTER UPDATE OR DELETE ON tags FOR EACH STATEMENT EXECUTE FUNCTION linger()")
}

// reviewer returns a collector whose reviews run on a connection pool of their own, with
// the lock timeout `lock` and the statement timeout `statement`.
func (s *storm) reviewer(t *testing.T, lock, statement string) *gc.Collector {
	t.Helper()
	cfg := s.a.DB.Pool.Config()
	cfg.MaxConns, cfg.MinIdleConns = 1, 0
	cfg.ConnConfig.Tracer = dawdle{}
	cfg.ConnConfig.RuntimeParams["application_name"] = "storm reviewer"
	// Sessions set their limits when they are connected, whatever they inherit; so these come after.
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT set_config('lock_timeout', $1, false), set_config('statement_timeout', $2, false)", lock, statement)
		return err
	}
	delete(cfg.ConnConfig.RuntimeParams, "purser.replica")
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return gc.New(gc.Options{Catalog: s.a.Catalog, DB: s.a.DB, Reviews: &db.DB{Pool: db.PoolOver(pool)}})
}

// review runs reviews of random batch sizes until ctx ends. Some of them are dry runs, and
// some use the collector `hasty`, which has a very short statement timeout.
func (s *storm) review(ctx context.Context, kind gc.ReviewKind, usual, hasty *gc.Collector, rng *rand.Rand) error {
	for ctx.Err() == nil {
		c, o := usual, gc.ReviewOptions{Kind: kind, Limit: 1 + rng.IntN(20), DryRun: rng.IntN(20) == 0}
		if rng.IntN(10) == 0 {
			c = hasty
		}
		out, err := c.Review(context.WithoutCancel(ctx), o)
		if !o.DryRun && (err != nil || out.Claimed > 0) {
			s.count(fmt.Sprintf("%s batch", kind))
			if out.Deleted > 0 {
				s.count(fmt.Sprintf("%s deleted", kind))
			}
			if out.Postponed > 0 {
				s.count(fmt.Sprintf("%s locked", kind))
			}
		}
		if err == nil {
			if out.Claimed == 0 {
				time.Sleep(time.Millisecond) // leaves the processor to others
			}
			continue
		}
		failed, ok := errors.AsType[*gc.ReviewError](err)
		switch {
		case ok && failed.Contended():
			s.count(fmt.Sprintf("%s contended", kind))
		case db.Unavailable(err): // killed, or out of time
			s.count(fmt.Sprintf("%s failed", kind))
		default:
			return err
		}
		if !ok || failed.Rows() > 1 || o.DryRun {
			continue
		}
		if failed.Contended() {
			err = usual.PostponeReview(context.WithoutCancel(ctx), failed)
		} else {
			_, err = usual.FailReview(context.WithoutCancel(ctx), failed, 2, func(int) time.Duration { return time.Millisecond })
		}
		if err != nil && !db.Unavailable(err) {
			return err
		}
	}
	return nil
}

// queueReferrers queues referrers of deleted subjects in pages of random sizes until ctx ends.
func (s *storm) queueReferrers(ctx context.Context, c *gc.Collector, rng *rand.Rand) error {
	for ctx.Err() == nil {
		did, err := c.QueueReferrers(context.WithoutCancel(ctx), 1+rng.IntN(10))
		switch {
		case err != nil && !db.Unavailable(err) && !db.Contended(err):
			return err
		case did:
			s.count("pages of referrers")
		default:
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return nil
}

// kill ends the connection of a random reviewer after about every fiftieth batch.
func (s *storm) kill(ctx context.Context) error {
	for last := 0; ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
		s.mu.Lock()
		batches := s.did["manifest batch"] + s.did["blob batch"]
		s.mu.Unlock()
		if batches < last+50 {
			continue
		}
		last = batches
		var n int
		err := s.a.DB.Pool.QueryRow(context.WithoutCancel(ctx), `
			SELECT count(pg_terminate_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'storm reviewer' AND state <> 'idle'
				ORDER BY random() LIMIT 1) x`).Scan(&n)
		if err != nil {
			return err
		}
		if n > 0 {
			s.count("killed")
		}
	}
	return nil
}

// push stores a blob and records the storage key of its object.
func (s *storm) push(ctx context.Context, b bundle, path, content string) (oci.Digest, error) {
	d := oci.Compute(oci.SHA256, []byte(content))
	list, err := b.StartUploads(ctx, catalog.StartOptions{N: 1})
	if err != nil {
		return d, err
	}
	u := list[0]
	u.Repository, u.Size = path, int64(len(content))
	key := fmt.Sprintf("%s-%d", u.StorageKey, u.Ticket)
	s.mu.Lock()
	s.keys = append(s.keys, key)
	s.mu.Unlock()
	return d, b.CommitUpload(ctx, u, d, key, false)
}

// put stores a manifest and records its digest.
func (s *storm) put(ctx context.Context, b bundle, path string, payload []byte, tags ...string) (oci.Digest, error) {
	d, err := b.TryPut(ctx, path, payload, tags...)
	if err == nil {
		s.mu.Lock()
		s.known = append(s.known, d)
		s.mu.Unlock()
	}
	return d, err
}

// The method `has` makes sure that the repository at `path` has the blob with this content,
// as clients do before they put a manifest: it asks whether the blob exists, mounts it from
// another repository, or uploads it. Each successful answer is a promise of existence.
func (s *storm) has(ctx context.Context, b bundle, rng *rand.Rand, path, content string) (oci.Digest, error) {
	d := oci.Compute(oci.SHA256, []byte(content))
	switch rng.IntN(3) {
	case 0:
		if _, err := b.PromiseBlobExists(ctx, path, d); err == nil || !isOneOf(err, oci.BlobUnknown, oci.NameUnknown) {
			return d, err
		}
	case 1:
		if ok, err := b.Mount(ctx, path, fmt.Sprint("n/r", rng.IntN(s.repositories)), d); ok || err != nil {
			return d, err
		}
	}
	return s.push(ctx, b, path, content)
}

func isOneOf(err error, codes ...oci.Code) bool {
	for _, c := range codes {
		if oci.CodeOf(err) == c {
			return true
		}
	}
	return false
}

// unpromised returns nil if the error `err` of a request is allowed: its code is in
// `codes`, and a promise of existence made at the time `start` would have expired by now.
// Otherwise it returns an error.
func (s *storm) unpromised(err error, start time.Time, codes ...oci.Code) error {
	if !isOneOf(err, codes...) {
		return err
	}
	if s.promise == 0 || time.Since(start) >= s.promise {
		return nil
	}
	return fmt.Errorf("after %v, promised for %v: %w", time.Since(start), s.promise, err)
}

// act sends one random request as a client. `name` must be unique among all requests: some
// manifests contain it, so that no other client puts the same manifest.
func (s *storm) act(ctx context.Context, t *testing.T, b bundle, rng *rand.Rand, name string) error {
	path, tag := fmt.Sprint("n/r", rng.IntN(s.repositories)), fmt.Sprint("t", rng.IntN(4))
	if rng.IntN(3) == 0 {
		path = fmt.Sprint("m", rng.IntN(s.repositories), "/r")
	}
	choice := rng.IntN(13)
	switch choice {
	case 0:
		err := b.DeleteTag(ctx, path, tag)
		return s.unpromised(err, time.Time{}, oci.ManifestUnknown, oci.NameUnknown)
	case 1, 2, 3:
		m, err := b.ManifestByTag(ctx, path, tag)
		if err == nil {
			err = b.DeleteManifest(ctx, path, m.Digest)
		}
		return s.unpromised(err, time.Time{}, oci.ManifestUnknown, oci.NameUnknown, oci.Denied)
	case 4, 5:
		if s.unlink {
			d := oci.Compute(oci.SHA256, fmt.Append(nil, "layer", rng.IntN(s.layers)))
			return s.unpromised(b.DeleteBlob(ctx, path, d), time.Time{}, oci.BlobUnknown, oci.NameUnknown, oci.Denied)
		}
	}
	start := time.Now()
	config, err := s.has(ctx, b, rng, path, fmt.Sprint("config", rng.IntN(s.configs)))
	if err != nil {
		return err
	}
	var layers []oci.Digest
	for range 1 + rng.IntN(2) {
		d, err := s.has(ctx, b, rng, path, fmt.Sprint("layer", rng.IntN(s.layers)))
		if err != nil {
			return err
		}
		layers = append(layers, d)
	}
	more := map[string]any{}
	if rng.IntN(2) == 0 {
		more["annotations"] = map[string]string{"n": name}
	}
	if s.promise > 0 {
		time.Sleep(time.Duration(rng.Int64N(int64(s.promise / 3)))) // as if the client had more to upload
	}
	var tags []string
	if choice < 9 {
		tags = append(tags, tag)
	}
	if rng.IntN(3) == 0 {
		more["artifactType"] = "application/x"
		more["subject"] = map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": s.subject(t, rng, config, layers).String(), "size": 1}
	}
	d, err := s.put(ctx, b, path, catalogtest.Image(t, config, layers, more), tags...)
	if err != nil {
		return s.unpromised(err, start, oci.ManifestBlobUnknown)
	}
	return s.refer(ctx, t, b, rng, path, d, start, more["annotations"] != nil && len(tags) == 0)
}

// subject returns the digest of a manifest for use as a subject: of one that was put
// before, or of one that a client may put later.
func (s *storm) subject(t *testing.T, rng *rand.Rand, config oci.Digest, layers []oci.Digest) oci.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) == 0 || rng.IntN(3) == 0 {
		return oci.Compute(oci.SHA256, catalogtest.Image(t, config, layers, nil))
	}
	return s.known[len(s.known)-1-rng.IntN(min(len(s.known), 10))]
}

// refer sometimes puts indexes that list the manifest with the digest `d`. If `mine` is
// true, no other client deletes this manifest, so it must exist as long as the promise of
// existence made at the time `start` lasts.
func (s *storm) refer(ctx context.Context, t *testing.T, b bundle, rng *rand.Rand, path string, d oci.Digest, start time.Time, mine bool) error {
	if rng.IntN(2) == 0 {
		return nil
	}
	if !mine {
		start = time.Time{}
	}
	if rng.IntN(2) == 0 {
		if _, err := b.PromiseManifestExists(ctx, path, d); err != nil {
			return s.unpromised(err, start, oci.ManifestUnknown, oci.NameUnknown)
		}
	}
	list := catalogtest.Index(t, d)
	inner, err := s.put(ctx, b, path, list, fmt.Sprint("t", rng.IntN(4)))
	if err != nil {
		return s.unpromised(err, start, oci.ManifestBlobUnknown)
	}
	if rng.IntN(4) == 0 {
		_, err = s.put(ctx, b, path, catalogtest.Index(t, inner, d), fmt.Sprint("t", rng.IntN(4)))
	}
	if err == nil && rng.IntN(2) == 0 { // a cycle, with a tag or without
		_, err = s.put(ctx, b, path, circular(t, d, inner), []string{fmt.Sprint("t", rng.IntN(4))}[:rng.IntN(2)]...)
	}
	return s.unpromised(err, time.Time{}, oci.ManifestBlobUnknown)
}

// drain reviews until the queues are empty. On a busy machine a storm lasts for minutes, and leaves
// queues that take thousands of batches.
func (s *storm) drain(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); {
		s.a.Exec(t, "UPDATE gc_blob_review_queue SET set_aside_at = NULL")
		s.a.Exec(t, "UPDATE gc_manifest_review_queue SET set_aside_at = NULL")
		s.a.Exec(t, "UPDATE gc_subject_review_queue SET expand_after = now()")
		pages := s.a.queueReferrers(t, 100)
		s.a.DueNow(t)
		m, o := s.a.ReviewBatch(t, reviewingManifests), s.a.ReviewBatch(t, reviewingBlobs)
		if pages+m.Claimed+o.Claimed == 0 {
			s.a.Empty(t, "gc_blob_review_queue", "gc_manifest_review_queue", "gc_subject_review_queue")
			return
		}
	}
	t.Error("the queues are never empty")
}
