package gc_test

import (
	"context"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

func TestRestoreTag(t *testing.T) { catalogtest.AtBoth(t, testRestoreTag) }

func testRestoreTag(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Listen(t)
	config := b.Push(t, "a/b/c", "config")
	one := b.Put(t, "a/b/c", catalogtest.Image(t, config, nil, nil), "v1")
	two := b.Put(t, "a/b/c", catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": "2"}}), "v2")
	points := func(tag string, want oci.Digest) {
		t.Helper()
		if m, err := b.ManifestByTag(t.Context(), "a/b/c", tag); err != nil || m.Digest != want {
			t.Errorf("tag %s: %v, %v; want %s", tag, m, err, want)
		}
	}
	for _, tag := range []string{"v1", "v2"} {
		if _, err := b.ManifestByTag(t.Context(), "a/b/c", tag); err != nil { // cached from now on
			t.Fatal(err)
		}
	}
	if err := b.DeleteTag(t.Context(), "a/b/c", "v1"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it changes nothing
		if err := b.RestoreTag(t.Context(), "a/b/c", "v1", one); err != nil {
			t.Fatal(err)
		}
		points("v1", one)
	}
	if err := b.RestoreTag(t.Context(), "a/b/c", "v2", one); err != nil {
		t.Fatal(err)
	}
	points("v2", one)
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 || out.Kept != 1 {
		t.Errorf("review: %+v; want the restored manifest kept and the one that lost its tag deleted", out)
	}

	catalogtest.WantCode(t, b.RestoreTag(t.Context(), "a/b/c", "v2", two), oci.ManifestUnknown)
	catalogtest.WantCode(t, b.RestoreTag(t.Context(), "a/b", "v2", one), oci.NameUnknown)
	if n := b.Rows(t, "repositories"); n != 1 {
		t.Errorf("%d repositories; a restore that fails made one", n)
	}
	points("v2", one)
}

// A client restores a tag in one repository to a manifest that only another repository has.
// The restore must fail.
func TestRestoreTagLooksInTheRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "other", "config")
	d := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil), "v1")
	catalogtest.WantCode(t, b.RestoreTag(t.Context(), "other", "v1", d), oci.ManifestUnknown)
	if n := b.Rows(t, "tags"); n != 1 {
		t.Errorf("%d tags, want 1", n)
	}
}

// A client restores a tag after a review has locked the tag's former manifest to delete it.
// The restore must wait for the review and fail with MANIFEST_UNKNOWN. The test fails if
// the restore returns the error of the violated foreign key instead.
func TestRestoreTagAfterReviewHasLocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "v1")
	if err := b.DeleteTag(t.Context(), "r", "v1"); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	review, watch := b.pausing(t, ofManifests()), b.Session(t)
	review.to(t, beforeDelete)
	restored := catalogtest.Later(func() error { return b.RestoreTag(context.Background(), "r", "v1", d) })
	review.blocks(t, watch, 1)
	if out := review.ended(t); out.Deleted != 1 {
		t.Fatalf("review: %+v; want the manifest deleted", out)
	}
	catalogtest.WantCode(t, catalogtest.Soon(t, "restoring", restored), oci.ManifestUnknown)
	if n := b.Rows(t, "tags") + b.Rows(t, "manifests"); n != 0 {
		t.Errorf("%d tags and manifests are left, want none", n)
	}
}

// A client is restoring a tag and has locked the tag's former manifest, when a review of
// this manifest comes. The review must postpone the manifest, and the next review must find
// it in use. The test fails if the restore doesn't lock the manifest before it writes the
// tag, but only checks that it exists.
func TestRestoreTagBeforeReviewLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	d := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "v1") // the tag is elsewhere now
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags WHERE name = 'v1' FOR UPDATE")
	restored := catalogtest.Later(func() error { return b.RestoreTag(context.Background(), "r", "v1", d) })
	x.Blocks(t, watch, 1) // the restore has locked the manifest, and waits for the tag's row
	if out := b.ReviewBatch(t, reviewingManifests); out.Postponed != 1 || out.Deleted != 0 {
		t.Fatalf("review: %+v; want the manifest left to who restores", out)
	}
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "restoring", restored); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	b.ReviewAll(t)
	if m, err := b.ManifestByTag(t.Context(), "r", "v1"); err != nil || m.Digest != d {
		t.Errorf("v1 is %v, %v; want %s", m, err, d)
	}
	for _, blob := range []oci.Digest{config, layer} {
		if _, err := b.Blob(t.Context(), "r", blob); err != nil {
			t.Errorf("the restored manifest isn't whole: %v", err)
		}
	}
}
