package management_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// stored returns the bytes of all blobs.
func (r *registry) stored(t *testing.T) (bytes int64) {
	t.Helper()
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT COALESCE(sum(size), 0) FROM blobs").Scan(&bytes); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// collect lets garbage collection delete all that it may.
func (r *registry) collect(t *testing.T) {
	t.Helper()
	c := gc.New(gc.Options{Catalog: r.Catalog, DB: r.DB})
	for claimed := 1; claimed > 0; {
		claimed = 0
		r.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now() - interval '1 s'")
		r.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() - interval '1 s'")
		for _, kind := range []gc.ReviewKind{gc.ReviewOfManifests, gc.ReviewOfBlobs} {
			out, err := c.Review(t.Context(), gc.ReviewOptions{Kind: kind, Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			claimed += out.Claimed
		}
	}
}

// TestFreedIsWhatThePreviewPromised: the image of a tag that is pruned shares layers with images that
// lost their tags before, in its repository and in another, with an image of an index without a tag,
// and with an image that stays. After a run and garbage collection, as many bytes must be free as the
// preview has promised, besides those that only the images without tags have.
func TestFreedIsWhatThePreviewPromised(t *testing.T) {
	t.Parallel()
	r, p := pruning(t)
	layer := func(repository, name string, size int) oci.Digest {
		return r.Push(t, repository, strings.Repeat(name, size))
	}
	image := func(repository, n string, layers ...oci.Digest) string {
		return servertest.Image(t, r.Push(t, repository, "{}"), layers, servertest.Object{"annotations": map[string]string{"n": n}})
	}
	app, other := "acme/app", "elsewhere/app"
	own, lost, moved, child, far, kept := layer(app, "o", 1), layer(app, "l", 10), layer(app, "m", 100), layer(app, "c", 1000), layer(app, "f", 10_000), layer(app, "k", 100_000)
	alone := layer(app, "a", 1_000_000) // of an image without a tag
	r.Put(t, app, "old", image(app, "old", own, lost, moved, child, far, kept))
	r.Put(t, app, servertest.Digest(image(app, "by digest", lost, alone)).String(), image(app, "by digest", lost, alone))
	r.Put(t, app, "new", image(app, "moved", moved))
	listed := image(app, "listed", child)
	r.Put(t, app, servertest.Digest(listed).String(), listed)
	index := servertest.Index(t, servertest.Digest(listed))
	r.Put(t, app, servertest.Digest(index).String(), index)
	layer(other, "f", 10_000)
	elsewhere := image(other, "elsewhere", far)
	r.Put(t, other, servertest.Digest(elsewhere).String(), elsewhere)
	r.Put(t, app, "new", image(app, "new", kept))

	var preview struct {
		Deleted int64  `json:"tags_deleted"`
		Freed   *int64 `json:"bytes_freed"`
	}
	policy := `{"method": "number_of_tags", "numTags": 1}`
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy/preview", policy).Into(t, 200, &preview)
	if preview.Deleted != 1 || preview.Freed == nil || *preview.Freed != 11_111 {
		t.Errorf("the preview: %+v, want 11111 bytes", preview)
	}
	promised := *preview.Freed
	preview.Freed = nil
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy/preview?tags_only=true", policy).Into(t, 200, &preview)
	if preview.Deleted != 1 || preview.Freed != nil {
		t.Errorf("the preview of tags alone: %+v", preview)
	}
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy", policy).WantStatus(t, 201)
	before := r.stored(t)
	background(t, p.Run)
	eventually(t, "a run", func() bool { return r.tags(t, app) == 1 })
	r.collect(t)
	if freed := before - r.stored(t); freed != promised+1_000_000 {
		t.Errorf("%d bytes are free, %d were promised, and 1000000 more are of images without a tag", freed, promised)
	}
}

// tags returns the number of tags of a repository.
func (r *registry) tags(t *testing.T, path string) (n int) {
	t.Helper()
	err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tags t JOIN repositories r ON r.id = t.repository_id WHERE r.path = $1", path).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
