package gc_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// An index and its child are due in the same batch. The review must keep the child, since
// the index lists it, and delete the index. The test fails if the review deletes manifests
// first and then drops the queue rows of kept manifests: it then drops the row that the
// index's deletion has just inserted for the child, and the child stays forever.
func TestRaceBatchHoldsIndexAndChild(t *testing.T) {
	catalogtest.AtBoth(t, testRaceBatchHoldsIndexAndChild)
}

func testRaceBatchHoldsIndexAndChild(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	b.Put(t, "r", catalogtest.Index(t, child))
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 || out.Kept != 1 {
		t.Fatalf("review: %+v; want the index deleted and its child kept", out)
	}
	if got := b.queued(t, child); got != "manifest_list_delete" {
		t.Errorf("the child in review: %q; want it there, since nothing holds it any more", got)
	}
}

// One batch reviews a subject and its referrer. It must delete the subject, keep the
// referrer, and leave a row for the referrer in gc_manifest_review_queue, since the
// referrer has lost its subject.
func TestRaceBatchHoldsSubjectAndReferrer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	subject := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	referrer := b.Put(t, "r", catalogtest.SubjectOf(t, config, subject))
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 || out.Kept != 1 {
		t.Fatalf("review: %+v; want the subject deleted and its referrer kept", out)
	}
	if got := b.queued(t, referrer); got != "subject_delete" {
		t.Errorf("the referrer in review: %q; want it there, since nothing holds it any more", got)
	}
}

// A client has locked a referrer while a batch deletes the referrer's subject. The
// referrer's row in gc_manifest_review_queue must get the review delay of the event
// subject_delete. The test fails if the review sets the row of a locked manifest to five
// seconds from now even if the row has a longer delay.
func TestRaceLockedChildKeepsItsDelay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t, "subject_delete")
	config := b.Push(t, "r", "config")
	subject := b.Put(t, "r", catalogtest.Numbered(t, 1, config))
	referrer := b.Put(t, "r", catalogtest.SubjectOf(t, config, subject))
	b.Exec(t, "UPDATE manifests SET subject_digest = NULL WHERE digest = $1", referrer.Bytes())
	b.DueNow(t)
	p := b.pausing(t, ofManifests())
	p.to(t, beforeLock)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR KEY SHARE", referrer.Bytes())
	b.Exec(t, "UPDATE manifests SET subject_digest = $2 WHERE digest = $1", referrer.Bytes(), subject.Bytes())
	if out := p.ended(t); out.Deleted != 1 || out.Postponed != 1 {
		t.Fatalf("review: %+v; want the subject deleted and its referrer locked", out)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '23 hours'"); n != 1 {
		t.Error("the referrer's delay was shortened to that of what is locked")
	}
}

// One batch deletes manifests that share blobs, and one of these manifests uses the same
// blob as layer and as configuration. Each blob must be queued for review once.
func TestRaceBatchSharesBlobs(t *testing.T) { catalogtest.AtBoth(t, testRaceBatchSharesBlobs) }

func testRaceBatchSharesBlobs(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, one, two := b.Push(t, "r", "config"), b.Push(t, "r", "one"), b.Push(t, "r", "two")
	b.Put(t, "r", catalogtest.Numbered(t, 1, config, one, two))
	b.Put(t, "r", catalogtest.Numbered(t, 2, config, two, one))
	b.Put(t, "r", catalogtest.Numbered(t, 3, two, one, two, config))
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 3 {
		t.Fatalf("review: %+v", out)
	}
	if n := b.Rows(t, "gc_blob_review_queue"); n != 3 {
		t.Errorf("%d blobs in review, want 3", n)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Deleted != 3 {
		t.Fatalf("review: %+v", out)
	}
	b.Nothing(t)
}

// An index has 1,000 children. A review must keep the children while the index exists.
// After a client has deleted the index, reviews must delete all 1,000 children.
func TestRaceManyChildren(t *testing.T) { catalogtest.AtBoth(t, testRaceManyChildren) }

func testRaceManyChildren(t *testing.T, dsn string) {
	const children = 1000
	b := replica(t, dsn)
	b.Delays(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil))
	b.Exec(t, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, payload, total_size)
		SELECT top_level_namespace_id, repository_id, '\x01'::bytea || sha256(i::text::bytea), media_type, configuration_blob_digest, payload, total_size
		FROM manifests, generate_series(2, $1) i`, children)
	b.Exec(t, `INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		SELECT m.top_level_namespace_id, m.repository_id, m.id, l.digest, l.size, l.media_type FROM layers l, manifests m
		WHERE m.id <> l.manifest_id`)
	rows, err := b.DB.Pool.Query(t.Context(), "SELECT digest FROM manifests")
	if err != nil {
		t.Fatal(err)
	}
	var digests []oci.Digest
	for rows.Next() {
		var raw []byte
		if err := rows.Scan(&raw); err != nil {
			t.Fatal(err)
		}
		d, err := oci.DigestFromBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
	}
	if rows.Err() != nil || len(digests) != children {
		t.Fatal(len(digests), rows.Err())
	}
	list := b.Put(t, "r", catalogtest.Index(t, digests...), "t")
	if out := b.ReviewBatch(t, reviewingManifests); out.Kept != children {
		t.Fatalf("review: %+v; want all children kept", out)
	}
	if err := b.DeleteManifest(t.Context(), "r", list); err != nil {
		t.Fatal(err)
	}
	if m, _ := b.ReviewAll(t); m != children {
		t.Errorf("%d manifests were deleted, want %d", m, children)
	}
	b.Nothing(t)
}

// A subject has a referrer, which has a referrer itself, and so on. After a client has
// deleted the subject's tag, reviews must delete the subject and then its chain of
// referrers, one after the other.
func TestRaceReferrersOfReferrers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t, "blob_upload")
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	for range 5 {
		d = b.Put(t, "r", catalogtest.SubjectOf(t, config, d))
	}
	if m, _ := b.ReviewAll(t); m != 0 {
		t.Errorf("%d manifests were deleted, want none: the first is tagged", m)
	}
	b.Empty(t, "gc_manifest_review_queue")
	if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
		t.Fatal(err)
	}
	if m, _ := b.ReviewAll(t); m != 6 {
		t.Errorf("%d manifests were deleted, want all 6", m)
	}
}

// An index lists its own subject as a child, and the subject has a tag. Reviews must keep
// the index as long as the tag exists.
func TestRaceSubjectIsChild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t, "blob_upload")
	child := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil), "t")
	list := b.Put(t, "r", catalogtest.Index(t, child))
	b.Exec(t, "UPDATE manifests SET subject_digest = $1 WHERE digest <> $1", child.Bytes())
	b.ReviewAll(t)
	if _, err := b.ManifestByDigest(t.Context(), "r", list); err != nil {
		t.Errorf("the referrer of a tagged manifest: %v", err)
	}
	catalogtest.WantCode(t, b.DeleteManifest(t.Context(), "r", child), oci.Denied)
	if err := b.DeleteManifest(t.Context(), "r", list); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteManifest(t.Context(), "r", child); err != nil {
		t.Fatal(err)
	}
	b.ReviewAll(t)
	b.Empty(t, "manifests", "gc_manifest_review_queue")
}

// A review of a manifest or blob has failed for good. Each later event must make it due
// again. The test fails if an event leaves set_aside_at unchanged.
func TestRaceEventsBringBackFailedReviews(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	payload := catalogtest.Numbered(t, 1, config, layer)
	d := b.Put(t, "r", payload, "t", "u")
	list := b.Put(t, "r", catalogtest.Index(t, d))
	b.Put(t, "r", catalogtest.SubjectOf(t, config, list))
	steps := []struct {
		event  string
		brings int // rows that come back
		do     func() error
	}{
		{"upload", 1, func() error { _, err := b.TryPush(ctx, "r", "layer"); return err }},
		{"existence", 1, func() error { _, err := b.PromiseBlobExists(ctx, "r", layer); return err }},
		{"mount", 1, func() error { _, err := b.Mount(ctx, "other", "r", layer); return err }},
		{"unlinking", 1, func() error { return b.DeleteBlob(ctx, "other", layer) }},
		{"existence of a manifest", 1, func() error { _, err := b.PromiseManifestExists(ctx, "r", d); return err }},
		{"put again", 1, func() error { _, err := b.TryPut(ctx, "r", payload); return err }},
		{"switched tag", 1, func() error { _, err := b.TryPut(ctx, "r", catalogtest.Numbered(t, 2, config), "u"); return err }},
		{"deleted tag", 1, func() error { return b.DeleteTag(ctx, "r", "t") }},
		{"deleted index with a referrer", 2, func() error { return b.DeleteManifest(ctx, "r", list) }},
		{"deleted manifest", 2, func() error { return b.DeleteManifest(ctx, "r", d) }},
	}
	for _, s := range steps {
		b.Forget(t)
		b.Exec(t, `INSERT INTO gc_blob_review_queue (digest, event, set_aside_at, review_count) SELECT digest, 'x', now(), 10 FROM blobs`)
		b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event, set_aside_at, review_count)
			SELECT top_level_namespace_id, repository_id, id, 'x', now(), 10 FROM manifests`)
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.event, err)
		}
		if n := b.Count(t, `SELECT (SELECT count(*) FROM gc_blob_review_queue WHERE set_aside_at IS NULL AND review_count = 0)
				+ (SELECT count(*) FROM gc_manifest_review_queue WHERE set_aside_at IS NULL AND review_count = 0)`); n != s.brings {
			t.Errorf("%s brings %d rows back, want %d", s.event, n, s.brings)
		}
	}
}
