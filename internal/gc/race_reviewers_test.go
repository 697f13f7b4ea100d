package gc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/loosefk"
)

// Two reviews run at the same time. They must claim different rows of the review queue. The
// test fails if the second review waits for the rows of the first, or if both reviews claim
// the same row.
func TestRaceTwoReviews(t *testing.T) { catalogtest.AtBoth(t, testRaceTwoReviews) }

func testRaceTwoReviews(t *testing.T, dsn string) {
	b := replica(t, dsn)
	for i := range 5 {
		b.Push(t, "r", fmt.Sprint(i))
	}
	b.DueNow(t)
	first := b.pausing(t, gc.ReviewOptions{Kind: reviewingBlobs, Limit: 2})
	first.to(t, beforeCommit)
	second := b.pausing(t, ofBlobs())
	second.to(t, beforeCommit)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Claimed != 0 {
		t.Errorf("a third review: %+v", out)
	}
	if one, two := first.ended(t), second.ended(t); one.Deleted != 2 || two.Deleted != 3 {
		t.Errorf("reviews: %+v and %+v", one, two)
	}
	b.Nothing(t)
}

// The review of an index deletes the index, and so has to write to the row of the index's
// child in gc_manifest_review_queue, which another review has locked. The index's review
// must give up, and its next attempt must succeed.
func TestRaceTwoReviewsMeet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	b.Put(t, "r", catalogtest.Index(t, child))
	b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now() - manifest_id * interval '1 s'") // the index first
	first := b.pausing(t, gc.ReviewOptions{Kind: reviewingManifests, Limit: 1})
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
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingManifests); out.Deleted != 1 {
		t.Errorf("then: %+v; want the index deleted", out)
	}
	if got := b.queued(t, child); got != "manifest_list_delete" {
		t.Errorf("the child in review: %q", got)
	}
}

// A client and a review wait for each other's locks, and PostgreSQL's own deadlock
// detection is switched off. The review's lock timeout must end the review, so that the
// client's transaction succeeds at its first attempt. The test fails if reviews have no
// lock timeout.
func TestRaceReviewGivesWay(t *testing.T) {
	t.Parallel()
	b := replica(t, catalogtest.PatientDSN(t))
	var blobs []oci.Digest
	for _, content := range []string{"1", "2", "3"} {
		blobs = append(blobs, b.Push(t, "r", content))
	}
	catalogtest.SortDigests(blobs)
	low, mid, high := blobs[0], blobs[1], blobs[2]
	b.Put(t, "r", catalogtest.Image(t, high, []oci.Digest{low}, nil)) // the review of this manifest queues high, then low
	d := b.Put(t, "r", catalogtest.Image(t, mid, []oci.Digest{low, high}, nil), "t")
	alone, m := db.WithCounter(t.Context())
	if err := b.DeleteManifest(alone, "r", b.Put(t, "r", catalogtest.Numbered(t, 1, mid), "u")); err != nil {
		t.Fatal(err)
	}
	trips := m.Count()
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE", mid.Bytes())
	ctx, n := db.WithCounter(context.WithoutCancel(t.Context()))
	deleted := catalogtest.Later(func() error { return b.DeleteManifest(ctx, "r", d) })
	x.Blocks(t, watch, 1) // the client has locked low's row and waits for mid's
	p := b.pausing(t, ofManifests(), "lock_timeout", "1000")
	p.to(t, beforeDelete)
	reviewed := catalogtest.Later(func() error { _, err := p.finish(t); return err })
	catalogtest.Eventually(t, "both wait", func() bool { return b.Waiting(t) >= 2 })
	x.Exec(t, "COMMIT") // now the client waits for high's row
	contended(t, catalogtest.Soon(t, "review", reviewed))
	if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
		t.Error(err)
	}
	if n.Count() != trips {
		t.Errorf("the deletion took %d round trips, want %d: it was run again", n.Count(), trips)
	}
}

// The test kills a review's connection at each of several statements. The database must be
// unchanged then, and the review's locks must be free. The test fails if a review uses more
// than one transaction.
func TestRaceReviewerIsKilled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	watch := b.Session(t)
	state := func() int {
		return b.Count(t, `SELECT hashtext(string_agg(x, ' ' ORDER BY x)) FROM (
			SELECT q::text x FROM gc_blob_review_queue q UNION ALL SELECT q::text FROM gc_manifest_review_queue q
			UNION ALL SELECT id::text FROM manifests UNION ALL SELECT storage_key FROM blobs
			UNION ALL SELECT storage_key FROM gc_doomed_objects UNION ALL SELECT rb::text FROM repository_blobs rb) x`)
	}
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil))
	b.Push(t, "r", "stray")
	b.DueNow(t)
	for kind, stops := range map[gc.ReviewKind][]string{
		reviewingManifests: {beforeLook, beforeLock, beforeDelete, beforeCommit},
		reviewingBlobs:     {beforeBlobLook, beforeBlobLock, beforeBlobDelete, beforeBlobSettle, beforeCommit},
	} {
		for _, stop := range stops {
			before := state()
			p := b.pausing(t, gc.ReviewOptions{Kind: kind})
			p.to(t, stop)
			watch.Exec(t, "SELECT pg_terminate_backend($1)", int32(p.pid))
			if out, err := p.finish(t); err == nil {
				t.Fatalf("%s killed at %s: %+v", kind, stop, out)
			}
			catalogtest.Eventually(t, "the backend is gone", func() bool {
				return b.Count(t, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", int32(p.pid)) == 0
			})
			if state() != before {
				t.Errorf("%s killed at %s: something changed", kind, stop)
			}
		}
	}
	p := b.pausing(t, ofBlobs())
	p.to(t, beforeBlobDelete)
	asked := catalogtest.Later(func() error { _, err := b.PromiseBlobExists(context.Background(), "r", layer); return err })
	p.blocks(t, watch, 1)
	watch.Exec(t, "SELECT pg_terminate_backend($1)", int32(p.pid))
	if err := catalogtest.Soon(t, "asking", asked); err != nil {
		t.Errorf("the review was killed, and who waited for it hears %v", err)
	}
	p.finish(t) //nolint:errcheck // it was killed
	b.DueNow(t)
	b.ReviewAll(t)
	b.DueNow(t)
	b.ReviewAll(t)
	b.Nothing(t)
}

// A dry run deletes manifests or blobs, and rolls the deletion back at the end of the
// batch. If a client needs the deleted content before the rollback, the client's request
// must wait for the rollback, and then find the content.
func TestRaceDryRunBesideAClient(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	d := b.Put(t, "r", payload)
	stray := b.Push(t, "r", "stray")
	b.DueNow(t)
	watch := b.Session(t)
	for kind, do := range map[gc.ReviewKind]func() error{
		reviewingBlobs:     func() error { _, err := b.PromiseBlobExists(context.Background(), "r", stray); return err },
		reviewingManifests: func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err },
	} {
		p := b.pausing(t, gc.ReviewOptions{Kind: kind, DryRun: true})
		p.to(t, `^rollback$`)
		done := catalogtest.Later(do)
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 || len(out.WouldDelete) != 1 {
			t.Errorf("dry run of %ss: %+v", kind, out)
		}
		if err := catalogtest.Soon(t, "the client", done); err != nil {
			t.Error(err)
		}
	}
	b.Whole(t, "r", "t", config, layer, stray)
	if m, err := b.ManifestByTag(t.Context(), "r", "t"); err != nil || m.Digest != d {
		t.Error(err)
	}
	b.Empty(t, "gc_doomed_objects")
}

// A client deletes a repository and creates it again under the same path, while manifests
// and links of the deleted repository still exist. The rows of the deleted repository and
// those of the new one must not affect each other.
func TestRaceRepositoryIsMadeAnew(t *testing.T) { catalogtest.AtBoth(t, testRaceRepositoryIsMadeAnew) }

func testRaceRepositoryIsMadeAnew(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Delays(t, "blob_upload")
	push := func() (config, layer oci.Digest) {
		config, layer = b.Push(t, "a/r", "config"), b.Push(t, "a/r", "layer")
		b.Put(t, "a/r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
		return config, layer
	}
	push()
	old := b.Count(t, "SELECT id FROM repositories")
	b.Exec(t, "DELETE FROM repositories")
	config, layer := push()
	b.Forget(t)
	b.Exec(t, "DELETE FROM tags WHERE repository_id = $1", old) // as the worker that drains deleted repositories does, in any order
	b.Exec(t, "DELETE FROM manifests WHERE repository_id = $1", old)
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Kept != 2 || out.Links != 2 {
		t.Errorf("review: %+v; want both blobs kept, and unlinked from what is gone", out)
	}
	b.ReviewAll(t)
	b.Whole(t, "a/r", "t", config, layer)
	b.Empty(t, "gc_blob_review_queue", "gc_manifest_review_queue")
	if n := b.Rows(t, "manifests"); n != 1 {
		t.Errorf("%d manifests are left", n)
	}
}

// A client deletes a repository while another client puts a manifest into it. The put locks
// the repository's row until it commits, so the deletion must wait. Thus the worker that
// removes the deleted repository's rows sees all rows of the put. The same must hold for
// mounts and for commits of uploads. The test fails if these requests don't lock the
// repository's row.
func TestRaceRepositoryGoesDuringPut(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(b bundle, payload []byte) error{
		"put": func(b bundle, payload []byte) error {
			_, err := b.TryPut(context.Background(), "r", payload, "t")
			return err
		},
		"mount": func(b bundle, _ []byte) error {
			_, err := b.Mount(context.Background(), "r", "other", oci.Compute(oci.SHA256, []byte("layer")))
			return err
		},
		"upload": func(b bundle, _ []byte) error {
			_, err := b.TryPush(context.Background(), "r", "layer")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config := b.Push(t, "r", "config")
			b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
			layer := b.Push(t, "other", "layer")
			b.Push(t, "r", "layer")
			x, watch, y := b.Session(t), b.Session(t), b.Session(t)
			x.Exec(t, "BEGIN")
			x.Exec(t, "SELECT FROM tags FOR UPDATE")
			x.Exec(t, "SELECT FROM gc_blob_review_queue FOR UPDATE")
			done := catalogtest.Later(func() error { return do(b, catalogtest.Image(t, config, []oci.Digest{layer}, nil)) })
			x.Blocks(t, watch, 1)
			y.Exec(t, "BEGIN")
			deleted := catalogtest.Later(func() error {
				_, err := y.Conn.Exec(context.Background(), "DELETE FROM repositories WHERE path = 'r'")
				return err
			})
			catalogtest.Eventually(t, "the deletion waits", func() bool { return b.Waiting(t) >= 2 || len(deleted) > 0 })
			if len(deleted) > 0 {
				t.Error("the repository was deleted from under a write in progress")
			}
			x.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, what, done); err != nil {
				t.Fatal(err)
			}
			if err := catalogtest.Soon(t, "deletion", deleted); err != nil {
				t.Fatal(err)
			}
			// The repository is deleted now. The worker that removes its rows must see all
			// of its links: no transaction may add a link after the deletion.
			id := b.Count(t, "SELECT id FROM repositories WHERE path = 'r'")
			before := b.Count(t, "SELECT count(*) FROM repository_blobs WHERE repository_id = $1", id)
			y.Exec(t, "COMMIT")
			if after := b.Count(t, "SELECT count(*) FROM repository_blobs WHERE repository_id = $1", id); before != after || after == 0 {
				t.Errorf("%d links after the deletion, %d before", after, before)
			}
		})
	}
}

// Three clients commit the same upload while a review deletes a blob with the same content.
// Exactly one commit must succeed, and each storage key must belong to exactly one row: of
// a blob, an upload or a pending deletion.
func TestRaceOneOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "r", "layer")
	list, err := b.StartUploads(t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		t.Fatal(err)
	}
	u := list[0]
	u.Repository, u.Size = "r", 5
	d := oci.Compute(oci.SHA256, []byte("layer"))
	b.DueNow(t)
	p, watch := b.pausing(t, ofBlobs()), b.Session(t)
	p.to(t, beforeBlobDelete)
	var commits []<-chan error
	for range 3 {
		commits = append(commits, catalogtest.Later(func() error {
			return b.CommitUpload(context.Background(), u, d, u.StorageKey+"-0", false)
		}))
	}
	p.blocks(t, watch, 1)
	catalogtest.Eventually(t, "all wait", func() bool { return b.Waiting(t) >= 3 })
	p.ended(t)
	won := 0
	for _, c := range commits {
		if err := catalogtest.Soon(t, "commit", c); err == nil {
			won++
		} else {
			catalogtest.WantCode(t, err, oci.BlobUploadInvalid)
		}
	}
	if won != 1 {
		t.Errorf("%d of three commits of one upload succeeded", won)
	}
	if n := b.Count(t, "SELECT count(*) FROM uploads WHERE id = $1", uuid.UUID(u.ID)); n != 0 {
		t.Error("the upload is still there")
	}
	b.Owned(t)
}

// A review has locked manifests of a deleted repository, when the worker that removes the
// repository's rows comes. The worker must give up without an error rather than wait for
// the review, and a later run of the worker must remove all rows.
func TestDrainMeetsReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	w := b.LooseKeys(t, loosefk.Options{LockTimeout: 50 * time.Millisecond, RescheduleAfter: time.Millisecond})
	b.Fill(t, "acme/app")
	b.Exec(t, "DELETE FROM tags")
	b.Exec(t, "DELETE FROM manifest_references")
	p := b.pausing(t, ofManifests())
	p.to(t, beforeDelete)
	if err := b.Trash.DeleteRepository(t.Context(), "acme/app"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.RunOnce(t.Context(), "main"); err != nil {
		t.Errorf("the drain fails while a review holds a manifest: %v", err)
	}
	p.ended(t)
	b.Exec(t, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1")
	b.Drain(t, w)
	b.NoOrphans(t)
	b.ReviewAll(t)
	b.Nothing(t)
}
