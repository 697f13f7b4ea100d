package catalog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/loosefk"
)

// A client starts an upload to acme/app after the namespace acme was deleted, and before the
// rows of the old acme/app are gone. Deleting these rows must not cancel the upload.
func TestUploadAfterDeletedNamespace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	if err := b.Trash.DeleteNamespace(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	u, err := b.SaveUpload(t.Context(), b.Begun(t, "acme/app"))
	if err != nil {
		t.Fatal(err)
	}
	b.Drain(t, w)
	if _, err := b.Upload(t.Context(), "acme/app", u.UploadID()); err != nil {
		t.Errorf("the new upload is cancelled with the old repository: %v", err)
	}
	if err := b.Commit(u, "content"); err != nil {
		t.Error(err)
	}
	b.NoOrphans(t)
}

// A blob is linked only to a repository that was deleted. Until the repository's rows are
// deleted, the blob must stay, and ExplainBlob must give the reason.
func TestExplainBlobOfDeletedRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	b.Fill(t, "acme/app")
	b.ReviewAll(t)
	b.Forget(t)
	if err := b.Trash.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	e, err := b.ExplainBlob(t.Context(), oci.Compute(oci.SHA256, []byte("layer of acme/app")))
	if err != nil {
		t.Fatal(err)
	}
	if e.Fate != "kept" {
		t.Errorf("the blob's fate is %s, though the drain is yet to free it", e.Fate)
	}
	if text := strings.Join(e.Sentences(), "; "); !strings.Contains(text, "the manifest's repository is deleted, and its rows are being removed") {
		t.Errorf("the explanation is %q", text)
	}
}

// The registry promises a client that a blob exists in acme/app. The client mounts the blob in
// acme/web, and acme/app is deleted. Garbage collection must keep the blob for the promised
// time.
func TestPromiseOutlivesRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	b.Put(t, "acme/web", catalogtest.Image(t, b.Push(t, "acme/web", "config"), nil, nil), "image")
	layer := oci.Compute(oci.SHA256, []byte("layer of acme/app"))
	b.Delays(t, "blob_upload")
	if _, err := b.PromiseBlobExists(t.Context(), "acme/app", layer); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Mount(t.Context(), "acme/web", "acme/app", layer); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := b.Trash.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	b.Drain(t, w)
	b.ReviewAll(t)
	b.Put(t, "acme/web", catalogtest.Image(t, b.Push(t, "acme/web", "config"), []oci.Digest{layer}, nil), "late")
	b.Whole(t, "acme/web", "late", layer)
}

// A client mounts a blob from a repository whose deletion isn't committed yet. The mount must
// not wait for the deletion, and the blob must stay in the repository in which it was mounted.
// After the deletion is committed, a mount from the deleted repository must find no blob.
func TestMountFromDyingRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	b.Listen(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	layer := oci.Compute(oci.SHA256, []byte("layer of acme/app"))
	del := b.Session(t)
	del.Exec(t, "BEGIN")
	del.Exec(t, "DELETE FROM repositories WHERE path = 'acme/app'")
	mounted := catalogtest.Later(func() error { _, err := b.Mount(t.Context(), "else/app", "acme/app", layer); return err })
	if err := catalogtest.Soon(t, "mount", mounted); err != nil {
		t.Fatal(err)
	}
	del.Exec(t, "COMMIT")
	if ok, err := b.Mount(t.Context(), "else/other", "acme/app", layer); err != nil || ok {
		t.Errorf("mounted from a repository that is gone: %v, %v", ok, err)
	}
	b.Drain(t, w)
	b.Put(t, "else/app", catalogtest.Image(t, b.Push(t, "else/app", "config"), []oci.Digest{layer}, nil), "image")
	b.ReviewAll(t)
	b.Whole(t, "else/app", "image", layer)
	b.Complete(t)
}

// A client pushes to acme/new while the namespace acme is being deleted: the push must wait,
// and then make a new namespace. If the push makes the repository first, the repository must
// be deleted with the old namespace.
func TestNewRepositoryInDyingNamespace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	del, watch := b.Session(t), b.Session(t)
	del.Exec(t, "BEGIN")
	del.Exec(t, "DELETE FROM top_level_namespaces WHERE name = 'acme'")
	put := catalogtest.Later(func() error { _, err := b.TryPush(t.Context(), "acme/new", "content"); return err })
	del.Blocks(t, watch, 1)
	del.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "push", put); err != nil {
		t.Fatal(err)
	}
	if _, err := b.BlobNow(t.Context(), "acme/new", oci.Compute(oci.SHA256, []byte("content"))); err != nil {
		t.Error(err)
	}

	first := b.Session(t)
	first.Exec(t, "BEGIN")
	first.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path)
		SELECT id, 'acme/other' FROM top_level_namespaces WHERE name = 'acme' FOR KEY SHARE`)
	deleted := catalogtest.Later(func() error { return b.Trash.DeleteNamespace(t.Context(), "acme") })
	first.Blocks(t, watch, 1)
	first.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
		t.Fatal(err)
	}
	b.Drain(t, w)
	b.NoOrphans(t)
	b.Empty(t, "repositories", "repository_blobs")
}

// A client restores a tag in a repository whose deletion isn't committed yet. The request must
// wait and then fail with NAME_UNKNOWN, and the tag must not exist.
func TestRestoreInDyingRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	w := b.LooseKeys(t, loosefk.Options{})
	img := b.Fill(t, "acme/app")
	del, watch := b.Session(t), b.Session(t)
	del.Exec(t, "BEGIN")
	del.Exec(t, "DELETE FROM repositories WHERE path = 'acme/app'")
	restored := catalogtest.Later(func() error { return b.RestoreTag(t.Context(), "acme/app", "again", img) })
	del.Blocks(t, watch, 1)
	del.Exec(t, "COMMIT")
	catalogtest.WantCode(t, catalogtest.Soon(t, "restore", restored), oci.NameUnknown)
	b.Drain(t, w)
	b.NoOrphans(t)
	b.Empty(t, "tags", "manifests")
}

// A client's put is refused because blobs are missing, after its repository was deleted. The
// put must not make the repository again, even if this process still has it in its cache.
func TestRefusedPutMakesNoRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	b.Fill(t, "acme/app")
	if _, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil { // fills the cache with the repository
		t.Fatal(err)
	}
	// Delete the repository as if this process did it: with its id in purser.replica, the
	// triggers don't notify it.
	var id string
	if err := b.DB.Pool.QueryRow(t.Context(), "SELECT id FROM replicas").Scan(&id); err != nil {
		t.Fatal(err)
	}
	silent := b.Session(t)
	silent.Exec(t, "SELECT set_config('purser.replica', $1, false)", id)
	silent.Exec(t, "DELETE FROM repositories WHERE path = 'acme/app'")
	config, layer := oci.Compute(oci.SHA256, []byte("config")), oci.Compute(oci.SHA256, []byte("layer of acme/app"))
	_, err := b.TryPut(t.Context(), "acme/app", catalogtest.Numbered(t, 7, config, layer), "late")
	catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
	if n := b.Rows(t, "repositories"); n != 0 {
		t.Error("the repository is back, and empty")
	}
}

// A client puts a manifest while its repository, or its namespace, is being deleted. The put
// must make a new repository.
func TestPutDuringDeletion(t *testing.T) {
	t.Parallel()
	for what, sql := range map[string]string{
		"repository": "DELETE FROM repositories WHERE path = 'acme/app'",
		"namespace":  "DELETE FROM top_level_namespaces WHERE name = 'acme'",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.AtOnce(t)
			b.Listen(t)
			w := b.LooseKeys(t, loosefk.Options{})
			img := b.Fill(t, "acme/app")
			del, watch := b.Session(t), b.Session(t)
			del.Exec(t, "BEGIN")
			del.Exec(t, sql)
			artifact := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[]}`, oci.MediaTypeImageIndex)
			put := catalogtest.Later(func() error { _, err := b.TryPut(t.Context(), "acme/app", artifact, "new"); return err })
			del.Blocks(t, watch, 1)
			del.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "put", put); err != nil {
				t.Fatal(err)
			}
			if tags, _, err := b.Tags(t.Context(), "acme/app", "", 10); err != nil || fmt.Sprint(tags) != "[new]" {
				t.Errorf("the new repository has tags %v (%v), want new", tags, err)
			}
			_, err := b.ManifestByDigest(t.Context(), "acme/app", img)
			catalogtest.WantCode(t, err, oci.ManifestUnknown)
			b.Drain(t, w)
			b.NoOrphans(t)
			b.Whole(t, "acme/app", "new")
		})
	}
}

// A client has begun an upload to a repository that is then deleted. The upload must be
// cancelled: no request can continue it, and the reaper deletes it whatever its age.
func TestUploadOfDeletedRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	u := b.Begun(t, "acme/app")
	u, err := b.SaveUpload(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := b.ReapUploads(t.Context(), time.Hour, 10); err != nil || n != 0 {
		t.Errorf("%d uploads were reaped (%v)", n, err)
	}
	if err := b.Trash.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	b.Drain(t, w)
	_, err = b.Upload(t.Context(), "acme/app", u.UploadID())
	catalogtest.WantCode(t, err, oci.BlobUploadUnknown)
	_, err = b.ClaimUpload(t.Context(), u, 1, catalog.UploadNeed{})
	catalogtest.WantCode(t, err, oci.BlobUploadInvalid)
	_, err = b.SaveUpload(t.Context(), u)
	catalogtest.WantCode(t, err, oci.BlobUploadInvalid)
	catalogtest.WantCode(t, b.Commit(u, "content"), oci.BlobUploadInvalid)
	if n, err := b.ReapUploads(t.Context(), time.Hour, 10); err != nil || n != 1 {
		t.Errorf("%d uploads were reaped (%v), want 1", n, err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE storage_key = $1 AND of_upload", u.StorageKey); n != 1 {
		t.Error("the upload's objects aren't doomed")
	}
}
