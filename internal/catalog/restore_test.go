package catalog_test

import (
	"context"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

func TestRestoreTag(t *testing.T) { atBoth(t, testRestoreTag) }

func testRestoreTag(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.listen(t)
	config := b.push(t, "a/b/c", "config")
	one := b.put(t, "a/b/c", image(t, config, nil, nil), "v1")
	two := b.put(t, "a/b/c", image(t, config, nil, map[string]any{"annotations": map[string]string{"n": "2"}}), "v2")
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
	b.dueNow(t)
	if out := b.review(t, reviewingManifests); out.Deleted != 1 || out.Kept != 1 {
		t.Errorf("review: %+v; want the restored manifest kept and the one that lost its tag deleted", out)
	}

	wantCode(t, b.RestoreTag(t.Context(), "a/b/c", "v2", two), oci.ManifestUnknown)
	wantCode(t, b.RestoreTag(t.Context(), "a/b", "v2", one), oci.NameUnknown)
	if n := b.rows(t, "repositories"); n != 1 {
		t.Errorf("%d repositories; a restore that fails made one", n)
	}
	points("v2", one)
}

// A tag can't be restored to a manifest of another repository, even the same content.
func TestRestoreTagLooksInTheRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push(t, "other", "config")
	d := b.put(t, "r", image(t, b.push(t, "r", "config"), nil, nil), "v1")
	wantCode(t, b.RestoreTag(t.Context(), "other", "v1", d), oci.ManifestUnknown)
	if n := b.rows(t, "tags"); n != 1 {
		t.Errorf("%d tags, want 1", n)
	}
}

// A review that has locked the manifest deletes it; the restore waits for that, and fails
// with MANIFEST_UNKNOWN. Fails if the restore returns the lost race, a foreign key error, as
// its answer.
func TestRestoreTagAfterReviewHasLocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.push(t, "r", "config")
	d := b.put(t, "r", image(t, config, nil, nil), "v1")
	if err := b.DeleteTag(t.Context(), "r", "v1"); err != nil {
		t.Fatal(err)
	}
	b.dueNow(t)
	review, watch := b.pausing(t, ofManifests()), b.session(t)
	review.to(t, beforeDelete)
	restored := later(func() error { return b.RestoreTag(context.Background(), "r", "v1", d) })
	review.blocks(t, watch, 1)
	if out := review.ended(t); out.Deleted != 1 {
		t.Fatalf("review: %+v; want the manifest deleted", out)
	}
	wantCode(t, soon(t, "restoring", restored), oci.ManifestUnknown)
	if n := b.rows(t, "tags") + b.rows(t, "manifests"); n != 0 {
		t.Errorf("%d tags and manifests are left, want none", n)
	}
}

// A review that comes while the tag is being restored skips the manifest, and the next
// review finds it in use. Fails if the restore only checks that the manifest exists, and
// doesn't lock it before it writes the tag.
func TestRestoreTagBeforeReviewLocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.push(t, "r", "config"), b.push(t, "r", "layer")
	d := b.put(t, "r", image(t, config, []oci.Digest{layer}, nil), "v1")
	b.put(t, "r", image(t, config, nil, nil), "v1") // the tag is elsewhere now
	b.dueNow(t)
	x, watch := b.session(t), b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, "SELECT FROM tags WHERE name = 'v1' FOR UPDATE")
	restored := later(func() error { return b.RestoreTag(context.Background(), "r", "v1", d) })
	x.blocks(t, watch, 1) // it has locked the manifest, and waits for the tag
	if out := b.review(t, reviewingManifests); out.Locked != 1 || out.Deleted != 0 {
		t.Fatalf("review: %+v; want the manifest left to who restores", out)
	}
	x.exec(t, "COMMIT")
	if err := soon(t, "restoring", restored); err != nil {
		t.Fatal(err)
	}
	b.dueNow(t)
	b.reviewAll(t)
	if m, err := b.ManifestByTag(t.Context(), "r", "v1"); err != nil || m.Digest != d {
		t.Errorf("v1 is %v, %v; want %s", m, err, d)
	}
	for _, blob := range []oci.Digest{config, layer} {
		if _, err := b.Blob(t.Context(), "r", blob); err != nil {
			t.Errorf("the restored manifest isn't whole: %v", err)
		}
	}
}
