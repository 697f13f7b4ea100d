package catalogtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

// AtOnce sets the review delays of all events to zero.
func (b Bundle) AtOnce(t *testing.T) {
	t.Helper()
	if err := b.SetReviewDelays(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
}

// DueNow makes all rows of the queues due.
func (b Bundle) DueNow(t *testing.T) {
	t.Helper()
	b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now()")
	b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
}

// ReviewBatch reviews one batch of a kind.
func (b Bundle) ReviewBatch(t *testing.T, kind gc.ReviewKind) gc.Review {
	t.Helper()
	out, err := b.Review(t.Context(), gc.ReviewOptions{Kind: kind, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryReview reviews up to `limit` due rows of a review queue and returns the number of rows
// that it claimed. If the review fails because a concurrent transaction has locked its rows,
// TryReview returns no error.
func (b Bundle) TryReview(ctx context.Context, kind gc.ReviewKind, limit int) (claimed int, err error) {
	out, err := b.Review(ctx, gc.ReviewOptions{Kind: kind, Limit: limit})
	if e, ok := errors.AsType[*gc.ReviewError](err); ok && e.Contended() {
		return e.Rows(), nil
	}
	return out.Claimed, err
}

// TryReviews is TryReview for a batch of manifests and one of blobs.
func (b Bundle) TryReviews(ctx context.Context, limit int) error {
	for _, kind := range []gc.ReviewKind{gc.ReviewOfManifests, gc.ReviewOfBlobs} {
		if _, err := b.TryReview(ctx, kind, limit); err != nil {
			return err
		}
	}
	return nil
}

// ReviewAll reviews manifests and blobs until no review is due. It returns how many manifests
// and blobs the reviews deleted.
func (b Bundle) ReviewAll(t *testing.T) (manifests, blobs int) {
	t.Helper()
	for {
		m, o := b.ReviewBatch(t, gc.ReviewOfManifests), b.ReviewBatch(t, gc.ReviewOfBlobs)
		manifests, blobs = manifests+m.Deleted, blobs+o.Deleted
		if m.Claimed+o.Claimed == 0 {
			return manifests, blobs
		}
	}
}

func (b Bundle) Linked(t *testing.T, path string, d oci.Digest) bool {
	t.Helper()
	return b.Count(t, `SELECT count(*) FROM repository_blobs rb JOIN repositories r ON r.id = rb.repository_id
		WHERE r.path = $1 AND rb.blob_digest = $2`, path, d.Bytes()) == 1
}

// Owned checks that no storage key has more than one owner row in the tables blobs, uploads,
// gc_doomed_objects and gc_foreign_objects. It returns the number of rows of the first three.
func (b Bundle) Owned(t *testing.T) int {
	t.Helper()
	if n := b.Count(t, `SELECT count(*) FROM (
			SELECT FROM (SELECT storage_key FROM blobs UNION ALL SELECT storage_key FROM uploads
				UNION ALL SELECT storage_key FROM gc_doomed_objects
				UNION ALL SELECT storage_key FROM gc_foreign_objects) x
			GROUP BY storage_key HAVING count(*) > 1) y`); n != 0 {
		t.Errorf("%d storage keys have several owners", n)
	}
	return b.Count(t, "SELECT (SELECT count(*) FROM blobs) + (SELECT count(*) FROM uploads) + (SELECT count(*) FROM gc_doomed_objects)")
}

// Complete checks that for each tag, index and manifest in the database, the manifests and
// blobs to which it refers exist in the same repository.
func (b Bundle) Complete(t *testing.T) {
	t.Helper()
	for what, sql := range map[string]string{
		"tags without their manifest": `SELECT count(*) FROM tags t WHERE NOT EXISTS (
			SELECT FROM manifests m WHERE m.repository_id = t.repository_id AND m.id = t.manifest_id)`,
		"children that are missing": `SELECT count(*) FROM manifest_references x WHERE NOT EXISTS (
			SELECT FROM manifests m WHERE m.repository_id = x.repository_id AND m.id = x.child_id)`,
		"layers without their blob or its link": `SELECT count(*) FROM layers l WHERE NOT EXISTS (
			SELECT FROM blobs b JOIN repository_blobs rb ON rb.blob_digest = b.digest
			WHERE b.digest = l.digest AND rb.repository_id = l.repository_id)`,
		"configurations without their blob or its link": `SELECT count(*) FROM manifests m
			WHERE m.configuration_blob_digest IS NOT NULL AND NOT EXISTS (
			SELECT FROM blobs b JOIN repository_blobs rb ON rb.blob_digest = b.digest
			WHERE b.digest = m.configuration_blob_digest AND rb.repository_id = m.repository_id)`,
		"layers that aren't tracked": `SELECT count(*) FROM layers l FULL JOIN gc_blobs_layers g
			ON g.layer_id = l.id AND g.digest = l.digest WHERE l.id IS NULL OR g.layer_id IS NULL`,
		"configurations that aren't tracked": `SELECT count(*)
			FROM (SELECT * FROM manifests WHERE configuration_blob_digest IS NOT NULL) m FULL JOIN gc_blobs_configurations g
			ON g.manifest_id = m.id AND g.digest = m.configuration_blob_digest WHERE m.id IS NULL OR g.manifest_id IS NULL`,
	} {
		if n := b.Count(t, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// Delays sets the review delays of the given events to a day, and those of all other events to
// zero.
func (b Bundle) Delays(t *testing.T, events ...string) {
	t.Helper()
	day := map[string]time.Duration{}
	for _, e := range events {
		day[e] = 24 * time.Hour
	}
	if err := b.SetReviewDelays(t.Context(), 0, day); err != nil {
		t.Fatal(err)
	}
}

// Forget empties the queues.
func (b Bundle) Forget(t *testing.T) {
	t.Helper()
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")
}

// Empty checks that the tables have no rows.
func (b Bundle) Empty(t *testing.T, tables ...string) {
	t.Helper()
	for _, table := range tables {
		if n := b.Rows(t, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

// Nothing checks that no content is left, that the review queues are empty, and that no
// storage key has more than one owner row (see Owned).
func (b Bundle) Nothing(t *testing.T) {
	t.Helper()
	b.Empty(t, "manifests", "layers", "manifest_references", "tags", "blobs", "repository_blobs",
		"gc_blobs_layers", "gc_blobs_configurations", "gc_blob_review_queue", "gc_manifest_review_queue")
	b.Owned(t)
}

// Whole checks that the manifest of a tag exists, and that the given blobs exist in the tag's
// repository.
func (b Bundle) Whole(t *testing.T, path, tag string, blobs ...oci.Digest) {
	t.Helper()
	if _, err := b.ManifestByTag(t.Context(), path, tag); err != nil {
		t.Error(err)
	}
	for _, d := range blobs {
		if _, err := b.BlobNow(t.Context(), path, d); err != nil {
			t.Error(err)
		}
	}
}

// ExplainManifest explains a manifest.
func (b Bundle) ExplainManifest(ctx context.Context, path string, d oci.Digest) (explain.ManifestExplanation, error) {
	return explain.Manifest(ctx, b.Collector, path, d)
}

// ExplainBlob explains a blob.
func (b Bundle) ExplainBlob(ctx context.Context, d oci.Digest) (explain.BlobExplanation, error) {
	return explain.Blob(ctx, b.Collector, d)
}
