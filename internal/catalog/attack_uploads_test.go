package catalog_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// A writer stalls after it has claimed an upload. Meanwhile another writer claims the upload,
// or the upload is committed, cancelled or reaped. When the first writer goes on, it must
// change nothing.
func TestAttackStalledWriter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	for what, end := range map[string]func(u catalog.Upload) error{
		"claimed": func(u catalog.Upload) error { _, err := b.ClaimUpload(ctx, u, 1, catalog.UploadNeed{}); return err },
		"committed": func(u catalog.Upload) error {
			claim, err := b.ClaimUpload(ctx, u, 1, catalog.UploadNeed{})
			u.Attempt = claim.Attempt
			if err == nil {
				err = b.Commit(u, "content")
			}
			return err
		},
		"cancelled": func(u catalog.Upload) error { return b.CancelUpload(ctx, "r", u.UploadID()) },
		"reaped": func(u catalog.Upload) error {
			b.Exec(t, "UPDATE uploads SET updated_at = now() - interval '2 days' WHERE id = $1", u.ID)
			_, err := b.ReapUploads(ctx, 24*time.Hour, 10)
			return err
		},
	} {
		u := b.Begun(t, "r")
		if err := end(u); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		before := b.Owned(t)
		_, err := b.UploadNumbers(ctx, u, 1)
		catalogtest.WantCode(t, err, oci.BlobUploadInvalid)
		_, err = b.SaveUpload(ctx, u)
		catalogtest.WantCode(t, err, oci.BlobUploadInvalid)
		_, err = b.ClaimUpload(ctx, u, 1, catalog.UploadNeed{})
		catalogtest.WantCode(t, err, oci.BlobUploadInvalid)
		for _, content := range []string{"late " + what, "content"} { // content of no blob, and content that may be a blob already
			catalogtest.WantCode(t, b.Commit(u, content), oci.BlobUploadInvalid)
		}
		if n := b.Count(t, "SELECT count(*) FROM blobs WHERE digest = $1", oci.Compute(oci.SHA256, []byte("late "+what)).Bytes()); n != 0 {
			t.Errorf("%s: a late writer made a blob", what)
		}
		if after := b.Owned(t); after != before {
			t.Errorf("%s: %d owners became %d", what, before, after)
		}
	}
}

// A reaper finds an upload that nobody has touched for two days, but a writer claims it before
// the reaper can lock its row. The reaper must leave the upload alone.
func TestAttackReaperMeetsWriter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	u := b.Begun(t, "r")
	b.Exec(t, "UPDATE uploads SET updated_at = now() - interval '2 days'")
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "UPDATE uploads SET attempt = attempt + 1, updated_at = now() WHERE id = $1", u.ID)
	if n, err := b.ReapUploads(t.Context(), 24*time.Hour, 10); err != nil || n != 0 {
		t.Fatalf("reaped %d, %v, while a request claims the upload", n, err)
	}
	x.Exec(t, "COMMIT")
	if n, err := b.ReapUploads(t.Context(), 24*time.Hour, 10); err != nil || n != 0 {
		t.Fatalf("reaped %d, %v, after a request claimed the upload", n, err)
	}
}

// A client cancels an upload while another request reserves a number for one more object of
// the upload. The cancellation must insert a row into gc_doomed_objects for the deletion of
// all objects whose keys begin with the upload's key prefix.
func TestAttackEndsAreDoomed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	u := b.Begun(t, "r")
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "UPDATE uploads SET numbers = numbers + 1 WHERE id = $1", u.ID)
	done := catalogtest.Later(func() error { return b.CancelUpload(context.Background(), "r", u.UploadID()) })
	x.Blocks(t, watch, 1)
	x.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "cancel", done); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE storage_key = $1 AND of_upload AND again_at > now()", u.StorageKey); n != 1 {
		t.Error("the objects of a cancelled upload have no owner")
	}
}

// Two uploads of the same blob are committed at once, and one of the uploads is committed
// twice. At the end there must be one blob, and no object may have two owner rows (a row of
// blobs and a pending deletion, for example).
func TestAttackCommitsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "r", "makes the repository")
	one, two := b.Begun(t, "r"), b.Begun(t, "r")
	d := oci.Compute(oci.SHA256, []byte("content"))
	x, watch := b.Session(t), b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, "INSERT INTO blobs (digest, size, storage_key) VALUES ($1, 7, 'mine')", d.Bytes())
	first := catalogtest.Later(func() error { return b.Commit(one, "content") })
	x.Blocks(t, watch, 1)
	second := catalogtest.Later(func() error { return b.Commit(two, "content") })
	x.Blocks(t, watch, 2)
	again := catalogtest.Later(func() error { return b.Commit(one, "content") })
	catalogtest.Eventually(t, "all wait", func() bool { return b.Waiting(t) >= 3 })
	x.Exec(t, "ROLLBACK")
	if err := catalogtest.Soon(t, "second", second); err != nil {
		t.Errorf("the other upload: %v", err)
	}
	// Commit the same upload twice: either commit may win.
	won, lost := catalogtest.Soon(t, "first", first), catalogtest.Soon(t, "again", again)
	if won != nil {
		won, lost = lost, won
	}
	if won != nil || oci.CodeOf(lost) != oci.BlobUploadInvalid {
		t.Errorf("the same upload twice: %v and %v, want one to succeed and one to be told", won, lost)
	}
	if n := b.Count(t, "SELECT count(*) FROM blobs WHERE digest = $1", d.Bytes()); n != 1 || !b.Linked(t, "r", d) {
		t.Errorf("%d blobs", n)
	}
	if n := b.Count(t, "SELECT count(*) FROM uploads WHERE id = ANY ($1)", []uuid.UUID{one.ID, two.ID}); n != 0 {
		t.Errorf("%d uploads are left", n)
	}
	if n := b.Count(t, fmt.Sprintf("SELECT count(*) FROM gc_doomed_objects WHERE storage_key IN ('%s', '%s') AND keep IS NULL",
		one.StorageKey, two.StorageKey)); n != 1 {
		t.Errorf("%d objects are doomed whole, want the loser's", n)
	}
	b.Owned(t)
}
