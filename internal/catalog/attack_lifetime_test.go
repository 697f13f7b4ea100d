package catalog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/loosefk"
)

// An upload that begins after a namespace was deleted belongs to the repository that is made
// next: it isn't cancelled with the old repository of that name.
func TestUploadAfterDeletedNamespace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.keys(t, loosefk.Options{})
	b.fill(t, "acme/app")
	if err := b.DeleteNamespace(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	u, err := b.SaveUpload(t.Context(), b.begun(t, "acme/app"))
	if err != nil {
		t.Fatal(err)
	}
	b.drain(t, w)
	if _, err := b.Upload(t.Context(), "acme/app", u.ID); err != nil {
		t.Errorf("the new upload is cancelled with the old repository: %v", err)
	}
	if err := b.commit(u, "content"); err != nil {
		t.Error(err)
	}
	b.noOrphans(t)
}

// A blob that only a deleted repository uses stays until the repository's rows are removed,
// and its explanation says so.
func TestExplainBlobOfDeletedRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	b.fill(t, "acme/app")
	b.reviewAll(t)
	b.forget(t)
	if err := b.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	e, err := b.ExplainBlob(t.Context(), oci.Compute(oci.SHA256, []byte("layer of acme/app")))
	if err != nil {
		t.Fatal(err)
	}
	if e.Fate != catalog.FateKept {
		t.Errorf("the blob's fate is %s, though the drain is yet to free it", e.Fate)
	}
	if text := strings.Join(e.Sentences(), "; "); !strings.Contains(text, "of a deleted repository, which is being drained") {
		t.Errorf("the explanation is %q", text)
	}
}

// A promise outlives the repository in which it was given: a client that pushes to another
// repository finds the blob for the promised time.
func TestPromiseOutlivesRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	w := b.keys(t, loosefk.Options{})
	b.fill(t, "acme/app")
	b.put(t, "acme/web", image(t, b.push(t, "acme/web", "config"), nil, nil), "image")
	layer := oci.Compute(oci.SHA256, []byte("layer of acme/app"))
	b.delays(t, "blob_upload")
	if _, err := b.PromiseBlob(t.Context(), "acme/app", layer); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Mount(t.Context(), "acme/web", "acme/app", layer); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := b.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	b.drain(t, w)
	b.reviewAll(t)
	b.put(t, "acme/web", image(t, b.push(t, "acme/web", "config"), []oci.Digest{layer}, nil), "late")
	b.whole(t, "acme/web", "late", layer)
}

// A mount from a repository that is being deleted doesn't wait, and either gets the blob or
// doesn't.
func TestMountFromDyingRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	b.listen(t)
	w := b.keys(t, loosefk.Options{})
	b.fill(t, "acme/app")
	layer := oci.Compute(oci.SHA256, []byte("layer of acme/app"))
	del := b.session(t)
	del.exec(t, "BEGIN")
	del.exec(t, "DELETE FROM repositories WHERE path = 'acme/app'")
	mounted := later(func() error { _, err := b.Mount(t.Context(), "else/app", "acme/app", layer); return err })
	if err := soon(t, "mount", mounted); err != nil {
		t.Fatal(err)
	}
	del.exec(t, "COMMIT")
	if ok, err := b.Mount(t.Context(), "else/other", "acme/app", layer); err != nil || ok {
		t.Errorf("mounted from a repository that is gone: %v, %v", ok, err)
	}
	b.drain(t, w)
	b.put(t, "else/app", image(t, b.push(t, "else/app", "config"), []oci.Digest{layer}, nil), "image")
	b.reviewAll(t)
	b.whole(t, "else/app", "image", layer)
	b.complete(t)
}

// Reviews of a deleted repository's content and the worker that removes its rows give way to
// each other, and clients aren't affected.
func TestDrainMeetsReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	w := b.keys(t, loosefk.Options{LockTimeout: 50 * time.Millisecond, RescheduleAfter: time.Millisecond})
	b.fill(t, "acme/app")
	b.exec(t, "DELETE FROM tags")
	b.exec(t, "DELETE FROM manifest_references")
	p := b.pausing(t, ofManifests())
	p.to(t, beforeDelete)
	if err := b.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.RunOnce(t.Context(), "main"); err != nil {
		t.Errorf("the drain fails while a review holds a manifest: %v", err)
	}
	p.ended(t)
	b.exec(t, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1")
	b.drain(t, w)
	b.noOrphans(t)
	b.reviewAll(t)
	b.nothing(t)
}

// A repository that is made while its namespace is being deleted ends up in a new namespace;
// a repository that was made first is deleted with the old namespace.
func TestNewRepositoryInDyingNamespace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	w := b.keys(t, loosefk.Options{})
	b.fill(t, "acme/app")
	del, watch := b.session(t), b.session(t)
	del.exec(t, "BEGIN")
	del.exec(t, "DELETE FROM top_level_namespaces WHERE name = 'acme'")
	put := later(func() error { _, err := b.tryPush(t.Context(), "acme/new", "content"); return err })
	del.blocks(t, watch, 1)
	del.exec(t, "COMMIT")
	if err := soon(t, "push", put); err != nil {
		t.Fatal(err)
	}
	if _, err := b.BlobNow(t.Context(), "acme/new", oci.Compute(oci.SHA256, []byte("content"))); err != nil {
		t.Error(err)
	}

	first := b.session(t)
	first.exec(t, "BEGIN")
	first.exec(t, `INSERT INTO repositories (top_level_namespace_id, path)
		SELECT id, 'acme/other' FROM top_level_namespaces WHERE name = 'acme' FOR KEY SHARE`)
	deleted := later(func() error { return b.DeleteNamespace(t.Context(), "acme") })
	first.blocks(t, watch, 1)
	first.exec(t, "COMMIT")
	if err := soon(t, "deletion", deleted); err != nil {
		t.Fatal(err)
	}
	b.drain(t, w)
	b.noOrphans(t)
	b.empty(t, "repositories", "repository_blobs")
}

// A tag isn't restored in a repository that is being deleted, and the client is told.
func TestRestoreInDyingRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atOnce(t)
	w := b.keys(t, loosefk.Options{})
	img := b.fill(t, "acme/app")
	del, watch := b.session(t), b.session(t)
	del.exec(t, "BEGIN")
	del.exec(t, "DELETE FROM repositories WHERE path = 'acme/app'")
	restored := later(func() error { return b.RestoreTag(t.Context(), "acme/app", "again", img) })
	del.blocks(t, watch, 1)
	del.exec(t, "COMMIT")
	wantCode(t, soon(t, "restore", restored), oci.NameUnknown)
	b.drain(t, w)
	b.noOrphans(t)
	b.empty(t, "tags", "manifests")
}
