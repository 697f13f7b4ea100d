package catalog_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/loosefk"
)

// keys makes the loose foreign key worker, which removes the rows of deleted repositories.
func (b bundle) keys(t *testing.T, o loosefk.Options) *loosefk.Worker {
	t.Helper()
	cfg := b.db.Pool.Config()
	delete(cfg.ConnConfig.RuntimeParams, "purser.replica")
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o.Databases, o.Definitions, err = db.LooseForeignKeys(t.Context(), pool, pool)
	if err != nil {
		t.Fatal(err)
	}
	o.Log = slog.New(slog.DiscardHandler)
	w, err := loosefk.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := loosefk.Validate(t.Context(), o.Databases, o.Definitions); err != nil {
		t.Fatal(err)
	}
	return w
}

// drain runs the worker until nothing is left to do.
func (b bundle) drain(t *testing.T, w *loosefk.Worker) {
	t.Helper()
	for range 100 {
		r, err := w.RunOnce(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		if r.Records == 0 {
			return
		}
	}
	t.Fatal("there is always more to drain")
}

// noOrphans checks that no rows of deleted repositories and namespaces are left.
func (b bundle) noOrphans(t *testing.T) {
	t.Helper()
	for _, table := range []string{"tags", "manifest_references", "manifests", "repository_blobs", "layers", "gc_blobs_layers", "gc_blobs_configurations"} {
		if n := b.count(t, "SELECT count(*) FROM "+table+" c WHERE NOT EXISTS (SELECT FROM repositories r WHERE r.id = c.repository_id)"); n != 0 {
			t.Errorf("%d rows of %s are left of repositories that are gone", n, table)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM repositories r
			WHERE NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = r.top_level_namespace_id)`); n != 0 {
		t.Errorf("%d repositories are left of namespaces that are gone", n)
	}
}

// fill puts an image, an index of it and a referrer into a repository.
func (b bundle) fill(t *testing.T, path string) (img oci.Digest) {
	t.Helper()
	config, layer := b.push(t, path, "config"), b.push(t, path, "layer of "+path)
	img = b.put(t, path, image(t, config, []oci.Digest{layer}, nil), "image", "also")
	b.put(t, path, index(t, img), "index")
	b.put(t, path, image(t, config, nil, map[string]any{"subject": map[string]any{
		"mediaType": oci.MediaTypeImageManifest, "digest": img.String(), "size": 1,
	}}))
	return img
}

// gone checks that every request for a repository fails.
func (b bundle) gone(t *testing.T, path string, img oci.Digest) {
	t.Helper()
	ctx := t.Context()
	_, err := b.ManifestByTag(ctx, path, "image")
	wantCode(t, err, oci.NameUnknown)
	_, err = b.ManifestByDigest(ctx, path, img)
	wantCode(t, err, oci.NameUnknown)
	_, err = b.PromiseManifest(ctx, path, img)
	wantCode(t, err, oci.NameUnknown)
	_, _, err = b.Tags(ctx, path, "", 10)
	wantCode(t, err, oci.NameUnknown)
	layer := oci.Compute(oci.SHA256, []byte("layer of "+path))
	_, err = b.Blob(ctx, path, layer)
	wantCode(t, err, oci.NameUnknown)
	_, err = b.PromiseBlob(ctx, path, layer)
	wantCode(t, err, oci.NameUnknown)
	wantCode(t, b.DeleteTag(ctx, path, "image"), oci.NameUnknown)
	wantCode(t, b.RestoreTag(ctx, path, "image", img), oci.NameUnknown)
	if list, _, err := b.Referrers(ctx, path, img, "", 0, 10); err != nil || len(list) != 0 {
		t.Errorf("referrers in %s: %v, %v", path, list, err)
	}
	list, _, err := b.Repositories(ctx, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p == path {
			t.Errorf("%s is listed", path)
		}
	}
	if sources, err := b.Sources(ctx, layer, 10); err != nil || len(sources) != 0 {
		t.Errorf("%s can be mounted from: %v, %v", path, sources, err)
	}
}

func TestDeleteRepository(t *testing.T) { atBoth(t, testDeleteRepository) }

func testDeleteRepository(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.atOnce(t)
	b.listen(t)
	w := b.keys(t, loosefk.Options{})
	img, other := b.fill(t, "acme/app"), b.fill(t, "acme/web")
	b.forget(t)
	if err := b.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	b.gone(t, "acme/app", img)
	wantCode(t, b.DeleteRepository(t.Context(), "acme/app"), oci.NameUnknown)
	b.whole(t, "acme/web", "image")

	// A new repository of the same name is empty before the old rows are removed.
	b.put(t, "acme/app", image(t, b.push(t, "acme/app", "config"), nil, nil), "new")
	if tags, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil || fmt.Sprint(tags) != "[new]" {
		t.Errorf("the new repository has tags %v (%v), want new", tags, err)
	}
	_, err := b.ManifestByDigest(t.Context(), "acme/app", img)
	wantCode(t, err, oci.ManifestUnknown)

	b.drain(t, w)
	b.noOrphans(t)
	// The deletion of its tags queued no manifest for review, that of its manifests queued
	// all their blobs.
	if n := b.rows(t, "gc_manifest_review_queue"); n != 0 {
		t.Errorf("%d manifests are queued, though all were drained", n)
	}
	b.reviewAll(t)
	if n := b.count(t, "SELECT count(*) FROM blobs WHERE digest = $1", oci.Compute(oci.SHA256, []byte("layer of acme/app")).Bytes()); n != 0 {
		t.Error("a layer of the deleted repository is still there")
	}
	b.whole(t, "acme/web", "image", oci.Compute(oci.SHA256, []byte("layer of acme/web")))
	b.whole(t, "acme/web", "index")
	b.whole(t, "acme/app", "new")
	if m, err := b.ManifestByTag(t.Context(), "acme/web", "image"); err != nil || m.Digest != other {
		t.Errorf("acme/web:image is %v, %v", m, err)
	}
	b.complete(t)
}

func TestDeleteNamespace(t *testing.T) { atBoth(t, testDeleteNamespace) }

func testDeleteNamespace(t *testing.T, dsn string) {
	b, other := replica(t, dsn), replica(t, dsn)
	b.atOnce(t)
	b.listen(t)
	other.listen(t)
	w := b.keys(t, loosefk.Options{})
	app, web := b.fill(t, "acme/app"), b.fill(t, "acme/web")
	b.fill(t, "else/app")
	other.whole(t, "acme/app", "image") // now it is in that one's cache
	if err := b.DeleteNamespace(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	b.gone(t, "acme/app", app)
	b.gone(t, "acme/web", web)
	eventually(t, "gone for the other replica", func() bool {
		_, err := other.ManifestByTag(t.Context(), "acme/app", "image")
		return oci.CodeOf(err) == oci.NameUnknown
	})
	other.gone(t, "acme/app", app)
	wantCode(t, b.DeleteNamespace(t.Context(), "acme"), oci.NameUnknown)
	wantCode(t, b.DeleteRepository(t.Context(), "acme/web"), oci.NameUnknown)

	// The row of the old acme/app is still there when a new one is made.
	b.put(t, "acme/app", image(t, b.push(t, "acme/app", "config"), nil, nil), "new")
	if tags, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil || fmt.Sprint(tags) != "[new]" {
		t.Errorf("the new repository has tags %v (%v), want new", tags, err)
	}
	b.drain(t, w)
	b.noOrphans(t)
	b.whole(t, "else/app", "image")
	b.whole(t, "acme/app", "new")
	for _, path := range []string{"acme/app", "else/app"} {
		if err := b.DeleteRepository(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	b.drain(t, w)
	b.reviewAll(t)
	b.nothing(t)
}

// The deletion waits for a put that has locked the repository, and the rows of the put are
// removed with it.
func TestDeleteRepositoryWaitsForPut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	w := b.keys(t, loosefk.Options{})
	b.fill(t, "acme/app")
	put, watch := b.session(t), b.session(t)
	put.exec(t, "BEGIN")
	put.exec(t, `SELECT FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
		WHERE r.path = 'acme/app' FOR KEY SHARE`)
	deleted := later(func() error { return b.DeleteRepository(t.Context(), "acme/app") })
	put.blocks(t, watch, 1)
	put.exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'late', id FROM manifests WHERE subject_digest IS NULL LIMIT 1`)
	put.exec(t, "COMMIT")
	if err := soon(t, "deletion", deleted); err != nil {
		t.Fatal(err)
	}
	b.drain(t, w)
	b.noOrphans(t)
	b.empty(t, "tags", "manifests")
}

// A put that meets the deletion of its repository makes a new repository; so does a put that
// meets the deletion of its namespace.
func TestPutDuringDeletion(t *testing.T) {
	t.Parallel()
	for what, sql := range map[string]string{
		"repository": "DELETE FROM repositories WHERE path = 'acme/app'",
		"namespace":  "DELETE FROM top_level_namespaces WHERE name = 'acme'",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.atOnce(t)
			b.listen(t)
			w := b.keys(t, loosefk.Options{})
			img := b.fill(t, "acme/app")
			del, watch := b.session(t), b.session(t)
			del.exec(t, "BEGIN")
			del.exec(t, sql)
			artifact := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[]}`, oci.MediaTypeImageIndex)
			put := later(func() error { _, err := b.tryPut(t.Context(), "acme/app", artifact, "new"); return err })
			del.blocks(t, watch, 1)
			del.exec(t, "COMMIT")
			if err := soon(t, "put", put); err != nil {
				t.Fatal(err)
			}
			if tags, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil || fmt.Sprint(tags) != "[new]" {
				t.Errorf("the new repository has tags %v (%v), want new", tags, err)
			}
			_, err := b.ManifestByDigest(t.Context(), "acme/app", img)
			wantCode(t, err, oci.ManifestUnknown)
			b.drain(t, w)
			b.noOrphans(t)
			b.whole(t, "acme/app", "new")
		})
	}
}

// An upload whose repository is deleted is cancelled: no request can continue it, and the
// reaper deletes it whatever its age.
func TestUploadOfDeletedRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.keys(t, loosefk.Options{})
	b.fill(t, "acme/app")
	u := b.begun(t, "acme/app")
	u, err := b.SaveUpload(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := b.ReapUploads(t.Context(), time.Hour, 10); err != nil || n != 0 {
		t.Errorf("%d uploads were reaped (%v)", n, err)
	}
	if err := b.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	b.drain(t, w)
	_, err = b.Upload(t.Context(), "acme/app", u.ID)
	wantCode(t, err, oci.BlobUploadUnknown)
	_, _, err = b.ClaimUpload(t.Context(), u, 1)
	wantCode(t, err, oci.BlobUploadInvalid)
	_, err = b.SaveUpload(t.Context(), u)
	wantCode(t, err, oci.BlobUploadInvalid)
	wantCode(t, b.commit(u, "content"), oci.BlobUploadInvalid)
	if n, err := b.ReapUploads(t.Context(), time.Hour, 10); err != nil || n != 1 {
		t.Errorf("%d uploads were reaped (%v), want 1", n, err)
	}
	if n := b.count(t, "SELECT count(*) FROM gc_doomed_objects WHERE storage_key = $1 AND of_upload", u.StorageKey); n != 1 {
		t.Error("the upload's objects aren't doomed")
	}
}

// TestConcurrentLifetimes deletes repositories and namespaces while others push to them,
// remove their rows and collect garbage. At the end no row of a deleted repository is left,
// and the existing ones are complete.
func TestConcurrentLifetimes(t *testing.T) { atBoth(t, testConcurrentLifetimes) }

func testConcurrentLifetimes(t *testing.T, dsn string) {
	a, b := replica(t, dsn), replica(t, dsn)
	a.atOnce(t)
	a.listen(t)
	b.listen(t)
	// Limits so small that every code path of the worker runs.
	w := a.keys(t, loosefk.Options{Batch: 3, DeleteLimit: 3, MaxDeletes: 40, RescheduleAfter: time.Millisecond})
	group, ctx := errgroup.WithContext(t.Context())
	background, stop := context.WithCancel(ctx)
	var workers errgroup.Group
	workers.Go(func() error { return collect(background, a) })
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
			for i := range 60 {
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
	a.exec(t, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1")
	a.drain(t, a.keys(t, loosefk.Options{}))
	a.noOrphans(t)
	a.complete(t)
}

// live pushes to a repository, or deletes it, or its namespace.
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
		return allowed(b.DeleteRepository(ctx, path))
	case 2:
		return allowed(b.DeleteNamespace(ctx, namespace))
	}
	config, err := b.tryPush(ctx, path, fmt.Sprint("config", rng.IntN(3)))
	if err != nil {
		return err
	}
	layer, err := b.tryPush(ctx, path, fmt.Sprint("layer", rng.IntN(5)))
	if err != nil {
		return err
	}
	img, err := b.tryPut(ctx, path, image(t, config, []oci.Digest{layer}, nil), fmt.Sprint("t", rng.IntN(5)))
	if err == nil {
		_, err = b.tryPut(ctx, path, index(t, img), "index")
	}
	return allowed(err)
}

// A refused put doesn't recreate a deleted repository, not even from a process that hasn't
// been notified of the deletion.
func TestRefusedPutMakesNoRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.listen(t)
	b.fill(t, "acme/app")
	if _, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil { // it knows the repository now
		t.Fatal(err)
	}
	// Like a change of this process's own, this change isn't notified to it.
	var id string
	if err := b.db.Pool.QueryRow(t.Context(), "SELECT id FROM replicas").Scan(&id); err != nil {
		t.Fatal(err)
	}
	silent := b.session(t)
	silent.exec(t, "SELECT set_config('purser.replica', $1, false)", id)
	silent.exec(t, "DELETE FROM repositories WHERE path = 'acme/app'")
	config, layer := oci.Compute(oci.SHA256, []byte("config")), oci.Compute(oci.SHA256, []byte("layer of acme/app"))
	_, err := b.tryPut(t.Context(), "acme/app", numbered(t, 7, config, layer), "late")
	wantCode(t, err, oci.ManifestBlobUnknown)
	if n := b.rows(t, "repositories"); n != 0 {
		t.Error("the repository is back, and empty")
	}
}
