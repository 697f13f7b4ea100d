package trash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/loosefk"
)

// gone checks that every request for the deleted repository `path` fails. `img` is the digest
// of an image that the repository had.
func (b bundle) gone(t *testing.T, path string, img oci.Digest) {
	t.Helper()
	ctx := t.Context()
	_, err := b.ManifestByTag(ctx, path, "image")
	catalogtest.WantCode(t, err, oci.NameUnknown)
	_, err = b.ManifestByDigest(ctx, path, img)
	catalogtest.WantCode(t, err, oci.NameUnknown)
	_, err = b.PromiseManifestExists(ctx, path, img)
	catalogtest.WantCode(t, err, oci.NameUnknown)
	_, _, err = b.Tags(ctx, path, "", 10)
	catalogtest.WantCode(t, err, oci.NameUnknown)
	layer := oci.Compute(oci.SHA256, []byte("layer of "+path))
	_, err = b.Blob(ctx, path, layer)
	catalogtest.WantCode(t, err, oci.NameUnknown)
	_, err = b.PromiseBlobExists(ctx, path, layer)
	catalogtest.WantCode(t, err, oci.NameUnknown)
	catalogtest.WantCode(t, b.DeleteTag(ctx, path, "image"), oci.NameUnknown)
	catalogtest.WantCode(t, b.RestoreTag(ctx, path, "image", img), oci.NameUnknown)
	if list, _, err := b.Referrers(ctx, path, img, "", 0, 10); err != nil || len(list) != 0 {
		t.Errorf("referrers in %s: %v, %v", path, list, err)
	}
	list, _, err := browse.New(b.Catalog).RepositoryPaths(ctx, browse.Everyone, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p == path {
			t.Errorf("%s is listed", path)
		}
	}
	if sources, err := browse.New(b.Catalog).Sources(ctx, browse.Everyone, layer, 10); err != nil || len(sources) != 0 {
		t.Errorf("%s can be mounted from: %v, %v", path, sources, err)
	}
}

func TestDeleteRepository(t *testing.T) { catalogtest.AtBoth(t, testDeleteRepository) }

func testDeleteRepository(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.AtOnce(t)
	b.Listen(t)
	w := b.LooseKeys(t, loosefk.Options{})
	img, other := b.Fill(t, "acme/app"), b.Fill(t, "acme/web")
	b.Forget(t)
	if err := b.Trash.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	b.gone(t, "acme/app", img)
	catalogtest.WantCode(t, b.Trash.DeleteRepository(t.Context(), "acme/app"), oci.NameUnknown)
	b.Whole(t, "acme/web", "image")

	// The old repository's rows still exist. A new repository of the same name must be empty
	// all the same.
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "new")
	if tags, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil || fmt.Sprint(tags) != "[new]" {
		t.Errorf("the new repository has tags %v (%v), want new", tags, err)
	}
	_, err := b.ManifestByDigest(t.Context(), "acme/app", img)
	catalogtest.WantCode(t, err, oci.ManifestUnknown)

	b.Drain(t, w)
	b.NoOrphans(t)
	// Deleting the old repository's tags must queue no manifest for review; deleting its
	// manifests must queue all their blobs.
	if n := b.Rows(t, "gc_manifest_review_queue"); n != 0 {
		t.Errorf("%d manifests are queued, though all were drained", n)
	}
	b.ReviewAll(t)
	if n := b.Count(t, "SELECT count(*) FROM blobs WHERE digest = $1", oci.Compute(oci.SHA256, []byte("layer of acme/app")).Bytes()); n != 0 {
		t.Error("a layer of the deleted repository is still there")
	}
	b.Whole(t, "acme/web", "image", oci.Compute(oci.SHA256, []byte("layer of acme/web")))
	b.Whole(t, "acme/web", "index")
	b.Whole(t, "acme/app", "new")
	if m, err := b.ManifestByTag(t.Context(), "acme/web", "image"); err != nil || m.Digest != other {
		t.Errorf("acme/web:image is %v, %v", m, err)
	}
	b.Complete(t)
}

func TestDeleteNamespace(t *testing.T) { catalogtest.AtBoth(t, testDeleteNamespace) }

func testDeleteNamespace(t *testing.T, dsn string) {
	b, other := replica(t, dsn), replica(t, dsn)
	b.AtOnce(t)
	b.Listen(t)
	other.Listen(t)
	w := b.LooseKeys(t, loosefk.Options{})
	app, web := b.Fill(t, "acme/app"), b.Fill(t, "acme/web")
	b.Fill(t, "else/app")
	other.Whole(t, "acme/app", "image") // now the image is in the other process's cache
	if err := b.Trash.DeleteNamespace(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	b.gone(t, "acme/app", app)
	b.gone(t, "acme/web", web)
	catalogtest.Eventually(t, "gone for the other replica", func() bool {
		_, err := other.ManifestByTag(t.Context(), "acme/app", "image")
		return oci.CodeOf(err) == oci.NameUnknown
	})
	other.gone(t, "acme/app", app)
	catalogtest.WantCode(t, b.Trash.DeleteNamespace(t.Context(), "acme"), oci.NameUnknown)
	catalogtest.WantCode(t, b.Trash.DeleteRepository(t.Context(), "acme/web"), oci.NameUnknown)

	// A client makes a new acme/app while the row of the old acme/app still exists. The new
	// repository must have only its own tag.
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "new")
	if tags, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil || fmt.Sprint(tags) != "[new]" {
		t.Errorf("the new repository has tags %v (%v), want new", tags, err)
	}
	b.Drain(t, w)
	b.NoOrphans(t)
	b.Whole(t, "else/app", "image")
	b.Whole(t, "acme/app", "new")
	for _, path := range []string{"acme/app", "else/app"} {
		if err := b.Trash.DeleteRepository(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	b.Drain(t, w)
	b.ReviewAll(t)
	b.Nothing(t)
}

// A put has locked the repository when a client deletes it. The deletion must wait for the
// put, and the rows that the put has inserted must be deleted with the repository.
func TestDeleteRepositoryWaitsForPut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	put, watch := b.Session(t), b.Session(t)
	put.Exec(t, "BEGIN")
	put.Exec(t, `SELECT FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
		WHERE r.path = 'acme/app' FOR KEY SHARE`)
	deleted := catalogtest.Later(func() error { return b.Trash.DeleteRepository(t.Context(), "acme/app") })
	put.Blocks(t, watch, 1)
	put.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'late', id FROM manifests WHERE subject_digest IS NULL LIMIT 1`)
	put.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
		t.Fatal(err)
	}
	b.Drain(t, w)
	b.NoOrphans(t)
	b.Empty(t, "tags", "manifests")
}

// TestConcurrentLifetimes deletes repositories and namespaces while clients push to them, the
// worker of loose foreign keys deletes their rows, and a collector deletes blobs. At the end
// no row of a deleted repository may be left, and the existing repositories must be complete.
func TestConcurrentLifetimes(t *testing.T) { catalogtest.AtBoth(t, testConcurrentLifetimes) }

func testConcurrentLifetimes(t *testing.T, dsn string) {
	a, b := replica(t, dsn), replica(t, dsn)
	a.AtOnce(t)
	a.Listen(t)
	b.Listen(t)
	// These limits are so small that every code path of the worker runs.
	w := a.LooseKeys(t, loosefk.Options{Batch: 3, DeleteLimit: 3, MaxDeletes: 40, RescheduleAfter: time.Millisecond})
	group, ctx := errgroup.WithContext(t.Context())
	background, stop := context.WithCancel(ctx)
	var workers errgroup.Group
	workers.Go(func() error { return a.CollectUnused(background) })
	for range 2 {
		workers.Go(func() error {
			for background.Err() == nil {
				if _, err := w.RunOnce(context.WithoutCancel(background), "main"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for n := range 5 {
		rng := rand.New(rand.NewPCG(uint64(n), 7))
		x := []bundle{a, b}[n%2]
		group.Go(func() error {
			for i := range testscale.Pick(20, 300) {
				if err := x.live(ctx, t, rng); err != nil {
					return fmt.Errorf("client %d, step %d: %w", n, i, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := workers.Wait(); err != nil {
		t.Error(err)
	}
	a.Exec(t, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1")
	a.Drain(t, a.LooseKeys(t, loosefk.Options{}))
	a.NoOrphans(t)
	a.Complete(t)
}

// live makes one random client request: it pushes to a repository, deletes the repository, or
// deletes its namespace.
func (b bundle) live(ctx context.Context, t *testing.T, rng *rand.Rand) error {
	namespace := fmt.Sprint("n", rng.IntN(2))
	path := fmt.Sprint(namespace, "/r", rng.IntN(2))
	allowed := func(err error) error {
		switch oci.CodeOf(err) {
		case oci.NameUnknown, oci.ManifestBlobUnknown, oci.ManifestUnknown:
			return nil
		}
		return err
	}
	switch rng.IntN(12) {
	case 0, 1:
		return allowed(b.Trash.DeleteRepository(ctx, path))
	case 2:
		return allowed(b.Trash.DeleteNamespace(ctx, namespace))
	}
	config, err := b.TryPush(ctx, path, fmt.Sprint("config", rng.IntN(3)))
	if err != nil {
		return err
	}
	layer, err := b.TryPush(ctx, path, fmt.Sprint("layer", rng.IntN(5)))
	if err != nil {
		return err
	}
	img, err := b.TryPut(ctx, path, catalogtest.Image(t, config, []oci.Digest{layer}, nil), fmt.Sprint("t", rng.IntN(5)))
	if err == nil {
		_, err = b.TryPut(ctx, path, catalogtest.Index(t, img), "index")
	}
	return allowed(err)
}
