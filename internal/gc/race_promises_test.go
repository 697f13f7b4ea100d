package gc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// A client is told that a blob exists; then the last manifest that uses the blob is
// deleted. The blob must stay for the promised delay, even if the blob had no row in
// gc_blob_review_queue before, and even if later events have shorter delays. The test fails
// if the promise only postpones an existing row, or if events don't use GREATEST to keep
// the longer delay.
func TestRacePromiseOutlivesTheManifest(t *testing.T) {
	t.Parallel()
	for what, promise := range map[string]func(ctx context.Context, b bundle, d oci.Digest) error{
		"existence": func(ctx context.Context, b bundle, d oci.Digest) error {
			_, err := b.PromiseBlobExists(ctx, "r", d)
			return err
		},
		"mount": func(ctx context.Context, b bundle, d oci.Digest) error {
			_, err := b.Mount(ctx, "other", "r", d)
			return err
		},
		"upload": func(ctx context.Context, b bundle, _ oci.Digest) error {
			_, err := b.TryPush(ctx, "r", "layer")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Delays(t, "blob_upload")
			config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
			d := b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
			b.Forget(t)
			if err := promise(t.Context(), b, layer); err != nil {
				t.Fatal(err)
			}
			if err := b.DeleteManifest(t.Context(), "r", d); err != nil {
				t.Fatal(err)
			}
			if _, n := b.ReviewAll(t); n != 1 {
				t.Errorf("%d blobs were deleted, want the configuration, which nobody was promised", n)
			}
			if _, err := b.BlobNow(t.Context(), "r", layer); err != nil {
				t.Errorf("the blob was promised: %v", err)
			}
			b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), []oci.Digest{layer}, nil), "t")
		})
	}
}

// A client is told that a manifest exists; then the manifest loses its tag. The manifest
// must stay for the promised delay.
func TestRacePromiseOutlivesTheTag(t *testing.T) {
	t.Parallel()
	for what, promise := range map[string]func(ctx context.Context, b bundle, payload []byte) error{
		"existence": func(ctx context.Context, b bundle, payload []byte) error {
			_, err := b.PromiseManifestExists(ctx, "r", oci.Compute(oci.SHA256, payload))
			return err
		},
		"put again": func(ctx context.Context, b bundle, payload []byte) error {
			_, err := b.TryPut(ctx, "r", payload)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Delays(t, "manifest_upload", "blob_upload")
			payload := catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil)
			d := b.Put(t, "r", payload, "t")
			b.Forget(t)
			if err := promise(t.Context(), b, payload); err != nil {
				t.Fatal(err)
			}
			if err := b.DeleteTag(t.Context(), "r", "t"); err != nil {
				t.Fatal(err)
			}
			if n, _ := b.ReviewAll(t); n != 0 {
				t.Error("a manifest was deleted that a client was told exists")
			}
			b.Put(t, "r", catalogtest.Index(t, d), "list")
		})
	}
}

// A client asks whether a blob exists while a review deletes the blob. The request must
// wait, and then answer that the blob doesn't exist. The test fails if the request makes
// the promise of existence and looks the blob up in one statement, or looks the blob up
// first: in both cases it tells the client that a deleted blob exists.
func TestRaceAskedWhileDeleted(t *testing.T) { catalogtest.AtBoth(t, testRaceAskedWhileDeleted) }

func testRaceAskedWhileDeleted(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	for _, stop := range []string{beforeBlobLook, beforeBlobLock, beforeBlobDelete, beforeCommit} {
		d := b.Push(t, "r", "layer")
		b.DueNow(t)
		p := b.pausing(t, ofBlobs())
		p.to(t, stop)
		asked := catalogtest.Later(func() error { _, err := b.PromiseBlobExists(context.Background(), "r", d); return err })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Fatalf("stopped at %s: %+v", stop, out)
		}
		catalogtest.WantCode(t, catalogtest.Soon(t, "asking", asked), oci.BlobUnknown)
	}
}

// A client asks whether a manifest exists while a review deletes the manifest. The request
// must wait, and then answer that the manifest doesn't exist.
func TestRaceManifestAskedWhileDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	watch := b.Session(t)
	for _, stop := range []string{beforeLook, beforeLock, beforeDelete, beforeCommit} {
		d := b.Put(t, "r", catalogtest.Image(t, b.Push(t, "r", "config"), nil, nil))
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
		p := b.pausing(t, ofManifests())
		p.to(t, stop)
		asked := catalogtest.Later(func() error { _, err := b.PromiseManifestExists(context.Background(), "r", d); return err })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Fatalf("stopped at %s: %+v", stop, out)
		}
		catalogtest.WantCode(t, catalogtest.Soon(t, "asking", asked), oci.ManifestUnknown)
		// The client's request left a row in gc_manifest_review_queue, although the
		// manifest no longer exists. The review must drop that row when it is due.
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
		if out := b.ReviewBatch(t, reviewingManifests); out.Gone != out.Claimed {
			t.Errorf("stopped at %s: then %+v", stop, out)
		}
		b.Empty(t, "gc_manifest_review_queue")
	}
}

// A client asks whether a blob exists while a review finds the blob in use and drops the
// blob's row in gc_blob_review_queue. After the review the row must exist again, with the
// review delay of the promise that the client got. The test fails if the review doesn't
// lock the row: it would delete the client's promise with the row.
func TestRaceAskedWhileKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	b.DueNow(t)
	p, watch := b.pausing(t, ofBlobs()), b.Session(t)
	p.to(t, beforeBlobSettle)
	asked := catalogtest.Later(func() error { _, err := b.PromiseBlobExists(context.Background(), "r", config); return err })
	p.blocks(t, watch, 1)
	if out := p.ended(t); out.Kept != 1 {
		t.Fatalf("review: %+v", out)
	}
	if err := catalogtest.Soon(t, "asking", asked); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE review_after > now() + interval '23 hours'"); n != 1 {
		t.Error("the promise went with the row that the review dropped")
	}
}

// A client's transaction has postponed a blob's row in gc_blob_review_queue, and a review
// comes before the transaction commits. The review must skip the row, and after the commit
// the row must not be due. The test fails if the review waits because SKIP LOCKED is
// missing, or if it doesn't check after locking the row that the row is still due.
func TestRacePromiseBeforeReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.DueNow(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now() + interval '1 day' WHERE digest = $1", d.Bytes())
	if out := b.pausing(t, ofBlobs()).ended(t); out.Claimed != 0 {
		t.Errorf("review beside a promise: %+v", out)
	}
	x.Exec(t, "COMMIT")
	if out := b.ReviewBatch(t, reviewingBlobs); out.Claimed != 0 {
		t.Errorf("review after a promise: %+v", out)
	}
}

// A review of a manifest loses a race for locks. Before the reviewer postpones the
// manifest's queue row, a client is promised that the manifest exists. The row must keep
// the promise's longer delay. The test fails if PostponeReview sets rows to five seconds
// from now even if they have a longer delay.
func TestRacePromiseBeforePostponement(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	b.DueNow(t)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE", config.Bytes())
	_, err := b.pausing(t, ofManifests()).finish(t)
	failed := contended(t, err)
	if _, err := b.PromiseManifestExists(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	if err := b.PostponeReview(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE review_after > now() + interval '23 hours'"); n != 1 {
		t.Error("a review that gave way shortened a promise that was made since")
	}
	// The same must hold if a review has failed for another reason than a race for locks:
	// neither PostponeReview nor FailReview may shorten the delay of a promise made since.
	x.Exec(t, "COMMIT")
	b.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	b.Exec(t, "CREATE TRIGGER refuse BEFORE DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION refuse()")
	b.Forget(t)
	layer := b.Push(t, "r", "layer")
	b.DueNow(t)
	_, err = b.pausing(t, ofBlobs()).finish(t)
	failed = failure(t, err)
	if _, err := b.PromiseBlobExists(t.Context(), "r", layer); err != nil {
		t.Fatal(err)
	}
	if err := b.PostponeReview(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	if _, err := b.FailReview(t.Context(), failed, 1, func(int) time.Duration { return time.Second }); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, `SELECT count(*) FROM gc_blob_review_queue
			WHERE digest = $1 AND review_after > now() + interval '23 hours' AND set_aside_at IS NULL`, layer.Bytes()); n != 1 {
		t.Error("a review that failed shortened a promise that was made since, or set its row aside")
	}
}

// A review has failed, and another transaction has locked the queue row that is to be
// postponed. PostponeReview and FailReview must not wait until the row is free, and must
// not return an error.
func TestRaceFailedRowIsHeld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "r", "layer")
	b.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	b.Exec(t, "CREATE TRIGGER refuse BEFORE DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION refuse()")
	b.DueNow(t)
	_, err := b.pausing(t, ofBlobs()).finish(t)
	failed := failure(t, err)
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM gc_blob_review_queue FOR UPDATE")
	if err := b.PostponeReview(t.Context(), failed); err != nil {
		t.Errorf("postponing: %v", err)
	}
	if _, err := b.FailReview(t.Context(), failed, 3, func(int) time.Duration { return time.Minute }); err != nil {
		t.Errorf("counting the failure: %v", err)
	}
}

// A client commits an upload while a review deletes a blob of the same content. The commit
// must wait, run again, and store the blob anew under the upload's own storage key. The
// test fails if the commit takes a conflict on insertion (ON CONFLICT DO NOTHING) as proof
// that the blob stays: then the repository gets no link to the blob, or the link violates
// its foreign key.
func TestRaceUploadMeetsDeletion(t *testing.T) { catalogtest.AtBoth(t, testRaceUploadMeetsDeletion) }

func testRaceUploadMeetsDeletion(t *testing.T, dsn string) {
	b := replica(t, dsn)
	watch := b.Session(t)
	for i, stop := range []string{beforeBlobLook, beforeBlobLock, beforeBlobDelete, beforeBlobSettle, beforeCommit} {
		d := b.Push(t, "r", "layer")
		old, err := b.BlobNow(t.Context(), "r", d)
		if err != nil {
			t.Fatal(err)
		}
		b.DueNow(t)
		p := b.pausing(t, ofBlobs())
		p.to(t, stop)
		path := []string{"r", "other"}[i%2]
		pushed := catalogtest.Later(func() error { _, err := b.TryPush(context.Background(), path, "layer"); return err })
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Fatalf("stopped at %s: %+v", stop, out)
		}
		if err := catalogtest.Soon(t, "upload", pushed); err != nil {
			t.Fatalf("stopped at %s: %v", stop, err)
		}
		now, err := b.BlobNow(t.Context(), path, d)
		if err != nil || now.StorageKey == old.StorageKey {
			t.Errorf("stopped at %s: the upload succeeded, then %+v, %v", stop, now, err)
		}
		if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE storage_key = $1", old.StorageKey); n != 1 {
			t.Errorf("stopped at %s: the old object isn't a pending deletion", stop)
		}
		if got := b.queued(t, d); got != "blob_upload" {
			t.Errorf("stopped at %s: in review %q", stop, got)
		}
	}
	b.Owned(t)
}

// A client mounts a blob while a review deletes the blob. The mount must wait, and then
// report that there is no such blob.
func TestRaceMountMeetsDeletion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	watch := b.Session(t)
	for _, stop := range []string{beforeBlobLook, beforeBlobLock, beforeBlobDelete, beforeCommit} {
		d := b.Push(t, "r", "layer")
		b.DueNow(t)
		p := b.pausing(t, ofBlobs())
		p.to(t, stop)
		mounted := catalogtest.Later(func() error {
			ok, err := b.Mount(context.Background(), "other", "r", d)
			if ok {
				err = fmt.Errorf("mounted a blob that was deleted")
			}
			return err
		})
		p.blocks(t, watch, 1)
		if out := p.ended(t); out.Deleted != 1 {
			t.Fatalf("stopped at %s: %+v", stop, out)
		}
		if err := catalogtest.Soon(t, "mount", mounted); err != nil {
			t.Errorf("stopped at %s: %v", stop, err)
		}
		b.forgotten(t)
		b.Empty(t, "repository_blobs", "gc_blob_review_queue")
	}
}

// A process has cached a blob's storage key. Then the blob is deleted, and pushed again
// under another storage key. A reader that doesn't find the object in the store under the
// cached key calls BlobNow, which must return the new storage key.
func TestRaceReaderLooksOnceMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Listen(t)
	d := b.Push(t, "r", "layer")
	old, err := b.Blob(t.Context(), "r", d)
	if err != nil {
		t.Fatal(err)
	}
	b.DueNow(t)
	if out := b.ReviewBatch(t, reviewingBlobs); out.Deleted != 1 {
		t.Fatalf("review: %+v", out)
	}
	b.Push(t, "r", "layer")
	now, err := b.BlobNow(t.Context(), "r", d)
	if err != nil || now.StorageKey == old.StorageKey {
		t.Errorf("the blob was stored anew, and the reader is told %+v, %v", now, err)
	}
}
