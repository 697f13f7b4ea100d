package catalog_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// A client mounts or uploads a blob while another transaction deletes the repository's link to
// it. The client's request must make a new link: if it succeeds, the blob must be linked.
func TestAttackLinkGoesWhileItIsMade(t *testing.T) {
	t.Parallel()
	for what, again := range map[string]func(b bundle, d oci.Digest) error{
		"mount": func(b bundle, d oci.Digest) error {
			ok, err := b.Mount(context.Background(), "r", "other", d)
			if err == nil && !ok {
				err = fmt.Errorf("not mounted")
			}
			return err
		},
		"upload": func(b bundle, _ oci.Digest) error {
			_, err := b.TryPush(context.Background(), "r", "layer")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			d := b.Push(t, "r", "layer")
			b.Push(t, "other", "layer")
			gc, watch := b.Session(t), b.Session(t)
			gc.Exec(t, "BEGIN")
			gc.Exec(t, "SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE SKIP LOCKED", d.Bytes())
			done := catalogtest.Later(func() error { return again(b, d) })
			gc.Blocks(t, watch, 1)
			// The session gc acts as a review: it deletes repository r's link to the blob, which
			// no manifest needs, and keeps the blob.
			gc.Exec(t, `DELETE FROM repository_blobs rb USING repositories r
				WHERE r.id = rb.repository_id AND r.path = 'r' AND rb.blob_digest = $1`, d.Bytes())
			gc.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, what, done); err != nil {
				t.Fatal(err)
			}
			if !b.Linked(t, "r", d) {
				t.Errorf("%s succeeded, but the repository doesn't have the blob", what)
			}
			if _, err := b.PromiseBlobExists(t.Context(), "r", d); err != nil {
				t.Errorf("%s succeeded, then: %v", what, err)
			}
		})
	}
}

// A client asks by HEAD for a blob whose row a review has locked. The answer must come only
// after the review has deleted the blob, and be BLOB_UNKNOWN.
func TestAttackPromiseWaitsForReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	gc, watch := b.Session(t), b.Session(t)
	if !gc.Collecting(t, d) {
		t.Fatal("nothing to review")
	}
	done := catalogtest.Later(func() error { _, err := b.PromiseBlobExists(context.Background(), "r", d); return err })
	gc.Blocks(t, watch, 1)
	gc.Collect(t, d)
	catalogtest.WantCode(t, catalogtest.Soon(t, "HEAD", done), oci.BlobUnknown)
}

// A client asks by HEAD for a blob that has no row in gc_blob_review_queue. PromiseBlobExists
// must insert a row that is due after a day, so that no review deletes the blob within this
// day.
func TestAttackPromiseIsARow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	if _, err := b.PromiseBlobExists(t.Context(), "r", d); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE digest = $1 AND review_after > now() + interval '23 hours'", d.Bytes()); n != 1 {
		t.Error("nothing keeps the blob from review")
	}
}

// A client uploads, mounts or puts a manifest with a blob that a review is deleting. The
// request must wait for the end of the review. Its answer must be right both if the review
// deletes the blob and if it keeps the blob.
func TestAttackBlobGoes(t *testing.T) {
	t.Parallel()
	type outcome struct {
		deleted, kept oci.Code // "" for success
	}
	for what, c := range map[string]struct {
		do   func(b bundle, d oci.Digest, payload []byte) error
		want outcome
	}{
		"upload": {func(b bundle, _ oci.Digest, _ []byte) error {
			_, err := b.TryPush(context.Background(), "r", "layer")
			return err
		},
			outcome{}},
		"manifest": {func(b bundle, _ oci.Digest, payload []byte) error {
			_, err := b.TryPut(context.Background(), "r", payload, "t")
			return err
		}, outcome{deleted: oci.ManifestBlobUnknown}},
	} {
		for _, kept := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,kept=%v", what, kept), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				d := b.Push(t, "r", "layer")
				payload := catalogtest.Image(t, b.Push(t, "r", "config"), []oci.Digest{d}, nil)
				gc, watch := b.Session(t), b.Session(t)
				if !gc.Collecting(t, d) {
					t.Fatal("nothing to review")
				}
				done := catalogtest.Later(func() error { return c.do(b, d, payload) })
				gc.Blocks(t, watch, 1)
				want := c.want.kept
				if kept {
					gc.Exec(t, "ROLLBACK")
				} else {
					gc.Collect(t, d)
					want = c.want.deleted
				}
				err := catalogtest.Soon(t, what, done)
				if oci.CodeOf(err) != want || (want == "" && err != nil) {
					t.Fatalf("%v, want %q", err, want)
				}
				if want == "" && !b.Linked(t, "r", d) {
					t.Error("it succeeded, but the repository doesn't have the blob")
				}
				b.Owned(t)
			})
		}
	}
}

// While a client's put of a manifest isn't committed yet, a review of the manifest's layer
// must find the blob locked and leave it alone.
func TestAttackPutHoldsItsBlobs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	x, watch, gc := b.Session(t), b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "SELECT FROM tags FOR UPDATE")
	done := catalogtest.Later(func() error {
		_, err := b.TryPut(context.Background(), "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
		return err
	})
	x.Blocks(t, watch, 1)
	if gc.Collecting(t, layer) {
		t.Error("a blob that a manifest is being put with could be deleted")
	}
	// Meanwhile another client deletes the layer's link. Its request must wait for the put,
	// and then be refused.
	unlink := catalogtest.Later(func() error { return b.DeleteBlob(context.Background(), "r", layer) })
	catalogtest.Eventually(t, "the deletion waits", func() bool {
		return b.Count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") >= 2
	})
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", done); err != nil {
		t.Fatal(err)
	}
	catalogtest.WantCode(t, catalogtest.Soon(t, "unlink", unlink), oci.Denied)
}

// A client puts a manifest while another client unlinks one of the manifest's blobs. The put
// must wait for the unlinking, and then be refused.
func TestAttackUnlinkBeforePut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "DELETE FROM repository_blobs WHERE blob_digest = $1", layer.Bytes())
	done := catalogtest.Later(func() error {
		_, err := b.TryPut(context.Background(), "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "t")
		return err
	})
	x.Blocks(t, watch, 1)
	x.Exec(t, "COMMIT")
	catalogtest.WantCode(t, catalogtest.Soon(t, "put", done), oci.ManifestBlobUnknown)
}

// After an upload has ended, the sweeper deletes its objects from the store at once, and a
// second time when no request can write such an object any more. The time of this second
// deletion is in the column again_at of the upload's row in gc_doomed_objects. Here the first
// deletion begins before again_at and ends after it. The second deletion must stay due, since
// a request may have written an object after the sweeper had read the store for the first.
func TestAttackSweepThatBeganTooEarly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, of_upload, again_at) VALUES ('base', true, now() + interval '300 ms')")
	list, err := b.ClaimPending(t.Context(), 10, 0)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	// Now the sweeper deletes the upload's objects from the store for the first time. A late
	// request may still write an object after that.
	catalogtest.Eventually(t, "the longest request is over", func() bool {
		return b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE again_at <= now()") == 1
	})
	if err := b.SettlePending(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects"); n != 1 {
		t.Error("the sweep began before the longest request was over, and there is no second one")
	}
	if list, err = b.ClaimPending(t.Context(), 10, 0); err != nil || len(list) != 1 {
		t.Fatalf("the second sweep isn't due: %v, %v", list, err)
	}
	if err := b.SettlePending(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects"); n != 0 {
		t.Error("swept after the longest request, and still not forgotten")
	}
}

// A client mounts or uploads a blob while another client deletes the repository's link to it.
// The clients' transactions must not deadlock.
func TestAttackLinkAndUnlink(t *testing.T) {
	t.Parallel()
	for what, link := range map[string]func(ctx context.Context, b bundle, d oci.Digest) error{
		"mount": func(ctx context.Context, b bundle, d oci.Digest) error {
			_, err := b.Mount(ctx, "r", "other", d)
			return err
		},
		"upload": func(ctx context.Context, b bundle, _ oci.Digest) error {
			_, err := b.TryPush(ctx, "r", "layer")
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := replica(t, catalogtest.PatientDSN(t))
			d := b.Push(t, "r", "layer")
			b.Push(t, "other", "layer")
			x, watch := b.Session(t), b.Session(t)
			x.Exec(t, "BEGIN") // locks the link as the put of a manifest does
			x.Exec(t, "SELECT FROM repository_blobs WHERE blob_digest = $1 FOR KEY SHARE", d.Bytes())
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			unlinked := catalogtest.Later(func() error { return b.DeleteBlob(ctx, "r", d) })
			x.Blocks(t, watch, 1)
			linked := catalogtest.Later(func() error { return link(ctx, b, d) })
			b.stuck(t, linked)
			x.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "unlink", unlinked); err != nil {
				t.Errorf("unlink: %v", err)
			}
			if err := catalogtest.Soon(t, what, linked); err != nil {
				t.Errorf("%s: %v", what, err)
			} else if !b.Linked(t, "r", d) {
				t.Errorf("%s waited for the deletion and succeeded, but the repository doesn't have the blob", what)
			}
		})
	}
}
