package catalog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// cached calls f and says whether f made no query to the database.
func cached(t *testing.T, f func(ctx context.Context) error) bool {
	t.Helper()
	ctx, n := db.WithCounter(t.Context())
	if err := f(ctx); err != nil && oci.CodeOf(err) == "" {
		t.Fatal(err)
	}
	return n.Count() == 0
}

func TestReplicaSeesMovedTag(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	a, b := replica(t, dsn), replica(t, dsn)
	a.Listen(t)
	b.Listen(t)
	config := a.Push(t, "r", "config")
	one := a.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	tag := func(x bundle) (oci.Digest, error) {
		m, err := x.ManifestByTag(t.Context(), "r", "t")
		if err != nil {
			return oci.Digest{}, err
		}
		return m.Digest, nil
	}
	for i := range 20 {
		want := a.Put(t, "r", catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": fmt.Sprint(i)}}), "t")
		if got, err := tag(a); err != nil || got != want {
			t.Fatalf("the replica that moved the tag sees %v, %v", got, err)
		}
		moved := time.Now()
		catalogtest.Eventually(t, "the other replica sees the tag move", func() bool { d, err := tag(b); return err == nil && d == want })
		if took := time.Since(moved); took > time.Second {
			t.Errorf("the other replica saw it after %v", took)
		}
		if i > 0 && !cached(t, func(ctx context.Context) error { _, err := b.ManifestByTag(ctx, "r", "t"); return err }) {
			t.Error("the other replica's cache is not in use")
		}
	}
	if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
		t.Fatal(err)
	}
	catalogtest.Eventually(t, "the deleted tag is gone elsewhere", func() bool { _, err := tag(a); return oci.CodeOf(err) == oci.ManifestUnknown })
	if err := b.DeleteManifest(t.Context(), "r", one); err != nil {
		t.Fatal(err)
	}
	catalogtest.Eventually(t, "the deleted manifest is gone elsewhere", func() bool {
		_, err := a.ManifestByDigest(t.Context(), "r", one)
		return oci.CodeOf(err) == oci.ManifestUnknown
	})
}

// Somebody deletes tags by psql and not through the registry. The caches must be notified of
// this change as well.
func TestCacheHearsOfDirectChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	for range 2 {
		if _, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil {
			t.Fatal(err)
		}
	}
	psql := dbtest.Open(t, b.DB.Pool.Config().ConnString())
	if _, err := psql.Pool.Exec(t.Context(), "DELETE FROM tags"); err != nil {
		t.Fatal(err)
	}
	catalogtest.Eventually(t, "the deletion is seen", func() bool {
		_, err := b.ManifestByTag(t.Context(), "r", "t")
		return oci.CodeOf(err) == oci.ManifestUnknown
	})
}

// The listener's connection breaks, so no heartbeats come back. The caches must be disabled,
// and be empty when they are enabled again.
func TestCacheRestsWithoutNews(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	get := func(ctx context.Context) error { _, err := b.ManifestByTag(ctx, "r", "t"); return err }
	cached(t, get)
	if !cached(t, get) {
		t.Fatal("a second read isn't cached")
	}
	// Tags are deleted without a notification, and then the connection of the listener is cut.
	b.Exec(t, "ALTER TABLE tags DISABLE TRIGGER ALL")
	psql := dbtest.Open(t, b.DB.Pool.Config().ConnString())
	for _, sql := range []string{
		"DELETE FROM tags",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'purser listener' AND datname = current_database()",
	} {
		if _, err := psql.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	catalogtest.Eventually(t, "the cache is empty", func() bool { return oci.CodeOf(get(t.Context())) == oci.ManifestUnknown })
	b.WaitCaching(t)
	catalogtest.WantCode(t, get(t.Context()), oci.ManifestUnknown)
}

// Somebody has deleted this process's row from the table replicas. The process must register
// again before it uses its caches.
func TestForgottenReplica(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	b.Exec(t, "DELETE FROM replicas")
	catalogtest.Eventually(t, "registered again", func() bool { return b.Count(t, "SELECT count(*) FROM replicas") == 1 })
	b.WaitCaching(t)
}

// One client moves a tag again and again, and four clients read the tag, all through the same
// process. A read that begins after a move was answered must return the manifest to which this
// move, or a later one, has pointed the tag.
func TestCacheNeverServesThePast(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	const versions = 8
	config := b.Push(t, "r", "config")
	order := map[oci.Digest]int{}
	var payloads [][]byte
	for i := range versions {
		p := catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": fmt.Sprint(i)}})
		payloads = append(payloads, p)
		order[oci.Compute(oci.SHA256, p)] = i
	}
	var mu sync.Mutex
	answered := -1 // the newest round whose write was answered
	rounds := map[oci.Digest]int{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers errgroup.Group
	for range 4 {
		readers.Go(func() error {
			for ctx.Err() == nil {
				mu.Lock()
				least := answered
				mu.Unlock()
				m, err := b.ManifestByTag(context.WithoutCancel(ctx), "r", "t")
				if err != nil {
					if least < 0 && oci.CodeOf(err) == oci.ManifestUnknown {
						continue
					}
					return err
				}
				mu.Lock()
				round := rounds[m.Digest]
				mu.Unlock()
				if round < least {
					return fmt.Errorf("read version %d of round %d after round %d was answered", order[m.Digest], round, least)
				}
			}
			return nil
		})
	}
	for round := range 300 {
		p := payloads[rand.IntN(versions)]
		d := oci.Compute(oci.SHA256, p)
		mu.Lock()
		rounds[d] = round
		mu.Unlock()
		b.Put(t, "r", p, "t")
		mu.Lock()
		answered = round
		mu.Unlock()
	}
	cancel()
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
}

// When heartbeats come late, all concurrent requests must wait for the next heartbeat and then
// use the cache, instead of each making a query.
func TestLateHeartbeatIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	read := func(ctx context.Context) error {
		m, err := b.ManifestByTag(ctx, "r", "t")
		if err == nil && m.Digest != d {
			err = fmt.Errorf("the tag points to %v", m.Digest)
		}
		return err
	}
	catalogtest.Eventually(t, "a cached read", func() bool { return cached(t, read) })
	tx, err := dbtest.Open(t, b.DB.Pool.Config().ConnString()).Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())                                                                  //nolint:errcheck // it was ended
	if _, err := tx.Exec(t.Context(), "LOCK TABLE replicas IN ACCESS EXCLUSIVE MODE"); err != nil { // no heartbeat goes out
		t.Fatal(err)
	}
	catalogtest.Eventually(t, "news are late", func() bool { return !b.Caching() })
	ctx, n := db.WithCounter(t.Context())
	var readers errgroup.Group
	for range 50 {
		readers.Go(func() error { return read(ctx) })
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
	if n.Count() != 0 {
		t.Errorf("50 reads asked the database %d times", n.Count())
	}
}

// When no heartbeats come back, one request waits in vain for freshWait. After that, no other
// request may wait: each must query the database at once, until a heartbeat comes back.
func TestStoppedHeartbeatIsNotWaitedForTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	read := func(ctx context.Context) error { _, err := b.ManifestByTag(ctx, "r", "t"); return err }
	catalogtest.Eventually(t, "a cached read", func() bool { return cached(t, read) })
	tx, err := dbtest.Open(t, b.DB.Pool.Config().ConnString()).Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it was ended
	if _, err := tx.Exec(t.Context(), "LOCK TABLE replicas IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	catalogtest.Eventually(t, "news are late", func() bool { return !b.Caching() })
	if cached(t, read) {
		t.Error("the first read didn't ask the database")
	}
	began := time.Now()
	const reads = 20
	for range reads {
		if cached(t, read) {
			t.Error("a read without news didn't ask the database")
		}
	}
	if took := time.Since(began); took > reads*time.Second { // otherwise each read would have waited for two seconds
		t.Errorf("%d reads took %v: they waited for a heartbeat again", reads, took)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	catalogtest.Eventually(t, "the caches are used again", func() bool { return cached(t, read) })
}

// A process without requests must send no heartbeats and stay registered in replicas. When
// requests come again, the first of them must already use the caches.
func TestHeartRestsWhileNobodyAsks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	read := func(ctx context.Context) error { _, err := b.ManifestByTag(ctx, "r", "t"); return err }
	catalogtest.Eventually(t, "a cached read", func() bool { return cached(t, read) })
	catalogtest.Eventually(t, "the heart rests", func() bool {
		return b.Count(t, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'purser heartbeat' AND datname = current_database() AND query LIKE '%AS (UPDATE replicas SET seen_at = now() WHERE id = $1 RETURNING%'`) == 1
	})
	if !cached(t, read) {
		t.Error("the first read after a rest asked the database")
	}
	// Heartbeats have paused again, since there were no requests. Another process now deletes
	// the tags. The notification of this change must arrive although no heartbeats are sent.
	catalogtest.Eventually(t, "the heart rests again", func() bool {
		return b.Count(t, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'purser heartbeat' AND datname = current_database() AND query LIKE '%AS (UPDATE replicas SET seen_at = now() WHERE id = $1 RETURNING%'
				AND query_start < now() - interval '1.5 s'`) == 1
	})
	if _, err := dbtest.Open(t, b.DB.Pool.Config().ConnString()).Pool.Exec(t.Context(), "DELETE FROM tags"); err != nil {
		t.Fatal(err)
	}
	catalogtest.WantCode(t, read(t.Context()), oci.ManifestUnknown)
}
