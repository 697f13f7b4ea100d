package gc_test

import (
	"context"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// A review finds a blob unused. Before it locks the blob, a client puts a manifest that
// uses the blob. The review must keep the blob, since it looks for references again once it
// has the lock. The test fails if the review looks only once, or if its statements don't
// see references that were committed after its transaction began.
func TestRacePutBetweenLookAndLock(t *testing.T) {
	catalogtest.AtBoth(t, testRacePutBetweenLookAndLock)
}

func testRacePutBetweenLookAndLock(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer, stray := b.Push(t, "r", "config"), b.Push(t, "r", "layer"), b.Push(t, "r", "stray")
	b.DueNow(t)
	p := b.pausing(t, ofBlobs(), "default_transaction_isolation", "repeatable read")
	p.to(t, beforeBlobLock)
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
	if out := p.ended(t); out.Kept != 2 || out.Deleted != 1 {
		t.Errorf("review: %+v; want the manifest's blobs kept and the stray one deleted", out)
	}
	b.Whole(t, "r", "t", config, layer)
	b.Empty(t, "gc_blob_review_queue")
	if b.Linked(t, "r", stray) {
		t.Error("the stray blob is still there")
	}
	b.Owned(t)
}

// A client is putting a manifest and has locked the manifest's blobs, when a review wants
// to lock these blobs. The review must postpone the blobs' rows in gc_blob_review_queue.
// The test fails if the review takes a blob that it can't lock for deleted: it would drop
// the row, and nobody would review the blob if the put fails. The test also fails if the
// review leaves the rows due, since the next review would try again at once.
func TestRacePutHoldsItsBlobs(t *testing.T) { catalogtest.AtBoth(t, testRacePutHoldsItsBlobs) }

func testRacePutHoldsItsBlobs(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "other"), nil, nil), "t")
	b.Forget(t)
	b.Push(t, "r", "config")
	b.Push(t, "r", "layer")
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags FOR UPDATE")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err })
	x.Blocks(t, watch, 1)
	if out := b.pausing(t, ofBlobs()).ended(t); out.Postponed != 2 || out.Claimed != 2 {
		t.Errorf("review: %+v; want both blobs locked", out)
	}
	b.putOff(t, "gc_blob_review_queue", 2)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Claimed != 0 {
		t.Errorf("the next review: %+v; want that it leaves alone what is locked", out)
	}
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Kept != 2 {
		t.Errorf("afterwards: %+v", out)
	}
	b.Whole(t, "r", "t", config, layer)
}

// A client puts a manifest while a review deletes one of the manifest's blobs. The put must
// wait for the review, be refused, and leave no rows. The test fails if the put ends with a
// foreign key error: this happens if the put neither locks the manifest's blobs before it
// checks them, nor runs again after the error.
func TestRacePutMeetsDeletion(t *testing.T) { catalogtest.AtBoth(t, testRacePutMeetsDeletion) }

func testRacePutMeetsDeletion(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	for _, stop := range []string{beforeBlobDelete, beforeBlobSettle, beforeCommit} {
		config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
		b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() WHERE digest = $1", layer.Bytes())
		p := b.pausing(t, ofBlobs())
		p.to(t, stop)
		payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
		put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Errorf("stopped at %s: %+v", stop, out)
		}
		catalogtest.WantCode(t, catalogtest.Soon(t, "put", put), oci.ManifestBlobUnknown)
		b.Empty(t, "manifests", "tags", "layers", "gc_blobs_layers", "gc_blobs_configurations", "gc_manifest_review_queue")
	}
}

// A review has found a blob in use and is about to drop its row in gc_blob_review_queue.
// Then a client, or the worker that removes a deleted repository's rows, deletes the last
// manifest that uses the blob. The deletion must wait for the review and then insert the
// row again. The test fails if the review doesn't lock the row when it claims it, or if the
// triggers insert with ON CONFLICT DO NOTHING: in both cases nobody would review the blob
// again.
func TestRaceLastManifestGoesWhileKept(t *testing.T) {
	catalogtest.AtBoth(t, testRaceLastManifestGoesWhileKept)
}

func testRaceLastManifestGoesWhileKept(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch, x := b.Session(t), b.Session(t)
	for what, do := range map[string]func(d oci.Digest) error{
		"client": func(d oci.Digest) error { return b.DeleteManifest(context.Background(), "r", d) },
		"drain": func(oci.Digest) error {
			_, err := x.Conn.Exec(context.Background(), "WITH t AS (DELETE FROM tags) DELETE FROM manifests")
			return err
		},
	} {
		for i, stop := range []string{beforeBlobSettle, beforeCommit, beforeBlobSettle, beforeCommit} {
			config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
			d := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
			b.Forget(t)
			kept := []oci.Digest{config, layer}[i/2]
			b.Push(t, "r", []string{"config", "layer"}[i/2])
			b.DueNow(t)
			p := b.pausing(t, ofBlobs())
			p.to(t, stop)
			deleted := catalogtest.Later(func() error { return do(d) })
			p.blocks(t, watch, 1)
			if out := p.ended(t); out.Kept != 1 {
				t.Fatalf("%s, stopped at %s: %+v", what, stop, out)
			}
			if err := catalogtest.Soon(t, what, deleted); err != nil {
				t.Fatal(err)
			}
			if n := b.Count(t, `SELECT count(*) FROM gc_blob_review_queue
					WHERE digest = $1 AND review_after > now() + interval '23 hours'`, kept.Bytes()); n != 1 {
				t.Errorf("%s, stopped at %s: the blob isn't in review, with a delay of its own", what, stop)
			}
			b.DueNow(t)
			b.ReviewAll(t)
			b.Nothing(t)
		}
	}
}

// A client deletes the last manifest that uses a blob, and has locked the blob's row in
// gc_blob_review_queue, when a review comes. The review must skip the row, which must have
// the deletion's event afterwards.
func TestRaceLastManifestGoesFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	b.DueNow(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "DELETE FROM tags")
	x.Exec(t, "DELETE FROM manifests WHERE digest = $1", d.Bytes())
	if out := b.pausing(t, ofBlobs()).ended(t); out.Claimed != 0 {
		t.Errorf("review: %+v; want it to leave the row that the deletion wrote", out)
	}
	x.Exec(t, "COMMIT")
	if got := b.queued(t, config); got != "manifest_delete" {
		t.Errorf("in review: %q", got)
	}
}

// A client removes a blob from its repository while a review deletes the blob. The client
// must wait and get BLOB_UNKNOWN. The client's request leaves a row in
// gc_blob_review_queue, which the next review must drop.
func TestRaceUnlinkMeetsDeletion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	watch := b.Session(t)
	for _, stop := range []string{beforeBlobLook, beforeBlobLock, beforeBlobDelete, beforeCommit} {
		d := b.Push(t, "r", "layer")
		b.DueNow(t)
		p := b.pausing(t, ofBlobs())
		p.to(t, stop)
		unlinked := catalogtest.Later(func() error { return b.DeleteBlob(context.Background(), "r", d) })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Fatalf("stopped at %s: %+v", stop, out)
		}
		catalogtest.WantCode(t, catalogtest.Soon(t, "unlinking", unlinked), oci.BlobUnknown)
		b.forgotten(t)
		b.Empty(t, "gc_blob_review_queue")
	}
}

// A client removes the last link of a blob to a repository, while the blob is due for
// review. The client locks the blob's row in gc_blob_review_queue first, so the review must
// skip the blob; a later review must delete it.
func TestRaceUnlinkFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Delays(t)
	d := b.Push(t, "r", "layer")
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM repository_blobs FOR KEY SHARE")
	unlinked := catalogtest.Later(func() error { return b.DeleteBlob(context.Background(), "r", d) })
	x.Blocks(t, watch, 1)
	if out := b.pausing(t, ofBlobs()).ended(t); out.Claimed != 0 {
		t.Errorf("review: %+v", out)
	}
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "unlinking", unlinked); err != nil {
		t.Fatal(err)
	}
	if out := b.ReviewBatch(t, reviewingBlobs); out.Deleted != 1 {
		t.Errorf("afterwards: %+v", out)
	}
	b.Nothing(t)
}

// A review finds that no manifest of a repository uses a blob. Before the review locks the
// repository's link to the blob, a client puts a manifest that uses the blob into this
// repository. The link must stay. The test fails if the review deletes links without
// checking again, after it has locked them, that they are unused.
func TestRaceLinkUsedBetweenLookAndLock(t *testing.T) {
	catalogtest.AtBoth(t, testRaceLinkUsedBetweenLookAndLock)
}

func testRaceLinkUsedBetweenLookAndLock(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
	for _, path := range []string{"other", "third"} {
		for _, d := range []oci.Digest{config, layer} {
			if ok, err := b.Mount(t.Context(), path, "r", d); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
	b.DueNow(t)
	p := b.pausing(t, ofBlobs())
	p.to(t, beforeLinkLock)
	b.Put(t, "other", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
	if out := p.ended(t); out.Links != 2 || out.Kept != 2 {
		t.Errorf("review: %+v; want the two links of the third repository removed", out)
	}
	b.Whole(t, "other", "t", config, layer)
	_, err := b.BlobNow(t.Context(), "third", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	b.Empty(t, "gc_blob_review_queue")
}

// A review is removing a repository's link to a blob, when a client puts a manifest that
// uses the blob into this repository. The put must wait and be refused. The test fails if
// the put doesn't lock the links to the manifest's blobs, or if the review removes links
// without a lock that conflicts with the put's lock: then the put succeeds, although the
// repository no longer serves a blob of the manifest.
func TestRacePutMeetsUnlinking(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	b.Put(t, "r", payload, "t")
	b.Push(t, "other", "config")
	if ok, err := b.Mount(t.Context(), "other", "r", layer); !ok || err != nil {
		t.Fatal(ok, err)
	}
	b.DueNow(t)
	p, watch := b.pausing(t, ofBlobs()), b.Session(t)
	p.to(t, beforeLinkDelete)
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "other", payload, "t"); return err })
	p.blocks(t, watch, 1)
	if out := p.ended(t); out.Links != 2 {
		t.Errorf("review: %+v; want both links removed", out)
	}
	catalogtest.WantCode(t, catalogtest.Soon(t, "put", put), oci.ManifestBlobUnknown)
	if n := b.Rows(t, "manifests"); n != 1 {
		t.Errorf("%d manifests, want only the first", n)
	}
}

// A client is putting a manifest into a repository and has locked the repository's links to
// the manifest's blobs. A review must leave these links, and must review the blobs again
// later. The test fails if the review waits for the links: its lock timeout would end it
// each time.
func TestRacePutHoldsItsLinks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	b.Put(t, "r", payload, "t")
	b.Push(t, "other", "config")
	b.Push(t, "other", "layer")
	b.Put(t, "other", catalogtest.Image(t, b.Push(t, "other", "x"), nil, nil), "t")
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags t, repositories r WHERE r.path = 'other' AND t.repository_id = r.id FOR UPDATE OF t")
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "other", payload, "t"); return err })
	x.Blocks(t, watch, 1)
	if out := b.pausing(t, ofBlobs()).ended(t); out.Links != 0 || out.Kept != 3 {
		t.Errorf("review: %+v; want no link removed", out)
	}
	b.putOff(t, "gc_blob_review_queue", 2)
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	b.Whole(t, "other", "t", config, layer)
}

// A client mounts or uploads a blob while a review removes the repository's link to the
// blob. The client's request must wait for the review, and insert the link again. The test
// fails if the request inserts the link with ON CONFLICT DO NOTHING without having waited
// for the blob's row in gc_blob_review_queue: it would take the link that the review
// deletes for its own.
func TestRaceLinkIsMadeAnew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
	watch := b.Session(t)
	for what, link := range map[string]func() error{
		"mount": func() error {
			_, err := b.Mount(context.Background(), "other", "r", layer)
			return err
		},
		"upload": func() error {
			_, err := b.TryPush(context.Background(), "other", "layer")
			return err
		},
	} {
		b.Push(t, "other", "layer")
		b.DueNow(t)
		p := b.pausing(t, ofBlobs())
		p.to(t, beforeLinkDelete)
		linked := catalogtest.Later(link)
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Links != 1 {
			t.Errorf("%s: review: %+v; want the link removed", what, out)
		}
		if err := catalogtest.Soon(t, what, linked); err != nil {
			t.Fatal(err)
		}
		if !b.Linked(t, "other", layer) {
			t.Errorf("%s succeeded, but the repository doesn't have the blob", what)
		}
	}
}

// One row in gc_blob_review_queue names a blob that doesn't exist, another names a blob
// that a client has locked. A review can lock neither blob. It must drop the first row and
// postpone the second.
func TestRaceGoneAndLocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gone, held := b.Push(t, "r", "gone"), b.Push(t, "r", "held")
	b.Exec(t, "DELETE FROM blobs WHERE digest = $1", gone.Bytes())
	b.DueNow(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR KEY SHARE", held.Bytes())
	if out := b.pausing(t, ofBlobs()).ended(t); out.Gone != 1 || out.Postponed != 1 {
		t.Errorf("review: %+v", out)
	}
	b.putOff(t, "gc_blob_review_queue", 1)
	if n := b.Rows(t, "gc_blob_review_queue"); n != 1 {
		t.Errorf("%d rows in the queue, want one", n)
	}
}

// Another transaction has deleted a blob and hasn't committed, so a review can't lock the
// blob. The deletion commits before the review looks whether the blob exists, and a client
// pushes the blob again at once. The push must wait for the review. The review must drop
// the blob's row in gc_blob_review_queue, and the push must insert a new one.
func TestRaceGoneAndBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.DueNow(t)
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "DELETE FROM blobs")
	p := b.pausing(t, ofBlobs())
	p.to(t, `FROM unnest\(.*FROM blobs WHERE digest = d.digest`)
	x.Exec(t, "COMMIT")
	pushed := catalogtest.Later(func() error { _, err := b.TryPush(context.Background(), "r", "layer"); return err })
	p.blocks(t, watch, 1)
	if out := p.ended(t); out.Gone != 1 {
		t.Errorf("review: %+v", out)
	}
	if err := catalogtest.Soon(t, "push", pushed); err != nil {
		t.Fatal(err)
	}
	if got := b.queued(t, d); got != "blob_upload" {
		t.Errorf("in review: %q", got)
	}
}

// When a review deletes a new blob, the request that wrote the blob's object may still be
// calling the store. Therefore the sweeper must delete the object from the store twice. The
// object of a blob that is three hours old must be deleted only once.
func TestRaceYoungObjectIsSweptTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "r", "young")
	old := b.Push(t, "r", "old")
	b.Exec(t, "UPDATE blobs SET created_at = now() - interval '3 hours' WHERE digest = $1", old.Bytes())
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Deleted != 2 {
		t.Fatalf("review: %+v", out)
	}
	sweep := func() int {
		list, err := b.ClaimPending(t.Context(), 10, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.SettlePending(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := sweep(); n != 2 {
		t.Errorf("%d objects are due at once, want both", n)
	}
	if n := sweep(); n != 0 || b.Rows(t, "gc_doomed_objects") != 1 {
		t.Errorf("%d objects are due again at once; %d are known", n, b.Rows(t, "gc_doomed_objects"))
	}
	b.Exec(t, "UPDATE gc_doomed_objects SET again_at = now(), delete_after = now()")
	if n := sweep(); n != 1 || b.Rows(t, "gc_doomed_objects") != 0 {
		t.Errorf("%d objects are swept after the longest request, %d are left", n, b.Rows(t, "gc_doomed_objects"))
	}
}

// Foreign keys are the last safeguard: a blob in use must not be deleted even if its
// references are missing in the tables in which reviews look for them. The review must
// fail, for another reason than a race for locks, and must not record the object as a
// pending deletion.
func TestRaceForeignKeysHold(t *testing.T) { catalogtest.AtBoth(t, testRaceForeignKeysHold) }

func testRaceForeignKeysHold(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
	b.Exec(t, "DELETE FROM gc_blobs_layers")
	b.Exec(t, "DELETE FROM gc_blobs_configurations")
	for _, d := range []oci.Digest{config, layer} {
		b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() WHERE digest = $1", d.Bytes())
		_, err := b.pausing(t, ofBlobs()).finish(t)
		if failed := failure(t, err); failed.Contended() {
			t.Errorf("the deletion of a blob in use is taken for a lost race: %v", failed)
		}
		b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() + interval '1 day'")
	}
	b.Whole(t, "r", "t", config, layer)
	b.Empty(t, "gc_doomed_objects")
}
