package catalog_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// row returns a blob's row.
func (b bundle) row(t *testing.T, d oci.Digest) catalog.StoredBlob {
	t.Helper()
	o, there, err := b.StoredBlob(t.Context(), d)
	if err != nil || !there {
		t.Fatalf("blob %s: %v, %v", d, there, err)
	}
	return o
}

// lose marks a blob as lost.
func (b bundle) lose(t *testing.T, d oci.Digest) {
	t.Helper()
	marked, err := b.MarkLost(t.Context(), []catalog.StoredBlob{b.row(t, d)})
	if err != nil || !marked[d] {
		t.Fatalf("marked: %v, %v", marked, err)
	}
}

// doomedKeys lists the storage keys of the pending deletions, sorted. It shows a pending
// deletion of all objects of an upload, whose keys begin with BASE, as "BASE*", and as "BASE*
// but KEY" if the object KEY is to be kept.
func (b bundle) doomedKeys(t *testing.T) []string {
	t.Helper()
	var keys []string
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT COALESCE(array_agg(k ORDER BY k), '{}') FROM (
		SELECT storage_key || CASE WHEN of_upload THEN '*' ELSE '' END || COALESCE(' but ' || keep, '') AS k
		FROM gc_doomed_objects) d`).Scan(&keys); err != nil {
		t.Fatal(err)
	}
	return keys
}

// The registry must tell clients that a lost blob doesn't exist, until a client pushes it
// again. Then every repository that had the blob must have it again.
func TestLostBlob(t *testing.T) { catalogtest.AtBoth(t, testLostBlob) }

func testLostBlob(t *testing.T, dsn string) {
	b := replica(t, dsn)
	ctx := t.Context()
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Push(t, "other", "layer")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	b.Put(t, "r", payload, "v1")
	old := b.row(t, layer)
	b.Exec(t, "DELETE FROM gc_doomed_objects")
	b.lose(t, layer)

	_, err := b.Blob(ctx, "r", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	_, err = b.BlobNow(ctx, "r", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	_, err = b.PromiseBlobExists(ctx, "r", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	if mounted, err := b.Mount(ctx, "third", "r", layer); err != nil || mounted {
		t.Errorf("mounted: %v, %v", mounted, err)
	}
	for what, payload := range map[string][]byte{
		"known": payload, "new": catalogtest.Image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": "2"}}),
		"configuration": catalogtest.Image(t, layer, nil, nil),
	} {
		_, err = b.TryPut(ctx, "r", payload, "v2")
		catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
		if !strings.Contains(err.Error(), layer.String()) || strings.Contains(err.Error(), config.String()) {
			t.Errorf("%s manifest: %v, want the lost blob named and no other", what, err)
		}
	}
	if _, err := b.ManifestByTag(ctx, "r", "v1"); err != nil {
		t.Errorf("the manifest isn't lost: %v", err)
	}

	b.Push(t, "third", "layer")
	now := b.row(t, layer)
	if now.Key == old.Key || now.Lost || now.Size != 5 {
		t.Errorf("%+v after the push, was %+v", now, old)
	}
	if got := b.doomedKeys(t); !slices.Equal(got, []string{old.Key}) {
		t.Errorf("doomed: %q, want the old object %s", got, old.Key)
	}
	for _, path := range []string{"r", "other", "third"} {
		if got, err := b.PromiseBlobExists(ctx, path, layer); err != nil || got.StorageKey != now.Key {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	if _, err := b.TryPut(ctx, "r", payload, "v2"); err != nil {
		t.Error(err)
	}
	b.Owned(t)
}

// A client pushes a lost blob, and the blob gets the object of this upload. The upload's other
// objects must be recorded for deletion. The blob's former object must not be recorded, since
// it is a file of another registry.
func TestLostBlobTakesTheObjectAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	const foreign = "docker/registry/v2/blobs/sha256/ab/data"
	b.Exec(t, "UPDATE blobs SET storage_key = $1, size = 3", foreign)
	b.lose(t, d)
	u := b.Begun(t, "r")
	u.Size = 5
	key := u.StorageKey + "-7"
	if err := b.CommitUpload(t.Context(), u, d, key, true); err != nil {
		t.Fatal(err)
	}
	if now := b.row(t, d); now.Key != key || now.Size != 5 || now.Lost {
		t.Errorf("%+v, want the new object %s", now, key)
	}
	if got, want := b.doomedKeys(t), []string{u.StorageKey + "* but " + key}; !slices.Equal(got, want) {
		t.Errorf("doomed: %q, want %q", got, want)
	}
	// The first commit has deleted the upload's row, so a second commit of the same upload
	// must fail.
	catalogtest.WantCode(t, b.CommitUpload(t.Context(), u, d, key, true), oci.BlobUploadInvalid)
}

// A client pushes a lost blob, and a newer request takes over the upload before the first
// request commits it. The commit must fail, and the blob must not get the upload's object.
func TestLostBlobRefusesAStalledUpload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.lose(t, d)
	before := b.row(t, d)
	u := b.Begun(t, "r")
	if _, err := b.ClaimUpload(t.Context(), u, 1, catalog.UploadNeed{}); err != nil {
		t.Fatal(err)
	}
	catalogtest.WantCode(t, b.CommitUpload(t.Context(), u, d, u.StorageKey+"-7", false), oci.BlobUploadInvalid)
	if now := b.row(t, d); now != before {
		t.Errorf("%+v, was %+v", now, before)
	}
	if got := b.doomedKeys(t); len(got) != 0 {
		t.Errorf("doomed: %q", got)
	}
}

// MarkLost and MarkFound must skip a blob whose row names another object than the one that was
// checked. MarkLost must also skip a blob that is marked already, and MarkFound a blob that
// isn't marked.
func TestMarkComparesTheObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	d, other := b.Push(t, "r", "layer"), b.Push(t, "r", "other")
	seen := []catalog.StoredBlob{b.row(t, d), b.row(t, other)}
	stale := seen[0]
	stale.Key = blob.NewBase() + "-0"
	for _, mark := range []func(context.Context, []catalog.StoredBlob) (map[oci.Digest]bool, error){b.MarkLost, b.MarkFound} {
		if marked, err := mark(ctx, []catalog.StoredBlob{stale}); err != nil || len(marked) != 0 {
			t.Errorf("marked by an object that it hasn't: %v, %v", marked, err)
		}
		if marked, err := mark(ctx, seen); err != nil || len(marked) != 2 {
			t.Errorf("marked: %v, %v", marked, err)
		}
		if marked, err := mark(ctx, seen); err != nil || len(marked) != 0 {
			t.Errorf("marked twice: %v, %v", marked, err)
		}
	}
	if b.row(t, d).Lost || b.row(t, other).Lost {
		t.Error("still lost")
	}
	if _, err := b.Blob(ctx, "r", d); err != nil {
		t.Error(err)
	}
}

// MarkLost must notify the caches of every process, including the one that calls it, since a
// server's own catalog may run a check of the store.
func TestMarksReachCaches(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	b := replica(t, dsn)
	server := bundle{catalogtest.Bundle{Catalog: catalog.New(catalog.Options{DB: b.DB, Background: dbtest.Open(t, dsn), Log: slog.New(slog.DiscardHandler)}), DB: b.DB}}
	ctx := t.Context()
	d := b.Push(t, "r", "layer")
	b.Push(t, "other", "layer")
	b.Listen(t)
	for range 3 {
		catalogtest.Eventually(t, "the blob is in the cache", func() bool {
			return cached(t, func(ctx context.Context) error { _, err := b.PromiseBlobExists(ctx, "r", d); return err }) &&
				cached(t, func(ctx context.Context) error { _, err := b.Blob(ctx, "other", d); return err })
		})
		server.lose(t, d)
		for _, path := range []string{"r", "other"} {
			catalogtest.Eventually(t, path+" hears that the blob is lost", func() bool {
				_, err := b.PromiseBlobExists(ctx, path, d)
				return oci.CodeOf(err) == oci.BlobUnknown
			})
		}
		if marked, err := server.MarkFound(ctx, []catalog.StoredBlob{b.row(t, d)}); err != nil || len(marked) != 1 {
			t.Fatal(marked, err)
		}
	}
}

// An ordinary push must not update any row of the table blobs, so that it never fires the
// triggers on such updates, which notify other processes.
func TestPushesUpdateNoBlob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(t, `CREATE FUNCTION complain () RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a push updates blobs'; END; $$;
		CREATE TRIGGER complain AFTER UPDATE ON blobs FOR EACH STATEMENT EXECUTE FUNCTION complain()`)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Push(t, "r", "layer")
	b.Push(t, "other", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	if ok, err := b.Mount(t.Context(), "third", "r", layer); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := b.MarkLost(t.Context(), []catalog.StoredBlob{b.row(t, layer)}); err == nil {
		t.Error("the trigger says nothing when a blob is updated")
	}
}
