package catalog_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// An index and its child are due in one batch: the child is kept, since the
// index holds it, and then the index goes. Fails with a review that drops the
// rows of what it kept after it has deleted: it drops the row that the deletion
// has just made, and the child stays forever.
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

// So are a subject and its referrer, and what the client put off itself is not
// brought forward.
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

// A child that somebody holds while the same batch deletes its index keeps the
// delay that the deletion grants. Fails with rows that are put off to five
// seconds from now whatever they hold by then.
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

// Manifests that share blobs go in one batch, one of them with a layer that is
// its configuration too; each blob is queued once.
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

// An index of many children goes, and then they, each batch in one transaction.
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

// narrowLinks are as many links as a blob may have without being wide, wideLinks
// are more.
const narrowLinks, wideLinks = 900, 10_000

// linkFrom makes n links of a blob to repositories that have nothing else.
func (b bundle) linkFrom(t *testing.T, d oci.Digest, first, n int) {
	t.Helper()
	b.exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT i % 100, i, $1 FROM generate_series($2::bigint, $2::bigint + $3 - 1) i`, d.Bytes(), first, n)
}

// reviewLinks reviews blobs as a reviewer does, the wide ones too, and returns
// how many links were removed.
func (b bundle) reviewLinks(t *testing.T) int {
	t.Helper()
	out := b.review(t, reviewingBlobs)
	removed := out.Links
	for _, w := range out.Wide {
		n, err := b.UnlinkWide(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		removed += n
	}
	return removed
}

// The links of the blobs of a batch may be more than it removes: those that it
// didn't come to are looked at later. Fails with a review that drops the rows of
// blobs whose links it hasn't come to.
func TestRaceManyLinks(t *testing.T) { atBoth(t, testRaceManyLinks) }

func testRaceManyLinks(t *testing.T, dsn string) {
	b := replica(t, dsn)
	var blobs []oci.Digest
	for _, content := range []string{"one", "two", "three"} {
		blobs = append(blobs, b.push(t, "r", content))
	}
	b.put(t, "r", image(t, b.push(t, "r", "config"), blobs, nil), "t")
	for i, d := range blobs {
		b.linkFrom(t, d, 1000*(i+1), narrowLinks)
	}
	removed := 0
	for range 5 {
		b.exec(t, "UPDATE gc_blob_review_queue SET review_after = now()")
		removed += b.reviewLinks(t)
	}
	if removed != 3*narrowLinks || b.rows(t, "repository_blobs") != 4 {
		t.Errorf("%d links were removed and %d are left, want %d and 4", removed, b.rows(t, "repository_blobs"), 3*narrowLinks)
	}
	b.empty(t, "gc_blob_review_queue")
}

// A blob that very many repositories link loses those that nobody needs, and
// then goes with all of them.
func TestRaceWideBlob(t *testing.T) { atBoth(t, testRaceWideBlob) }

func testRaceWideBlob(t *testing.T, dsn string) {
	b := replica(t, dsn)
	wide := b.push(t, "r", "wide")
	d := b.put(t, "r", image(t, b.push(t, "r", "config"), []oci.Digest{wide}, nil), "t")
	b.linkFrom(t, wide, 1000, wideLinks)
	b.dueNow(t)
	if n := b.reviewLinks(t); n != wideLinks || b.rows(t, "repository_blobs") != 2 {
		t.Errorf("%d links were removed and %d are left, want %d and 2", n, b.rows(t, "repository_blobs"), wideLinks)
	}
	b.empty(t, "gc_blob_review_queue")

	b.linkFrom(t, wide, 1000, wideLinks)
	if err := b.DeleteManifest(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	b.dueNow(t)
	start := time.Now()
	if out := b.review(t, reviewingBlobs); out.Deleted != 2 {
		t.Errorf("review: %+v; want the blobs deleted with all their links", out)
	}
	t.Logf("a blob with %d links was deleted in %v", wideLinks, time.Since(start))
	b.nothing(t)
}

// Whoever mounts, asks for or frees a wide blob before its links are looked at,
// or between two pages of them, ends that: the links and the row stay. Fails with
// pages that don't look whether the row is as the review left it.
func TestRaceWideBlobIsPromised(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(b bundle, d, manifest oci.Digest) error{
		"asked for": func(b bundle, d, _ oci.Digest) error {
			_, err := b.PromiseBlob(context.Background(), "r", d)
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
				wide := b.push(t, "r", "wide")
				manifest := b.put(t, "r", image(t, b.push(t, "r", "config"), []oci.Digest{wide}, nil), "t")
				b.linkFrom(t, wide, 1000, wideLinks)
				b.dueNow(t)
				out := b.review(t, reviewingBlobs)
				if len(out.Wide) != 1 {
					t.Fatalf("review: %+v; want one wide blob", out)
				}
				var removed int
				p := b.pausingAt(t, func(ctx context.Context, c *catalog.Catalog) (r catalog.Review, err error) {
					removed, err = c.UnlinkWide(ctx, out.Wide[0])
					return r, err
				})
				for range page {
					p.to(t, `^begin`)
				}
				if err := do(b, wide, manifest); err != nil {
					t.Fatal(err)
				}
				p.ended(t)
				if removed != 0 && page == 1 || removed == wideLinks {
					t.Errorf("%d links were removed", removed)
				}
				if n := b.count(t, `SELECT count(*) FROM gc_blob_review_queue
						WHERE digest = $1 AND review_after > now() + interval '23 hours'`, wide.Bytes()); n != 1 {
					t.Error("the row isn't as the client left it")
				}
			})
		}
	}
}

// A manifest that starts to use a link of a wide blob between the look and the
// lock keeps it; one that comes after the lock waits and is refused. A link that
// somebody holds keeps the row.
func TestRaceWideBlobIsUsed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, wide := b.push(t, "r", "config"), b.push(t, "r", "wide")
	payload := image(t, config, []oci.Digest{wide}, nil)
	b.put(t, "r", payload, "t")
	for _, path := range []string{"look", "lock", "held"} {
		b.push(t, path, "config")
		b.push(t, path, "wide")
	}
	b.linkFrom(t, wide, 1000, wideLinks)
	b.exec(t, "UPDATE gc_blob_review_queue SET review_after = now() WHERE digest = $1", wide.Bytes())
	out := b.review(t, reviewingBlobs)
	if len(out.Wide) != 1 {
		t.Fatalf("review: %+v; want one wide blob", out)
	}
	x, watch := b.session(t), b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, `SELECT FROM repository_blobs rb, repositories r WHERE r.path = 'held' AND rb.repository_id = r.id FOR KEY SHARE OF rb`)
	p := b.pausingAt(t, func(ctx context.Context, c *catalog.Catalog) (r catalog.Review, err error) {
		r.Links, err = c.UnlinkWide(ctx, out.Wide[0])
		return r, err
	})
	p.to(t, beforeLinkLock)
	b.put(t, "look", payload, "t")
	p.to(t, beforeLinkDelete)
	put := later(func() error { _, err := b.tryPut(context.Background(), "lock", payload, "t"); return err })
	p.blocks(t, watch, 1)
	if out := p.ended(t); out.Links != wideLinks+1 {
		t.Errorf("%d links were removed, want %d", out.Links, wideLinks+1)
	}
	wantCode(t, soon(t, "put", put), oci.ManifestBlobUnknown)
	b.whole(t, "look", "t", config, wide)
	if got := b.queued(t, wide); got == "" || !b.linked(t, "held", wide) {
		t.Errorf("in review: %q; want the blob there, since a link of it was held", got)
	}
}

// What refers to what refers to a subject goes after it, one after the other.
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

// An index may name its subject as its child too. The index stays while that is
// tagged.
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

// Each event brings a row back that was set aside. Fails with an event that
// leaves set_aside_at as it is.
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

// Of two reviews at once each has rows of its own. Fails with a claim that
// waits, or that both can make.
func TestRaceTwoReviews(t *testing.T) { atBoth(t, testRaceTwoReviews) }

func testRaceTwoReviews(t *testing.T, dsn string) {
	b := replica(t, dsn)
	for i := range 5 {
		b.push(t, "r", fmt.Sprint(i))
	}
	b.dueNow(t)
	first := b.pausing(t, catalog.ReviewOptions{Kind: reviewingBlobs, Limit: 2})
	first.to(t, beforeCommit)
	second := b.pausing(t, ofBlobs())
	second.to(t, beforeCommit)
	if out := b.review(t, reviewingBlobs); out.Claimed != 0 {
		t.Errorf("a third review: %+v", out)
	}
	if one, two := first.ended(t), second.ended(t); one.Deleted != 2 || two.Deleted != 3 {
		t.Errorf("reviews: %+v and %+v", one, two)
	}
	b.nothing(t)
}

// A review of an index wants the row of a child that another review holds: it
// gives way, and the next attempt is right.
func TestRaceTwoReviewsMeet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.push(t, "r", "config")
	child := b.put(t, "r", image(t, config, nil, nil))
	b.put(t, "r", index(t, child))
	b.exec(t, "UPDATE gc_manifest_review_queue SET review_after = now() - manifest_id * interval '1 s'") // the index first
	first := b.pausing(t, catalog.ReviewOptions{Kind: reviewingManifests, Limit: 1})
	first.to(t, beforeDelete)
	second := b.pausing(t, ofManifests())
	second.to(t, beforeCommit)
	_, err := first.finish(t)
	failed := contended(t, err)
	if out := second.ended(t); out.Kept != 1 {
		t.Errorf("second review: %+v; want the child kept", out)
	}
	if err := b.PostponeReview(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	b.dueNow(t)
	if out := b.review(t, reviewingManifests); out.Deleted != 1 {
		t.Errorf("then: %+v; want the index deleted", out)
	}
	if got := b.queued(t, child); got != "manifest_list_delete" {
		t.Errorf("the child in review: %q", got)
	}
}

// In a circle of a client and a review the review gives way, in its lock
// timeout: the client isn't so much as run again. PostgreSQL's own search for
// deadlocks is off. Fails without a lock timeout.
func TestRaceReviewGivesWay(t *testing.T) {
	t.Parallel()
	b := replica(t, patientDSN(t))
	var blobs []oci.Digest
	for _, content := range []string{"1", "2", "3"} {
		blobs = append(blobs, b.push(t, "r", content))
	}
	sortDigests(blobs)
	low, mid, high := blobs[0], blobs[1], blobs[2]
	b.put(t, "r", image(t, high, []oci.Digest{low}, nil)) // its review queues high, then low
	d := b.put(t, "r", image(t, mid, []oci.Digest{low, high}, nil), "t")
	alone, m := db.WithCounter(t.Context())
	if err := b.DeleteManifest(alone, "r", b.put(t, "r", numbered(t, 1, mid), "u")); err != nil {
		t.Fatal(err)
	}
	trips := m.Count()
	b.dueNow(t)
	x, watch := b.session(t), b.session(t)
	x.exec(t, "BEGIN")
	x.exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE", mid.Bytes())
	ctx, n := db.WithCounter(context.WithoutCancel(t.Context()))
	deleted := later(func() error { return b.DeleteManifest(ctx, "r", d) })
	x.blocks(t, watch, 1) // has low and waits for mid
	p := b.pausing(t, ofManifests(), "lock_timeout", "1000")
	p.to(t, beforeDelete)
	reviewed := later(func() error { _, err := p.finish(t); return err })
	eventually(t, "both wait", func() bool { return b.waiting(t) >= 2 })
	x.exec(t, "COMMIT") // now the client waits for high
	contended(t, soon(t, "review", reviewed))
	if err := soon(t, "deletion", deleted); err != nil {
		t.Error(err)
	}
	if n.Count() != trips {
		t.Errorf("the deletion took %d round trips, want %d: it was run again", n.Count(), trips)
	}
}

// A review whose connection is killed leaves everything as it was, and lets go
// of whoever waits for it. Fails with a review in more than one transaction.
func TestRaceReviewerIsKilled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	watch := b.session(t)
	state := func() int {
		return b.count(t, `SELECT hashtext(string_agg(x, ' ' ORDER BY x)) FROM (
			SELECT q::text x FROM gc_blob_review_queue q UNION ALL SELECT q::text FROM gc_manifest_review_queue q
			UNION ALL SELECT id::text FROM manifests UNION ALL SELECT storage_key FROM blobs
			UNION ALL SELECT storage_key FROM gc_doomed_objects UNION ALL SELECT rb::text FROM repository_blobs rb) x`)
	}
	config, layer := b.push(t, "r", "config"), b.push(t, "r", "layer")
	b.put(t, "r", image(t, config, []oci.Digest{layer}, nil))
	b.push(t, "r", "stray")
	b.dueNow(t)
	for kind, stops := range map[catalog.ReviewKind][]string{
		reviewingManifests: {beforeLook, beforeLock, beforeDelete, beforeCommit},
		reviewingBlobs:     {beforeBlobLook, beforeBlobLock, beforeBlobDelete, beforeBlobSettle, beforeCommit},
	} {
		for _, stop := range stops {
			before := state()
			p := b.pausing(t, catalog.ReviewOptions{Kind: kind})
			p.to(t, stop)
			watch.exec(t, "SELECT pg_terminate_backend($1)", int32(p.pid))
			if out, err := p.finish(t); err == nil {
				t.Fatalf("%s killed at %s: %+v", kind, stop, out)
			}
			eventually(t, "the backend is gone", func() bool {
				return b.count(t, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", int32(p.pid)) == 0
			})
			if state() != before {
				t.Errorf("%s killed at %s: something changed", kind, stop)
			}
		}
	}
	p := b.pausing(t, ofBlobs())
	p.to(t, beforeBlobDelete)
	asked := later(func() error { _, err := b.PromiseBlob(context.Background(), "r", layer); return err })
	p.blocks(t, watch, 1)
	watch.exec(t, "SELECT pg_terminate_backend($1)", int32(p.pid))
	if err := soon(t, "asking", asked); err != nil {
		t.Errorf("the review was killed, and who waited for it hears %v", err)
	}
	p.finish(t) //nolint:errcheck // it was killed
	b.dueNow(t)
	b.reviewAll(t)
	b.dueNow(t)
	b.reviewAll(t)
	b.nothing(t)
}

// A dry run beside a client: the client waits for the batch, and hears that
// what the dry run had deleted is there.
func TestRaceDryRunBesideAClient(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.push(t, "r", "config"), b.push(t, "r", "layer")
	payload := image(t, config, []oci.Digest{layer}, nil)
	d := b.put(t, "r", payload)
	stray := b.push(t, "r", "stray")
	b.dueNow(t)
	watch := b.session(t)
	for kind, do := range map[catalog.ReviewKind]func() error{
		reviewingBlobs:     func() error { _, err := b.PromiseBlob(context.Background(), "r", stray); return err },
		reviewingManifests: func() error { _, err := b.tryPut(context.Background(), "r", payload, "t"); return err },
	} {
		p := b.pausing(t, catalog.ReviewOptions{Kind: kind, DryRun: true})
		p.to(t, `^rollback$`)
		done := later(do)
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 || len(out.Found) != 1 {
			t.Errorf("dry run of %ss: %+v", kind, out)
		}
		if err := soon(t, "the client", done); err != nil {
			t.Error(err)
		}
	}
	b.whole(t, "r", "t", config, layer, stray)
	if m, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil || m.Digest != d {
		t.Error(err)
	}
	b.empty(t, "gc_doomed_objects")
}

// A repository is deleted, and made anew under the same path, while its old
// manifests and links are still there: each goes its own way.
func TestRaceRepositoryIsMadeAnew(t *testing.T) { atBoth(t, testRaceRepositoryIsMadeAnew) }

func testRaceRepositoryIsMadeAnew(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.delays(t, "blob_upload")
	push := func() (config, layer oci.Digest) {
		config, layer = b.push(t, "a/r", "config"), b.push(t, "a/r", "layer")
		b.put(t, "a/r", image(t, config, []oci.Digest{layer}, nil), "t")
		return config, layer
	}
	push()
	old := b.count(t, "SELECT id FROM repositories")
	b.exec(t, "DELETE FROM repositories")
	config, layer := push()
	b.forget(t)
	b.exec(t, "DELETE FROM tags WHERE repository_id = $1", old) // as whoever drains it does, in any order
	b.exec(t, "DELETE FROM manifests WHERE repository_id = $1", old)
	b.dueNow(t)
	if out := b.review(t, reviewingBlobs); out.Kept != 2 || out.Links != 2 {
		t.Errorf("review: %+v; want both blobs kept, and unlinked from what is gone", out)
	}
	b.reviewAll(t)
	b.whole(t, "a/r", "t", config, layer)
	b.empty(t, "gc_blob_review_queue", "gc_manifest_review_queue")
	if n := b.rows(t, "manifests"); n != 1 {
		t.Errorf("%d manifests are left", n)
	}
}

// A put that has begun keeps its repository from being deleted until it is
// committed, so that whoever drains the repository sees all of it. So does the
// commit of an upload. Fails with a put that doesn't lock the repository's row.
func TestRaceRepositoryGoesDuringPut(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(b bundle, payload []byte) error{
		"put": func(b bundle, payload []byte) error {
			_, err := b.tryPut(context.Background(), "r", payload, "t")
			return err
		},
		"mount": func(b bundle, _ []byte) error {
			_, err := b.Mount(context.Background(), "r", "other", oci.Compute(oci.SHA256, []byte("layer")))
			return err
		},
		"upload": func(b bundle, _ []byte) error {
			_, err := b.tryPush(context.Background(), "r", "layer")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config := b.push(t, "r", "config")
			b.put(t, "r", image(t, config, nil, nil), "t")
			layer := b.push(t, "other", "layer")
			b.push(t, "r", "layer")
			x, watch, y := b.session(t), b.session(t), b.session(t)
			x.exec(t, "BEGIN")
			x.exec(t, "SELECT FROM tags FOR UPDATE")
			x.exec(t, "SELECT FROM gc_blob_review_queue FOR UPDATE")
			done := later(func() error { return do(b, image(t, config, []oci.Digest{layer}, nil)) })
			x.blocks(t, watch, 1)
			y.exec(t, "BEGIN")
			deleted := later(func() error {
				_, err := y.Exec(context.Background(), "DELETE FROM repositories WHERE path = 'r'")
				return err
			})
			eventually(t, "the deletion waits", func() bool { return b.waiting(t) >= 2 || len(deleted) > 0 })
			if len(deleted) > 0 {
				t.Error("the repository was deleted from under a write in progress")
			}
			x.exec(t, "COMMIT")
			if err := soon(t, what, done); err != nil {
				t.Fatal(err)
			}
			if err := soon(t, "deletion", deleted); err != nil {
				t.Fatal(err)
			}
			// What the drain sees now is all that there will be.
			id := b.count(t, "SELECT id FROM repositories WHERE path = 'r'")
			before := b.count(t, "SELECT count(*) FROM repository_blobs WHERE repository_id = $1", id)
			y.exec(t, "COMMIT")
			if after := b.count(t, "SELECT count(*) FROM repository_blobs WHERE repository_id = $1", id); before != after || after == 0 {
				t.Errorf("%d links after the deletion, %d before", after, before)
			}
		})
	}
}

// The owner of a storage key is one row at every moment, whoever commits the
// same upload or content at once.
func TestRaceOneOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push(t, "r", "layer")
	list, err := b.StartUploads(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	u := list[0]
	u.Repository, u.Size = "r", 5
	d := oci.Compute(oci.SHA256, []byte("layer"))
	b.dueNow(t)
	p, watch := b.pausing(t, ofBlobs()), b.session(t)
	p.to(t, beforeBlobDelete)
	var commits []<-chan error
	for range 3 {
		commits = append(commits, later(func() error {
			return b.CommitUpload(context.Background(), u, d, u.StorageKey+"-0", false)
		}))
	}
	p.blocks(t, watch, 1)
	eventually(t, "all wait", func() bool { return b.waiting(t) >= 3 })
	p.ended(t)
	won := 0
	for _, c := range commits {
		if err := soon(t, "commit", c); err == nil {
			won++
		} else {
			wantCode(t, err, oci.BlobUploadInvalid)
		}
	}
	if won != 1 {
		t.Errorf("%d of three commits of one upload succeeded", won)
	}
	if n := b.count(t, "SELECT count(*) FROM uploads WHERE id = $1", uuid.UUID(u.ID)); n != 0 {
		t.Error("the upload is still there")
	}
	b.owned(t)
}
