package catalog_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
)

// promised starts an upload of the repository acme/app, whose request claims it and is promised room
// for n bytes.
func (b bundle) promised(t *testing.T, n int64) (catalog.Upload, error) {
	t.Helper()
	list, err := b.StartUploads(t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		t.Fatal(err)
	}
	u := list[0]
	u.Repository = "acme/app"
	claim, err := b.ClaimUpload(t.Context(), u, 1, catalog.UploadNeed{Bytes: n})
	u.Attempt = claim.Attempt
	return u, err
}

// old lets time pass until the promise to an upload is over.
func (b bundle) old(t *testing.T, u catalog.Upload) {
	t.Helper()
	b.Exec(t, "UPDATE uploads SET promised_until = now() - interval '1 s' WHERE id = $1", u.ID)
}

// TestDeadRequestGivesItsRoomBack: the process of a request that was promised room dies. When the
// promise is over, others get the room, and the dead upload can be continued if there is room.
func TestDeadRequestGivesItsRoomBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Limit(t, "acme", quota.Usage{Bytes: 100})
	dead, err := b.promised(t, 90)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.promised(t, 50); oci.CodeOf(err) != oci.Denied {
		t.Fatalf("while the first request may live: %v", err)
	}
	b.old(t, dead)
	if err := b.Quotas.AdmitBlob(t.Context(), "acme/app", uuid.Nil, oci.Digest{}, 50); err != nil {
		t.Errorf("before the body: %v", err)
	}
	second, err := b.promised(t, 50)
	if err != nil {
		t.Fatalf("after the promise was over: %v", err)
	}
	// The client of the dead request tries again.
	if _, err := b.ClaimUpload(t.Context(), dead, 1, catalog.UploadNeed{Bytes: 90}); oci.CodeOf(err) != oci.Denied {
		t.Errorf("the dead upload goes on: %v", err)
	}
	if err := b.ReleaseUpload(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ClaimUpload(t.Context(), dead, 1, catalog.UploadNeed{Bytes: 90}); err != nil {
		t.Errorf("the dead upload goes on when there is room: %v", err)
	}
}

// TestDeadUploadIsReaped: nothing of an upload was acknowledged when its process died, so it is
// deleted soon with what it has in the store, also if another request has taken back what it was
// promised. Others stay: one whose request lives, one that has acknowledged bytes, and one that was
// continued after the quota had been deleted.
func TestDeadUploadIsReaped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Limit(t, "acme", quota.Usage{Bytes: 1000})
	var list []catalog.Upload
	for range 5 {
		u, err := b.promised(t, 90)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, u)
	}
	taken := list[4]
	b.old(t, taken)
	other, err := b.promised(t, 600)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := b.RenewUpload(t.Context(), taken); p != catalog.PromiseOver || err != nil {
		t.Errorf("what was taken back is renewed: %v, %v", p, err)
	}
	if n, err := b.ReapUploads(t.Context(), time.Hour, 10); n != 0 || err != nil {
		t.Errorf("%d uploads were deleted at once (%v), want none", n, err)
	}
	b.Exec(t, "UPDATE uploads SET promised_until = promised_until - interval '11 min' WHERE id <> ALL ($1)", []uuid.UUID{list[1].ID, other.ID})
	b.Exec(t, "UPDATE uploads SET size = 1 WHERE id = $1", list[2].ID)
	b.Exec(t, "DELETE FROM namespacequotas")
	if _, err := b.ClaimUpload(t.Context(), list[3], 1, catalog.UploadNeed{Bytes: 90}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.ReapUploads(t.Context(), time.Hour, 10); n != 2 || err != nil {
		t.Errorf("%d uploads were deleted (%v), want 2", n, err)
	}
	for _, dead := range []catalog.Upload{list[0], taken} {
		if _, err := b.Upload(t.Context(), "acme/app", dead.UploadID()); oci.CodeOf(err) != oci.BlobUploadUnknown {
			t.Errorf("the dead upload: %v", err)
		}
	}
}

// TestLostRequestLeavesPromises: a request claims or saves an upload that another one has claimed since.
// It must change nothing of what that one was promised.
func TestLostRequestLeavesPromises(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "x")
	b.Limit(t, "acme", quota.Usage{Bytes: 100})
	u, err := b.promised(t, 90)
	if err != nil {
		t.Fatal(err)
	}
	lost := u
	lost.Attempt, lost.Size, lost.Tail = u.Attempt-1, 10, []byte("0123456789")
	if c, err := b.ClaimUpload(t.Context(), lost, 1, catalog.UploadNeed{Bytes: 10}); oci.CodeOf(err) != oci.BlobUploadInvalid || c != (catalog.UploadClaim{}) {
		t.Errorf("a late claim: %+v, %v", c, err)
	}
	if saved, err := b.SaveUpload(t.Context(), lost); oci.CodeOf(err) != oci.BlobUploadInvalid || saved.Attempt != lost.Attempt {
		t.Errorf("a late save: %+v, %v", saved, err)
	}
	if n := b.Count(t, "SELECT count(*) FROM uploads WHERE id = $1 AND attempt = $2 AND expected = 90 AND promised_until > now()", u.ID, u.Attempt); n != 1 {
		t.Error("a late request has changed what another one was promised")
	}
}

// TestRoomForKnownBlob: a namespace that is full gives an upload the room for a blob that it has, and
// for no more bytes than the blob's: whoever names its digest may be lying. Two at once would need room.
func TestRoomForKnownBlob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "0123456789")
	d := oci.Compute(oci.SHA256, []byte("0123456789"))
	b.Limit(t, "acme", quota.Usage{Bytes: 10})
	claim := func(n, ahead int64) (catalog.Upload, catalog.UploadClaim, error) {
		t.Helper()
		u := b.Begun(t, "acme/app")
		c, err := b.ClaimUpload(t.Context(), u, 1, catalog.UploadNeed{Bytes: n, Ahead: ahead, Digest: d})
		u.Attempt = c.Attempt
		return u, c, err
	}
	if err := b.Quotas.AdmitBlob(t.Context(), "acme/app", uuid.Nil, d, 11); oci.CodeOf(err) != oci.Denied {
		t.Errorf("a longer body is admitted: %v", err)
	}
	if _, c, err := claim(11, 0); oci.CodeOf(err) != oci.Denied {
		t.Errorf("a longer upload: %+v, %v", c, err)
	}
	u, c, err := claim(5, 100)
	if err != nil || c.Room != 10 {
		t.Errorf("an upload of unknown length: %+v, %v; want room for the blob", c, err)
	}
	if _, _, err := b.ReserveUpload(t.Context(), u, catalog.UploadNeed{Bytes: 11, Ahead: 100, Digest: d}); oci.CodeOf(err) != oci.Denied {
		t.Errorf("more than the blob: %v", err)
	}
	if _, c, err := claim(10, 0); oci.CodeOf(err) != oci.Denied {
		t.Errorf("two at once: %+v, %v", c, err)
	}
	if err := b.CancelUpload(t.Context(), "acme/app", u.UploadID()); err != nil {
		t.Fatal(err)
	}
	if _, c, err := claim(10, 0); err != nil || c.Room != 10 {
		t.Errorf("one after the other: %+v, %v", c, err)
	}
}

// TestRoomForKnownBlobBesideUploadAtRest: a namespace has more than its lowered quota with an upload
// that no request continues. Such an upload must not keep others from pushing a blob that the namespace
// has; a request that does the same now must.
func TestRoomForKnownBlobBesideUploadAtRest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.Push(t, "acme/app", "0123456789")
	d := oci.Compute(oci.SHA256, []byte("0123456789"))
	b.Limit(t, "acme", quota.Usage{Bytes: 20})
	rests, err := b.promised(t, 10)
	if err != nil {
		t.Fatal(err)
	}
	rests.Size, rests.Tail = 10, []byte("unfinished")
	if rests, err = b.SaveUpload(ctx, rests); err != nil {
		t.Fatal(err)
	}
	q, _, err := b.Quotas.Of(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Quotas.Change(ctx, "acme", q.ID, quota.Values{Bytes: new(int64(10))}); err != nil {
		t.Fatal(err)
	}
	claim := func() (catalog.Upload, catalog.UploadClaim, error) {
		t.Helper()
		u := b.Begun(t, "acme/app")
		c, err := b.ClaimUpload(ctx, u, 1, catalog.UploadNeed{Bytes: 10, Digest: d})
		u.Attempt = c.Attempt
		return u, c, err
	}
	u, c, err := claim()
	if err != nil || c.Room != 10 || !c.Beyond {
		t.Fatalf("beside an upload that rests: %+v, %v", c, err)
	}
	if _, c, err := claim(); oci.CodeOf(err) != oci.Denied {
		t.Errorf("beside a request that runs: %+v, %v", c, err)
	}
	// The first request fails.
	if err := b.AbandonUpload(ctx, u); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE storage_key = $1 AND of_upload AND again_at > now()", u.StorageKey); n != 1 {
		t.Error("the objects of the upload that was ended have no owner")
	}
	if _, err := b.SaveUpload(ctx, u); oci.CodeOf(err) != oci.BlobUploadInvalid {
		t.Errorf("the upload goes on: %v", err)
	}
	if u, c, err = claim(); err != nil || !c.Beyond {
		t.Errorf("after a request that failed: %+v, %v", c, err)
	}
	// A request that doesn't name the blob must not get the room of the one that did.
	if c, err := b.ClaimUpload(ctx, u, 1, catalog.UploadNeed{Bytes: 10}); oci.CodeOf(err) != oci.Denied {
		t.Errorf("a request without a digest takes over: %+v, %v", c, err)
	}
	// Another request takes over the upload, so the first one must not end it.
	if c, err = b.ClaimUpload(ctx, u, 1, catalog.UploadNeed{Bytes: 10, Digest: d}); err != nil {
		t.Fatal(err)
	}
	if err := b.AbandonUpload(ctx, u); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM uploads WHERE id = $1 AND attempt = $2", u.ID, c.Attempt); n != 1 {
		t.Error("a request that has lost its upload has ended it")
	}
	if _, err := b.ClaimUpload(ctx, rests, 1, catalog.UploadNeed{Bytes: 10}); err != nil {
		t.Errorf("the upload that rests can't be continued with what it has: %v", err)
	}
}

// TestPromiseIsRenewedOrTakenBack: a promise is over, and its request renews it while another one
// takes it back, in both orders. Never do both have the room.
func TestPromiseIsRenewedOrTakenBack(t *testing.T) {
	t.Parallel()
	const take = "SELECT purser_quota_reserve($1, $2, 'acme', 60, 0, NULL, '30 s')"
	start := func() (b bundle, u, other catalog.Upload) {
		b = setup(t)
		b.Push(t, "acme/app", "x")
		b.Limit(t, "acme", quota.Usage{Bytes: 100})
		u, err := b.promised(t, 90)
		if err != nil {
			t.Fatal(err)
		}
		return b, u, b.Begun(t, "acme/app")
	}
	// The renewal comes first, began when the promise still held, and isn't committed yet.
	b, u, other := start()
	b.old(t, u)
	renewal, second := b.Session(t), b.Session(t)
	renewal.Exec(t, "BEGIN")
	renewal.Exec(t, "UPDATE uploads SET promised_until = now() + interval '30 s' WHERE id = $1", u.ID)
	err := catalogtest.Soon(t, "the other one", catalogtest.Later(func() error {
		_, err := second.Conn.Exec(t.Context(), take, other.ID, other.Attempt)
		return err
	}))
	if db.Code(err) != "PQ001" {
		t.Errorf("room is taken of an upload whose request renews it now: %v", err)
	}
	renewal.Exec(t, "COMMIT")

	// The other one comes first. The renewal waits, and finds the promise taken back.
	b, u, other = start()
	b.old(t, u)
	taking := b.Session(t)
	taking.Exec(t, "BEGIN")
	taking.Exec(t, take, other.ID, other.Attempt)
	state := make(chan catalog.Promise, 1)
	done := catalogtest.Later(func() error {
		p, err := b.RenewUpload(t.Context(), u)
		state <- p
		return err
	})
	catalogtest.Eventually(t, "the renewal waits or ends", func() bool { return len(done) == 1 || b.Waiting(t) > 0 })
	taking.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "the renewal", done); err != nil {
		t.Fatal(err)
	}
	if p := <-state; p != catalog.PromiseOver {
		t.Errorf("the promise is %v, want that it is over", p)
	}
	if _, _, err := b.ReserveUpload(t.Context(), u, catalog.UploadNeed{Bytes: 90}); oci.CodeOf(err) != oci.Denied {
		t.Errorf("its request asks again: %v", err)
	}

	// A renewal that began before the promise was over comes when it was taken back.
	b, u, other = start()
	late := b.Session(t)
	late.Exec(t, "BEGIN")
	b.Exec(t, "UPDATE uploads SET promised_until = clock_timestamp() WHERE id = $1", u.ID)
	b.Exec(t, take, other.ID, other.Attempt)
	renewed, err := late.Conn.Exec(t.Context(), "UPDATE uploads SET promised_until = now() + interval '30 s' WHERE id = $1 AND promised_until > now()", u.ID)
	if err != nil || renewed.RowsAffected() != 0 {
		t.Errorf("the renewal has changed %d rows (%v) of what was taken back", renewed.RowsAffected(), err)
	}
	late.Exec(t, "COMMIT")
}
