package catalog_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// bundle is a catalog on a database that belongs to one test, with a garbage collector.
type bundle struct{ catalogtest.Bundle }

func setup(t *testing.T) bundle {
	t.Helper()
	return bundle{catalogtest.Setup(t)}
}

// replica opens another catalog on the database dsn, as another process of the registry would.
func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	return bundle{catalogtest.Replica(t, dsn)}
}

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestPushAndPull(t *testing.T) { catalogtest.AlwaysAtBoth(t, testPushAndPull) }

func testPushAndPull(t *testing.T, dsn string) {
	b := replica(t, dsn)
	ctx := t.Context()
	config, layer := b.Push(t, "a/b/c", "config"), b.Push(t, "a/b/c", "layer")
	payload := catalogtest.Image(t, config, []oci.Digest{layer, layer}, nil)
	d := b.Put(t, "a/b/c", payload, "v1", "latest")

	for _, get := range []func() (*catalog.Manifest, error){
		func() (*catalog.Manifest, error) { return b.ManifestByTag(ctx, "a/b/c", "v1") },
		func() (*catalog.Manifest, error) { return b.ManifestByDigest(ctx, "a/b/c", d) },
		func() (*catalog.Manifest, error) { return b.PromiseManifestExists(ctx, "a/b/c", d) },
	} {
		m, err := get()
		if err != nil {
			t.Fatal(err)
		}
		if m.Digest != d || string(m.Payload) != string(payload) || m.MediaType != oci.MediaTypeImageManifest {
			t.Errorf("got %+v", m)
		}
	}
	bl, err := b.PromiseBlobExists(ctx, "a/b/c", layer)
	if err != nil || bl.Size != 5 {
		t.Errorf("blob %+v, %v", bl, err)
	}
	tags, more, err := b.Tags(ctx, "a/b/c", "", 10)
	if err != nil || more || fmt.Sprint(tags) != "[latest v1]" {
		t.Errorf("tags %v, %v, %v", tags, more, err)
	}
	if n := b.Count(t, "SELECT count(*) FROM layers"); n != 1 {
		t.Errorf("%d layers, want the repeated one once", n)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE event = 'manifest_upload'"); n != 1 {
		t.Errorf("%d manifests in review, want the one promised by digest", n)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.Push(t, "known", "x")
	d := oci.Compute(oci.SHA256, []byte("nowhere"))
	for path, codes := range map[string][2]oci.Code{
		"known":   {oci.ManifestUnknown, oci.BlobUnknown},
		"unknown": {oci.NameUnknown, oci.NameUnknown},
	} {
		_, err := b.ManifestByTag(ctx, path, "t")
		catalogtest.WantCode(t, err, codes[0])
		_, err = b.ManifestByDigest(ctx, path, d)
		catalogtest.WantCode(t, err, codes[0])
		_, err = b.PromiseManifestExists(ctx, path, d)
		catalogtest.WantCode(t, err, codes[0])
		catalogtest.WantCode(t, b.DeleteTag(ctx, path, "t"), codes[0])
		catalogtest.WantCode(t, b.DeleteManifest(ctx, path, d), codes[0])
		_, err = b.Blob(ctx, path, d)
		catalogtest.WantCode(t, err, codes[1])
		_, err = b.PromiseBlobExists(ctx, path, d)
		catalogtest.WantCode(t, err, codes[1])
		catalogtest.WantCode(t, b.DeleteBlob(ctx, path, d), codes[1])
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE event <> 'blob_upload'"); n != 0 {
		t.Errorf("%d blobs in review that nobody has", n)
	}
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	d := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")

	check := func(what string, want int64, f func(ctx context.Context) error) {
		t.Helper()
		ctx, n := db.WithCounter(t.Context())
		if err := f(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n.Count() != want {
			t.Errorf("%s: %d round trips, want %d", what, n.Count(), want)
		}
	}
	reads := map[string]func(ctx context.Context) error{
		"manifest by tag":    func(ctx context.Context) error { _, err := b.ManifestByTag(ctx, "r", "v1"); return err },
		"manifest by digest": func(ctx context.Context) error { _, err := b.ManifestByDigest(ctx, "r", d); return err },
		"GET blob":           func(ctx context.Context) error { _, err := b.Blob(ctx, "r", layer); return err },
		"HEAD blob":          func(ctx context.Context) error { _, err := b.PromiseBlobExists(ctx, "r", layer); return err },
	}
	for what, f := range reads {
		check(what, 1, f)
	}
	b.Listen(t)
	for what, f := range reads {
		if err := f(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(what+", cached", 0, f)
	}
	put := func(n string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.TryPut(ctx, "r", catalogtest.Image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": n}}), "v2")
			return err
		}
	}
	check("put of a new manifest to a repository not seen before", 2, put("2"))
	check("put of a new manifest", 1, put("3"))
	check("put of a known manifest", 2, put("3"))
	check("upload of a new blob: start, commit", 2, func(ctx context.Context) error {
		_, err := b.TryPush(ctx, "r", "another layer")
		return err
	})
	check("deletion of a manifest, with its repository", 2, func(ctx context.Context) error {
		return b.DeleteManifest(ctx, "r", oci.Compute(oci.SHA256, catalogtest.Image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": "3"}})))
	})
}
