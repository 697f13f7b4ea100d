package catalog_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// An index and its child are due in one batch: the review keeps the child, since the index
// references it, and then deletes the index. Fails if the review drops the rows of kept
// manifests after it has deleted others: it then drops the row that the deletion has just
// made for the child, and the child stays forever.
func TestRaceBatchHoldsIndexAndChild(t *testing.T) { atBoth(t, testRaceBatchHoldsIndexAndChild) }

func testRaceBatchHoldsIndexAndChild(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.push(t, "r", "config")
	child := b.put(t, "r", image(t, config, nil, nil))
	b.put(t, "r", index(t, child))
	b.dueNow(t)
	if out := b.review(t, reviewingManifests); out.Deleted != 1 || out.Kept != 1 {
		t.Fatalf("review: %+v; want the index deleted and its child kept", out)
	}
	if got := b.queued(t, child); got != "manifest_list_delete" {
		t.Errorf("the child in review: %q; want it there, since nothing holds it any more", got)
	}
}

// The same for a subject and its referrer. The row that the client's own deletion postponed
// isn't made due earlier.
func TestRaceBatchHoldsSubjectAndReferrer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.push(t, "r", "config")
	subject := b.put(t, "r", image(t, config, nil, nil))
	referrer := b.put(t, "r", subjectOf(t, config, subject))
	b.dueNow(t)
	if out := b.review(t, reviewingManifests); out.Deleted != 1 || out.Kept != 1 {
		t.Fatalf("review: %+v; want the subject deleted and its referrer kept", out)
	}
	if got := b.queued(t, referrer); got != "subject_delete" {
		t.Errorf("the referrer in review: %q; want it there, since nothing holds it any more", got)
	}
}

// A client has locked a child while a batch deletes its index: the child's row keeps the
// delay that the deletion grants. Fails if a review postpones rows to five seconds from now
// whatever delay they have by then.
func TestRaceLockedChildKeepsItsDelay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delays(t, "subject_delete")
	config := b.push(t, "r", "config")
	subject := b.put(t, "r", numbered(t, 1, config))
	referrer := b.put(t, "r", subjectOf(t, config, subject))
	b.exec(t, "UPDATE manifests SET subject_digest = NULL WHERE digest = $1", referrer.Bytes())
	b.dueNow(t)
	p := b.pausing(t, ofManifests())
	p.to(t, beforeLock)
	x := b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, "SELECT FROM manifests WHERE digest = $1 FOR KEY SHARE", referrer.Bytes())
	b.exec(t, "UPDATE manifests SET subject_digest = $2 WHERE digest = $1", referrer.Bytes(), subject.Bytes())
	if out := p.ended(t); out.Deleted != 1 || out.Locked != 1 {
		t.Fatalf("review: %+v; want the subject deleted and its referrer locked", out)
	}
	if n := b.count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '23 hours'"); n != 1 {
		t.Error("the referrer's delay was shortened to that of what is locked")
	}
}

// One batch deletes manifests that share blobs, one of them with a layer that is its
// configuration too; each blob is queued once.
func TestRaceBatchSharesBlobs(t *testing.T) { atBoth(t, testRaceBatchSharesBlobs) }

func testRaceBatchSharesBlobs(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, one, two := b.push(t, "r", "config"), b.push(t, "r", "one"), b.push(t, "r", "two")
	b.put(t, "r", numbered(t, 1, config, one, two))
	b.put(t, "r", numbered(t, 2, config, two, one))
	b.put(t, "r", numbered(t, 3, two, one, two, config))
	b.exec(t, "DELETE FROM gc_blob_review_queue")
	b.dueNow(t)
	if out := b.review(t, reviewingManifests); out.Deleted != 3 {
		t.Fatalf("review: %+v", out)
	}
	if n := b.rows(t, "gc_blob_review_queue"); n != 3 {
		t.Errorf("%d blobs in review, want 3", n)
	}
	b.dueNow(t)
	if out := b.review(t, reviewingBlobs); out.Deleted != 3 {
		t.Fatalf("review: %+v", out)
	}
	b.nothing(t)
}

// The review deletes an index of many children, and then the children, each batch in one
// transaction.
func TestRaceManyChildren(t *testing.T) { atBoth(t, testRaceManyChildren) }

func testRaceManyChildren(t *testing.T, dsn string) {
	const children = 1000
	b := replica(t, dsn)
	b.delays(t)
	config, layer := b.push(t, "r", "config"), b.push(t, "r", "layer")
	b.put(t, "r", image(t, config, []oci.Digest{layer}, nil))
	b.exec(t, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, payload, total_size)
		SELECT top_level_namespace_id, repository_id, '\x01'::bytea || sha256(i::text::bytea), media_type, configuration_blob_digest, payload, total_size
		FROM manifests, generate_series(2, $1) i`, children)
	b.exec(t, `INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		SELECT m.top_level_namespace_id, m.repository_id, m.id, l.digest, l.size, l.media_type FROM layers l, manifests m
		WHERE m.id <> l.manifest_id`)
	rows, err := b.db.Pool.Query(t.Context(), "SELECT digest FROM manifests")
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
	list := b.put(t, "r", index(t, digests...), "t")
	if out := b.review(t, reviewingManifests); out.Kept != children {
		t.Fatalf("review: %+v; want all children kept", out)
	}
	if err := b.DeleteManifest(t.Context(), "r", list); err != nil {
		t.Fatal(err)
	}
	if m, _ := b.reviewAll(t); m != children {
		t.Errorf("%d manifests were deleted, want %d", m, children)
	}
	b.nothing(t)
}

// A chain of referrers is deleted after its subject, one after the other.
func TestRaceReferrersOfReferrers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delays(t, "blob_upload")
	config := b.push(t, "r", "config")
	d := b.put(t, "r", image(t, config, nil, nil), "t")
	for range 5 {
		d = b.put(t, "r", subjectOf(t, config, d))
	}
	if m, _ := b.reviewAll(t); m != 0 {
		t.Errorf("%d manifests were deleted, want none: the first is tagged", m)
	}
	b.empty(t, "gc_manifest_review_queue")
	if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
		t.Fatal(err)
	}
	if m, _ := b.reviewAll(t); m != 6 {
		t.Errorf("%d manifests were deleted, want all 6", m)
	}
}

// An index may name its subject as its child too. The index stays while the subject has a
// tag.
func TestRaceSubjectIsChild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.delays(t, "blob_upload")
	child := b.put(t, "r", image(t, b.push(t, "r", "config"), nil, nil), "t")
	list := b.put(t, "r", index(t, child))
	b.exec(t, "UPDATE manifests SET subject_digest = $1 WHERE digest <> $1", child.Bytes())
	b.reviewAll(t)
	if _, err := b.ManifestByDigest(t.Context(), "r", list); err != nil {
		t.Errorf("the referrer of a tagged manifest: %v", err)
	}
	wantCode(t, b.DeleteManifest(t.Context(), "r", child), oci.Denied)
	if err := b.DeleteManifest(t.Context(), "r", list); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteManifest(t.Context(), "r", child); err != nil {
		t.Fatal(err)
	}
	b.reviewAll(t)
	b.empty(t, "manifests", "gc_manifest_review_queue")
}

// Each event brings a row back that was set aside after too many failures. Fails if an event
// leaves set_aside_at unchanged.
func TestRaceEventsBringBackWhatWasSetAside(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config, layer := b.push(t, "r", "config"), b.push(t, "r", "layer")
	payload := numbered(t, 1, config, layer)
	d := b.put(t, "r", payload, "t", "u")
	list := b.put(t, "r", index(t, d))
	b.put(t, "r", subjectOf(t, config, list))
	steps := []struct {
		event  string
		brings int // rows that come back
		do     func() error
	}{
		{"upload", 1, func() error { _, err := b.tryPush(ctx, "r", "layer"); return err }},
		{"existence", 1, func() error { _, err := b.PromiseBlob(ctx, "r", layer); return err }},
		{"mount", 1, func() error { _, err := b.Mount(ctx, "other", "r", layer); return err }},
		{"unlinking", 1, func() error { return b.DeleteBlob(ctx, "other", layer) }},
		{"existence of a manifest", 1, func() error { _, err := b.PromiseManifest(ctx, "r", d); return err }},
		{"put again", 1, func() error { _, err := b.tryPut(ctx, "r", payload); return err }},
		{"switched tag", 1, func() error { _, err := b.tryPut(ctx, "r", numbered(t, 2, config), "u"); return err }},
		{"deleted tag", 1, func() error { return b.DeleteTag(ctx, "r", "t") }},
		{"deleted index with a referrer", 2, func() error { return b.DeleteManifest(ctx, "r", list) }},
		{"deleted manifest", 2, func() error { return b.DeleteManifest(ctx, "r", d) }},
	}
	for _, s := range steps {
		b.forget(t)
		b.exec(t, `INSERT INTO gc_blob_review_queue (digest, event, set_aside_at, review_count) SELECT digest, 'x', now(), 10 FROM blobs`)
		b.exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event, set_aside_at, review_count)
			SELECT top_level_namespace_id, repository_id, id, 'x', now(), 10 FROM manifests`)
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.event, err)
		}
		if n := b.count(t, `SELECT (SELECT count(*) FROM gc_blob_review_queue WHERE set_aside_at IS NULL AND review_count = 0)
				+ (SELECT count(*) FROM gc_manifest_review_queue WHERE set_aside_at IS NULL AND review_count = 0)`); n != s.brings {
			t.Errorf("%s brings %d rows back, want %d", s.event, n, s.brings)
		}
	}
}
