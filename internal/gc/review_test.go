package gc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

func TestReviewDeletesWhatNothingHolds(t *testing.T) {
	catalogtest.AlwaysAtBoth(t, testReviewDeletesWhatNothingHolds)
}

func testReviewDeletesWhatNothingHolds(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "r", "config")
	kept, gone, stray := b.Push(t, "r", "kept"), b.Push(t, "r", "gone"), b.Push(t, "r", "stray")
	keep := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{kept}, nil), "v1")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{gone}, nil))
	b.DueNow(t)

	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Deleted != 1 || out.Kept != 3 || out.Bytes != 5 {
		t.Errorf("first review of blobs: %+v; want the stray one deleted and three kept", out)
	}
	if out := b.ReviewBatch(t, gc.ReviewOfManifests); out.Deleted != 1 || out.Claimed != 1 {
		t.Errorf("review of manifests: %+v; want the untagged one deleted", out)
	}
	if got := b.events(t, "gc_blob_review_queue"); got != "layer_delete manifest_delete" {
		t.Errorf("after the deletion of a manifest these are in review: %q", got)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Deleted != 1 || out.Kept != 1 {
		t.Errorf("second review of blobs: %+v; want the layer deleted and the shared configuration kept", out)
	}
	for _, table := range []string{"gc_blob_review_queue", "gc_manifest_review_queue"} {
		if n := b.Rows(t, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
	if _, err := b.ManifestByDigest(t.Context(), "r", keep); err != nil {
		t.Error(err)
	}
	for d, there := range map[oci.Digest]bool{config: true, kept: true, gone: false, stray: false} {
		if b.Linked(t, "r", d) != there {
			t.Errorf("linked: %s is %v", d, !there)
		}
	}
	if n := b.Rows(t, "gc_doomed_objects"); n != 2 {
		t.Errorf("%d pending deletions, want 2", n)
	}
	b.Owned(t)
}

// An index with a tag lists another index, which lists an image; the image has a referrer,
// which has a referrer too. Reviews must keep all five manifests. After a client has
// deleted the tag, reviews must delete all five. The review delays of all events are zero.
func TestReviewFollowsIndexesAndSubjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() + interval '1 day'")
	layers := map[string]string{"n": "1"}
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, map[string]any{"annotations": layers}))
	inner := b.Put(t, "r", catalogtest.Index(t, child))
	b.Put(t, "r", catalogtest.Index(t, inner), "v1")
	subject := func(d oci.Digest) map[string]any {
		return map[string]any{"subject": map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": d.String(), "size": 1}}
	}
	signature := b.Put(t, "r", catalogtest.Image(t, config, nil, subject(child)))
	b.Put(t, "r", catalogtest.Image(t, config, nil, subject(signature)))
	b.Put(t, "r", catalogtest.Image(t, config, nil, subject(oci.Compute(oci.SHA256, []byte("never comes")))))

	if m, _ := b.ReviewAll(t); m != 1 {
		t.Errorf("%d manifests were deleted, want only the one whose subject never came", m)
	}
	if n := b.Rows(t, "manifests"); n != 5 {
		t.Fatalf("%d manifests are left, want 5", n)
	}
	if err := b.DeleteTag(t.Context(), "r", "v1"); err != nil {
		t.Fatal(err)
	}
	if m, _ := b.ReviewAll(t); m != 5 {
		t.Errorf("%d manifests were deleted, want all 5", m)
	}
	for _, table := range []string{"manifests", "manifest_references", "gc_blobs_configurations", "gc_manifest_review_queue"} {
		if n := b.Rows(t, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

func TestReviewUnlinksWhatARepositoryNoLongerUses(t *testing.T) {
	catalogtest.AtBoth(t, testReviewUnlinksWhatARepositoryNoLongerUses)
}

func testReviewUnlinksWhatARepositoryNoLongerUses(t *testing.T, dsn string) {
	b := replica(t, dsn)
	layer := b.Push(t, "uses/it", "layer")
	config := b.Push(t, "uses/it", "config")
	b.Put(t, "uses/it", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	for i := range 3 {
		if ok, err := b.Mount(t.Context(), fmt.Sprintf("n%d/mounted", i), "uses/it", layer); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Claimed != 0 {
		t.Errorf("what is promised is reviewed: %+v", out)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Links != 3 || out.Kept != 2 || out.Deleted != 0 {
		t.Errorf("review: %+v; want three links removed and both blobs kept", out)
	}
	if n := b.Rows(t, "repository_blobs"); n != 2 {
		t.Errorf("%d links are left, want 2", n)
	}
	if _, err := b.Blob(t.Context(), "uses/it", layer); err != nil {
		t.Error(err)
	}
	_, err := b.Blob(t.Context(), "n1/mounted", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	var want []string
	for i := range 5 {
		want = append(want, b.Put(t, "r", catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": fmt.Sprint(i)}})).String())
	}
	stray := b.Push(t, "r", "stray")
	b.DueNow(t)
	before := b.Count(t, "SELECT sum(hashtext(q::text)) FROM gc_manifest_review_queue q")
	o := gc.ReviewOptions{Kind: gc.ReviewOfManifests, Limit: 2, DryRun: true}
	found := map[string]bool{}
	for {
		out, err := b.Review(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if out.Claimed == 0 {
			break
		}
		for _, f := range out.WouldDelete {
			if f.Repository != "r" || f.Event != "manifest_upload" || f.Size == 0 {
				t.Errorf("found %+v", f)
			}
			found[f.Digest.String()] = true
		}
		o.After = out.Last
	}
	for _, d := range want {
		if !found[d] {
			t.Errorf("%s isn't found", d)
		}
	}
	out, err := b.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfBlobs, Limit: 10, DryRun: true})
	if err != nil || len(out.WouldDelete) != 1 || out.WouldDelete[0].Digest != stray || out.Bytes != 5 {
		t.Errorf("dry run of blobs: %+v, %v", out, err)
	}
	if after := b.Count(t, "SELECT sum(hashtext(q::text)) FROM gc_manifest_review_queue q"); after != before {
		t.Error("the queue isn't as it was")
	}
	if n := b.Rows(t, "manifests"); n != 5 {
		t.Errorf("%d manifests are left, want 5", n)
	}
	if n := b.Rows(t, "gc_doomed_objects"); n != 0 {
		t.Errorf("%d pending deletions", n)
	}
}

func TestReviewFailsAndIsPostponed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "r", "broken")
	b.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	b.Exec(t, "CREATE TRIGGER refuse BEFORE DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION refuse()")
	minute := func(attempts int) time.Duration { return time.Duration(attempts) * time.Minute }
	for attempt := 1; attempt <= 3; attempt++ {
		b.DueNow(t)
		_, err := b.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfBlobs, Limit: 10})
		failed, ok := errors.AsType[*gc.ReviewError](err)
		if !ok || failed.Rows() != 1 || failed.Contended() {
			t.Fatalf("review: %v", err)
		}
		forGood, err := b.FailReview(t.Context(), failed, 3, minute)
		if err != nil || forGood != (attempt == 3) {
			t.Fatalf("attempt %d: failed for good %v, %v", attempt, forGood, err)
		}
		if n := b.Count(t, `SELECT count(*) FROM gc_blob_review_queue WHERE review_count = $1 AND last_error LIKE '%no%'
			AND review_after > now() + $2 * interval '59 s' AND review_after < now() + $2 * interval '61 s'`, attempt, attempt); n != 1 {
			t.Errorf("after attempt %d the row isn't put off from now", attempt)
		}
		// A second report of the same failure must have no effect, since the row isn't due
		// any more.
		if forGood, err := b.FailReview(t.Context(), failed, 1, minute); forGood || err != nil {
			t.Errorf("a review that isn't due counts as failed: %v, %v", forGood, err)
		}
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Claimed != 0 {
		t.Errorf("a failed review is tried again: %+v", out)
	}
	b.Exec(t, "DROP TRIGGER refuse ON blobs")
	// The next event must make the failed review due again.
	if _, err := b.PromiseBlobExists(t.Context(), "r", oci.Compute(oci.SHA256, []byte("broken"))); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfBlobs); out.Deleted != 1 {
		t.Errorf("after another event: %+v; want it deleted", out)
	}
}

// ReviewError.Contended must be true for a review that was rolled back because it hit its
// lock timeout.
func TestReviewGivesWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	b.DueNow(t)
	holder := b.Session(t)
	holder.Exec(t, "BEGIN")
	holder.Exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE", config.Bytes())
	_, err := b.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfManifests, Limit: 10})
	failed, ok := errors.AsType[*gc.ReviewError](err)
	if !ok || !failed.Contended() {
		t.Fatalf("review of a manifest whose blob's queue row is held: %v", err)
	}
	if err := b.PostponeReview(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	if out := b.ReviewBatch(t, gc.ReviewOfManifests); out.Claimed != 0 {
		t.Errorf("a postponed row is reviewed: %+v", out)
	}
	holder.Exec(t, "COMMIT")
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfManifests); out.Deleted != 1 {
		t.Errorf("afterwards: %+v", out)
	}
}

// After a review has deleted a manifest, the caches of all processes, including the process
// that runs the review, must be notified of the deletion.
func TestReviewIsToldToCaches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	if _, err := b.ManifestByDigest(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, gc.ReviewOfManifests); out.Deleted != 1 {
		t.Fatalf("review: %+v", out)
	}
	catalogtest.Eventually(t, "the manifest is unknown", func() bool {
		_, err := b.ManifestByDigest(context.WithoutCancel(t.Context()), "r", d)
		return oci.CodeOf(err) == oci.ManifestUnknown
	})
}
