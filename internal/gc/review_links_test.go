package gc_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// wide pushes a layer that one repository uses, and inserts links to it from n further
// repositories in which no manifest uses it. It returns the layer's digest.
func (b bundle) wide(t *testing.T, n int) oci.Digest {
	t.Helper()
	config, layer := b.Push(t, "uses/it", "config"), b.Push(t, "uses/it", "base layer")
	b.Put(t, "uses/it", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	b.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path)
		SELECT id, 'uses/r' || i FROM top_level_namespaces, generate_series(1, $1::int) i`, n)
	b.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT top_level_namespace_id, id, $1 FROM repositories ON CONFLICT DO NOTHING`, layer.Bytes())
	b.DueNow(t)
	return layer
}

func TestLinksOfABaseLayerAreRemovedInPages(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		b := replica(t, dsn)
		layer := b.wide(t, 6000) // more than a page
		out := b.ReviewBatch(t, gc.ReviewOfBlobs)
		if out.Kept != 2 || out.Links != 0 || len(out.ManyLinked) != 1 {
			t.Fatalf("review: %+v; want the layer's links left to later", out)
		}
		n, err := b.UnlinkInPages(t.Context(), out.ManyLinked[0])
		if err != nil || n != 6000 {
			t.Errorf("%d links removed, %v; want 6000", n, err)
		}
		if !b.Linked(t, "uses/it", layer) {
			t.Error("the link that is used is gone")
		}
		if n := b.Rows(t, "gc_blob_review_queue"); n != 0 {
			t.Errorf("%d rows are left in the queue", n)
		}
	})
}

// A review has found a blob with so many links that it left their removal to UnlinkInPages.
// Before UnlinkInPages runs, a client asks whether the blob exists. UnlinkInPages must remove
// no link, and the blob's row in gc_blob_review_queue must stay.
func TestPromiseStopsTheRemovalOfLinks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	layer := b.wide(t, 1500)
	out := b.ReviewBatch(t, gc.ReviewOfBlobs)
	if len(out.ManyLinked) != 1 {
		t.Fatalf("review: %+v", out)
	}
	if _, err := b.PromiseBlobExists(t.Context(), "uses/r7", layer); err != nil {
		t.Fatal(err)
	}
	if n, err := b.UnlinkInPages(t.Context(), out.ManyLinked[0]); n != 0 || err != nil {
		t.Errorf("%d links removed, %v; want none", n, err)
	}
	if !b.Linked(t, "uses/r7", layer) {
		t.Error("the link that was promised is gone")
	}
	if n := b.Rows(t, "gc_blob_review_queue"); n != 1 {
		t.Errorf("%d rows in the queue, want the promise", n)
	}
}
