package gc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// If a blob has fewLinks links, a review checks the links itself. If it has manyLinks, the
// review leaves them to UnlinkInPages, which removes unused links in several transactions.
const fewLinks, manyLinks = 900, 10_000

// linkFrom inserts links from n repositories to the blob with the digest d. The
// repositories have the ids from `first` on, and no other content.
func (b bundle) linkFrom(t *testing.T, d oci.Digest, first, n int) {
	t.Helper()
	b.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT i % 100, i, $1 FROM generate_series($2::bigint, $2::bigint + $3 - 1) i`, d.Bytes(), first, n)
}

// reviewLinks reviews a batch of blobs as a reviewer does: for blobs with many links it
// calls UnlinkInPages. It returns the number of links that were removed.
func (b bundle) reviewLinks(t *testing.T) int {
	t.Helper()
	out := b.ReviewBatch(t, reviewingBlobs)
	removed := out.Links
	for _, w := range out.ManyLinked {
		n, err := b.UnlinkInPages(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		removed += n
	}
	return removed
}

// The blobs of one batch have 2,700 unused links together, more than a batch removes. Later
// reviews must remove the rest. The test fails if a review drops the queue rows of blobs
// whose links it hasn't read.
func TestRaceManyLinks(t *testing.T) { catalogtest.AtBoth(t, testRaceManyLinks) }

func testRaceManyLinks(t *testing.T, dsn string) {
	b := replica(t, dsn)
	var blobs []oci.Digest
	for _, content := range []string{"one", "two", "three"} {
		blobs = append(blobs, b.Push(t, "r", content))
	}
	b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), blobs, nil), "t")
	for i, d := range blobs {
		b.linkFrom(t, d, 1000*(i+1), fewLinks)
	}
	removed := 0
	for range 5 {
		b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now()")
		removed += b.reviewLinks(t)
	}
	if removed != 3*fewLinks || b.Rows(t, "repository_blobs") != 4 {
		t.Errorf("%d links were removed and %d are left, want %d and 4", removed, b.Rows(t, "repository_blobs"), 3*fewLinks)
	}
	b.Empty(t, "gc_blob_review_queue")
}

// 10,000 repositories have a link to a blob that only one other repository uses. Reviews
// must remove these unused links. Then the test inserts the links again and deletes the
// manifest that uses the blob. A review must delete the blob with all its links.
func TestRaceManyLinkedBlob(t *testing.T) { catalogtest.AtBoth(t, testRaceManyLinkedBlob) }

func testRaceManyLinkedBlob(t *testing.T, dsn string) {
	b := replica(t, dsn)
	wide := b.Push(t, "r", "wide")
	d := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), []oci.Digest{wide}, nil), "t")
	b.linkFrom(t, wide, 1000, manyLinks)
	b.DueNow(t)
	if n := b.reviewLinks(t); n != manyLinks || b.Rows(t, "repository_blobs") != 2 {
		t.Errorf("%d links were removed and %d are left, want %d and 2", n, b.Rows(t, "repository_blobs"), manyLinks)
	}
	b.Empty(t, "gc_blob_review_queue")

	b.linkFrom(t, wide, 1000, manyLinks)
	if err := b.DeleteManifest(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	start := time.Now()
	if out := b.ReviewBatch(t, reviewingBlobs); out.Deleted != 2 {
		t.Errorf("review: %+v; want the blobs deleted with all their links", out)
	}
	t.Logf("a blob with %d links was deleted in %v", manyLinks, time.Since(start))
	b.Nothing(t)
}

// A blob has so many links that a review leaves them to UnlinkInPages. Before UnlinkInPages
// removes links, or after its first transaction, a client mounts the blob, asks whether it
// exists, or deletes the manifest that uses it. UnlinkInPages must then stop. It must leave
// the links that it hasn't removed yet, and the blob's row in gc_blob_review_queue. The
// test fails if a transaction of UnlinkInPages doesn't check that the row is as the review
// left it.
func TestRaceManyLinkedBlobIsPromised(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(b bundle, d, manifest oci.Digest) error{
		"asked for": func(b bundle, d, _ oci.Digest) error {
			_, err := b.PromiseBlobExists(context.Background(), "r", d)
			return err
		},
		"mounted": func(b bundle, d, _ oci.Digest) error {
			_, err := b.Mount(context.Background(), "other", "r", d)
			return err
		},
		"freed": func(b bundle, _, manifest oci.Digest) error {
			return b.DeleteManifest(context.Background(), "r", manifest)
		},
	} {
		for _, page := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s before page %d", what, page), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				wide := b.Push(t, "r", "wide")
				manifest := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), []oci.Digest{wide}, nil), "t")
				b.linkFrom(t, wide, 1000, manyLinks)
				b.DueNow(t)
				out := b.ReviewBatch(t, reviewingBlobs)
				if len(out.ManyLinked) != 1 {
					t.Fatalf("review: %+v; want one blob with many links", out)
				}
				var removed int
				p := b.pausingAt(t, func(ctx context.Context, c *gc.Collector) (r gc.Review, err error) {
					removed, err = c.UnlinkInPages(ctx, out.ManyLinked[0])
					return r, err
				})
				for range page {
					p.to(t, `^begin`)
				}
				if err := do(b, wide, manifest); err != nil {
					t.Fatal(err)
				}
				p.ended(t)
				if removed != 0 && page == 1 || removed == manyLinks {
					t.Errorf("%d links were removed", removed)
				}
				if n := b.Count(t, `SELECT count(*) FROM gc_blob_review_queue
						WHERE digest = $1 AND review_after > now() + interval '23 hours'`, wide.Bytes()); n != 1 {
					t.Error("the row isn't as the client left it")
				}
			})
		}
	}
}

// UnlinkInPages removes the unused links of a blob, among them the links of three
// repositories. Repository "look": a client puts a manifest with the blob before
// UnlinkInPages locks the link, so the link must stay. Repository "lock": a client puts
// such a manifest after UnlinkInPages has locked the link; the put must wait and be
// refused. Repository "held": another transaction has locked the link from the start, so
// the link and the blob's row in gc_blob_review_queue must stay.
func TestRaceManyLinkedBlobIsUsed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, wide := b.Push(t, "r", "config"), b.Push(t, "r", "wide")
	payload := catalogtest.Image(t, config, []oci.Digest{wide}, nil)
	b.Put(t, "r", payload, "t")
	for _, path := range []string{"look", "lock", "held"} {
		b.Push(t, path, "config")
		b.Push(t, path, "wide")
	}
	b.linkFrom(t, wide, 1000, manyLinks)
	b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() WHERE digest = $1", wide.Bytes())
	out := b.ReviewBatch(t, reviewingBlobs)
	if len(out.ManyLinked) != 1 {
		t.Fatalf("review: %+v; want one blob with many links", out)
	}
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, `SELECT FROM repository_blobs rb, repositories r WHERE r.path = 'held' AND rb.repository_id = r.id FOR KEY SHARE OF rb`)
	p := b.pausingAt(t, func(ctx context.Context, c *gc.Collector) (r gc.Review, err error) {
		r.Links, err = c.UnlinkInPages(ctx, out.ManyLinked[0])
		return r, err
	})
	p.to(t, beforeLinkLock)
	b.Put(t, "look", payload, "t")
	p.to(t, beforeLinkDelete)
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "lock", payload, "t"); return err })
	p.blocks(t, watch, 1)
	if out := p.ended(t); out.Links != manyLinks+1 {
		t.Errorf("%d links were removed, want %d", out.Links, manyLinks+1)
	}
	catalogtest.WantCode(t, catalogtest.Soon(t, "put", put), oci.ManifestBlobUnknown)
	b.Whole(t, "look", "t", config, wide)
	if got := b.queued(t, wide); got == "" || !b.Linked(t, "held", wide) {
		t.Errorf("in review: %q; want the blob there, since a link of it was held", got)
	}
}
