package gc_test

import (
	"context"
	"regexp"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// beforeWalk matches the SQL statement by which a review looks for cycles.
const beforeWalk = `WITH RECURSIVE holders`

var walk = regexp.MustCompile(beforeWalk)

// oneCycle puts three untagged manifests and returns their payloads: an image, an index of
// the image, and an outer index that lists the first index and whose subject is the image.
// The three form a cycle. oneCycle leaves only the outer index in the review queue.
func (b bundle) oneCycle(t *testing.T, config oci.Digest) [][]byte {
	t.Helper()
	list := nested(t, b, config, 2)
	b.Exec(t, `DELETE FROM gc_manifest_review_queue q USING manifests m
		WHERE m.id = q.manifest_id AND m.digest <> $1`, oci.Compute(oci.SHA256, list[2]).Bytes())
	b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
	return list
}

// cleared deletes all tags, all manifests and the review queue of manifests.
func (b bundle) cleared(t *testing.T) {
	t.Helper()
	for _, table := range []string{"tags", "manifests", "gc_manifest_review_queue"} {
		b.Exec(t, "DELETE FROM "+table)
	}
}

// A review finds a cycle that no tag keeps. Before the review locks the cycle's manifests,
// one of them gets a tag, or an index with a tag lists it. The whole cycle must stay. The
// test fails if the review, once it has the locks, doesn't search again for tags and
// indexes that refer to the cycle.
func TestRaceCycleHeldBetweenLookAndLock(t *testing.T) {
	catalogtest.AtBoth(t, testRaceCycleHeldBetweenLookAndLock)
}

func testRaceCycleHeldBetweenLookAndLock(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Delays(t)
	config := b.Push(t, "r", "config")
	for i := range 3 {
		for what, hold := range map[string]func(payload []byte){
			// The test inserts the tag's row directly. A client's put of the manifest with
			// the tag would take further locks, and might wait for the review.
			"a tag": func(payload []byte) {
				b.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
					SELECT top_level_namespace_id, repository_id, 't', id FROM manifests WHERE digest = $1`,
					oci.Compute(oci.SHA256, payload).Bytes())
			},
			"an index": func(payload []byte) { b.Put(t, "r", catalogtest.Index(t, oci.Compute(oci.SHA256, payload)), "t") },
		} {
			list := b.oneCycle(t, config)
			p := b.pausing(t, ofManifests(), "default_transaction_isolation", "repeatable read")
			p.to(t, beforeLock)
			hold(list[i])
			if out := p.ended(t); out.Kept != 1 || out.Deleted != 0 {
				t.Errorf("%s for %d: %+v; want it kept", what, i, out)
			}
			b.Whole(t, "r", "t")
			for _, payload := range list {
				if _, err := b.ManifestByDigest(t.Context(), "r", oci.Compute(oci.SHA256, payload)); err != nil {
					t.Errorf("%s for %d: %v", what, i, err)
				}
			}
			// The review has dropped the outer index's row in gc_manifest_review_queue. A
			// deletion of the tag must have the cycle reviewed again.
			if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
				t.Fatal(err)
			}
			b.untilSettled(t)
			b.Empty(t, "manifests", "gc_manifest_review_queue")
		}
	}
}

// While a review deletes a manifest of a cycle, a client tags a manifest of that cycle, and
// another client puts an index that lists this manifest. Both must wait until the deletion
// is over. If a client's request then succeeds, the manifest to which its tag or index
// refers must exist. The test fails if the review locks only the manifest that it deletes:
// then the clients don't wait, and the manifest vanishes after a client was told that it
// exists.
func TestRaceCycleHeldWhileDeleted(t *testing.T) {
	catalogtest.AtBoth(t, testRaceCycleHeldWhileDeleted)
}

func testRaceCycleHeldWhileDeleted(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for i := range 3 {
		for _, stop := range []string{beforeWalk, beforeDelete, beforeCommit} {
			list := b.oneCycle(t, config)
			p := b.pausing(t, ofManifests())
			p.to(t, beforeLock)
			p.to(t, stop)
			tagged := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", list[i], "t"); return err })
			p.blocks(t, watch, 1)
			listed := catalogtest.Later(func() error {
				_, err := b.TryPut(context.Background(), "r", catalogtest.Index(t, oci.Compute(oci.SHA256, list[i])), "list")
				return err
			})
			p.blocks(t, watch, 2)
			if out := p.ended(t); out.Deleted != 1 {
				t.Fatalf("for %d, stopped at %s: %+v", i, stop, out)
			}
			if err := catalogtest.Soon(t, "tag", tagged); err != nil {
				t.Errorf("for %d, stopped at %s: %v", i, stop, err)
			}
			if err := catalogtest.Soon(t, "index", listed); err != nil {
				catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
			} else {
				b.Whole(t, "r", "list")
			}
			b.Whole(t, "r", "t", config)
			b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
			b.ReviewBatch(t, reviewingManifests)
			b.Whole(t, "r", "t", config)
			b.Complete(t)
			b.cleared(t)
		}
	}
}

// A client is putting a tag or an index and has locked one manifest of a cycle, when a
// review checks whether it may delete the cycle's outer index. The review must postpone the
// outer index's row in gc_manifest_review_queue. The test fails if the review goes on
// although it could lock only some of the cycle's manifests.
func TestRacePutHoldsCycle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	for i := range 3 {
		list := b.oneCycle(t, config)
		x := b.Session(t)
		x.Exec(t, "BEGIN")
		x.Exec(t, "SELECT FROM manifests WHERE digest = $1 FOR KEY SHARE", oci.Compute(oci.SHA256, list[i]).Bytes()) // as a put of the manifest does
		if out := b.pausing(t, ofManifests()).ended(t); out.Postponed != 1 || out.Claimed != 1 {
			t.Errorf("while %d is held: %+v; want it put off", i, out)
		}
		b.putOff(t, "gc_manifest_review_queue", 1)
		x.Exec(t, "COMMIT")
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
		if out := b.pausing(t, ofManifests()).ended(t); out.Deleted != 1 {
			t.Errorf("when %d is no longer held: %+v", i, out)
		}
		b.cleared(t)
	}
}

// A review of a cycle's outer index has read the manifests that refer to the cycle. Before
// it locks them, a client adds another untagged index to the cycle. So the review hasn't
// locked all manifests that refer to the cycle, and must postpone the outer index's row in
// gc_manifest_review_queue.
func TestRaceCycleGrows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	list := b.oneCycle(t, config)
	image := oci.Compute(oci.SHA256, list[0])
	p := b.pausing(t, ofManifests())
	p.to(t, beforeLock)
	b.Put(t, "r", circular(t, image, image, image))
	if out := p.ended(t); out.Postponed != 1 || out.Deleted != 0 {
		t.Errorf("review: %+v; want it put off", out)
	}
	b.Delays(t)
	b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
	b.untilSettled(t)
	b.Empty(t, "manifests", "gc_manifest_review_queue")
}

// The image of a cycle has a tag, so a first review keeps the cycle's outer index and is
// about to drop the index's row in gc_manifest_review_queue. Then a client deletes the tag,
// and a second review reviews the image, which can't be deleted before the outer index. So
// the second review must queue the outer index: it must wait for the first review, and then
// insert the index's row again. The test fails if the second review queues only manifests
// that have no row yet.
func TestRaceCycleIsPassedOn(t *testing.T) {
	catalogtest.AtBoth(t, testRaceCycleIsPassedOn)
}

func testRaceCycleIsPassedOn(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Delays(t)
	watch := b.Session(t)
	config := b.Push(t, "r", "config")
	for _, stop := range []string{beforeSettle, beforeCommit} {
		list := b.oneCycle(t, config)
		b.Put(t, "r", list[0], "t")
		p := b.pausing(t, ofManifests())
		p.to(t, stop)
		if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
			t.Fatal(err)
		}
		second := b.pausing(t, ofManifests(), "lock_timeout", "0")
		second.to(t, `INSERT INTO gc_manifest_review_queue`)
		done := catalogtest.Later(func() error { _, err := second.finish(t); return err })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Kept != 1 {
			t.Errorf("stopped at %s: %+v; want it kept", stop, out)
		}
		if err := catalogtest.Soon(t, "the second review", done); err != nil {
			t.Fatal(err)
		}
		if got := b.queued(t, oci.Compute(oci.SHA256, list[2])); got != "circle" {
			t.Errorf("stopped at %s: in review: %q", stop, got)
		}
		b.untilSettled(t)
		b.Empty(t, "manifests", "gc_manifest_review_queue")
	}
}

// A client moves a tag from one manifest of a cycle to another while a review searches the
// cycle for tags. The review must find the tag, because one statement, with one snapshot,
// searches the whole cycle.
func TestRaceTagMovesInCycle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	for from := range 2 { // not from the outer index: if it has a tag, its review doesn't search the cycle
		list := b.oneCycle(t, config)
		b.Put(t, "r", list[from], "t")
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
		p := b.pausing(t, ofManifests())
		p.to(t, beforeWalk)
		b.Put(t, "r", list[from+1], "t")
		if out := p.ended(t); out.Deleted != 0 {
			t.Errorf("from %d: %+v; want nothing deleted", from, out)
		}
		b.Whole(t, "r", "t")
		b.cleared(t)
	}
}

// A first review is about to delete the outer index of a cycle. Meanwhile a second review
// reviews the cycle's other manifests. The second review must delete nothing, or lose the
// race for locks. The first must delete the outer index, and later reviews the rest of the
// cycle.
func TestRaceTwoReviewersOfACycle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t)
	config := b.Push(t, "r", "config")
	for _, stop := range []string{beforeLock, beforeDelete} {
		b.oneCycle(t, config)
		p := b.pausing(t, ofManifests())
		p.to(t, stop)
		b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
			SELECT top_level_namespace_id, repository_id, id, now(), 'test' FROM manifests WHERE subject_digest IS NULL
			ON CONFLICT DO NOTHING`)
		if out, err := b.pausing(t, ofManifests()).finish(t); err != nil {
			contended(t, err)
		} else if out.Deleted != 0 {
			t.Errorf("stopped at %s: the second: %+v", stop, out)
		}
		if out := p.ended(t); out.Deleted != 1 {
			t.Errorf("stopped at %s: the first: %+v", stop, out)
		}
		b.DueNow(t)
		b.untilSettled(t)
		b.Empty(t, "manifests", "gc_manifest_review_queue")
	}
}
