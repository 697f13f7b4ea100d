package distribution_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// beginPatch sends the header of a PATCH with n bytes, and the first of these bytes. It waits until the
// upload's room is promised.
func (r *registry) beginPatch(t *testing.T, at string, n int, first string) *servertest.Wire {
	t.Helper()
	promised := func() (n int) {
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM uploads WHERE promised_until IS NOT NULL").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := promised()
	w := r.Dial(t)
	w.Send(t, "PATCH", at, []string{servertest.Length(n)}, first)
	eventually(t, "a promise of room", func() bool { return promised() > before })
	return w
}

// counted returns what the namespace with the quota uses and has promised.
func (r *registry) counted(t *testing.T) (n int64) {
	t.Helper()
	err := r.DB.Pool.QueryRow(t.Context(), `
		SELECT q.bytes + s.bytes + purser_quota_promised(q.namespace_id, '00000000-0000-0000-0000-000000000000')
		FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDroppedUploadGivesItsRoomBack: a client has said that it sends nearly as much as there is
// room for, and goes away before its first byte or later. Others get the room at once.
func TestDroppedUploadGivesItsRoomBack(t *testing.T) {
	t.Parallel()
	const most, size = 2 << 20, 1_200_000
	for _, first := range []int{0, 300_000} {
		r := setup(t)
		r.Push(t, "acme/app", "x")
		r.limited(t, quota.Usage{Bytes: most})
		w := r.beginPatch(t, r.StartUpload(t, "acme/app", ""), size, pattern(1, first))
		content := pattern(2, size)
		push := func() answer {
			return r.Do(t, "POST", "/v2/acme/app/blobs/uploads/?digest="+digest(content).String(), content)
		}
		push().Want(t, 409, oci.Denied)
		w.Close() //nolint:errcheck // that is the test
		// No push takes the promise back, so the request itself has to end it.
		eventually(t, fmt.Sprintf("the end of the promise after %d bytes", first), func() bool { return r.counted(t) == 1+int64(first) })
		if a := push(); a.StatusCode != 201 {
			t.Errorf("after %d bytes: %d %s", first, a.StatusCode, a.Content)
		}
	}
}

// TestDeadProcessGivesItsRoomBack: the request that was promised room doesn't renew the promise any
// more, since its process is dead. Others get the room. If the process isn't dead and its request
// goes on, that one is refused, so the namespace never has more than its quota.
func TestDeadProcessGivesItsRoomBack(t *testing.T) {
	t.Parallel()
	const most, size = 2 << 20, 1_200_000
	r := setup(t)
	other := replica(t, r.DSN, r.Dir)
	r.Push(t, "acme/app", "x")
	r.limited(t, quota.Usage{Bytes: most})
	at, slow := r.StartUpload(t, "acme/app", ""), pattern(1, size)
	w := r.beginPatch(t, at, size, slow[:300_000])
	other.Do(t, "POST", "/v2/acme/web/blobs/uploads/?digest="+digest(pattern(2, size)).String(), pattern(2, size)).Want(t, 409, oci.Denied)
	r.Exec(t, "UPDATE uploads SET promised_until = now() - interval '1 s' WHERE promised_until IS NOT NULL")
	other.Push(t, "acme/web", pattern(2, size))
	if _, err := io.WriteString(w, slow[300_000:]); err != nil {
		t.Fatal(err)
	}
	if a := w.Answer(t, "PATCH", at); a.StatusCode != 409 {
		t.Errorf("the request whose room was given to another one: %d %s", a.StatusCode, a.Content)
	}
	if used := r.counted(t); used != 1+2*size { // what the refused request has stored is there until its upload ends
		t.Errorf("%d bytes are used or stored, want %d", used, 1+2*size)
	}
	other.Do(t, "POST", "/v2/acme/web/blobs/uploads/?digest="+digest(pattern(3, size)).String(), pattern(3, size)).Want(t, 409, oci.Denied)
}

// TestLostUploadStoresNoMore: many requests continue one upload, each after the one before has sent
// bytes and stalled. A request that has lost the upload must not keep its bytes in the store, where
// nothing counts them.
func TestLostUploadStoresNoMore(t *testing.T) {
	t.Parallel()
	const most, size = 2 << 20, 1_800_000
	r := setup(t)
	r.Push(t, "acme/app", "x")
	r.limited(t, quota.Usage{Bytes: most})
	at := r.StartUpload(t, "acme/app", "")
	var older *servertest.Wire
	for i := range 5 {
		w := r.Dial(t)
		w.Send(t, "PATCH", at, []string{servertest.Length(size)}, pattern(byte(i), size-1000))
		eventually(t, "the request's bytes in the store", func() bool { return r.large(t) == min(i+1, 2) })
		if older != nil {
			if _, err := io.WriteString(older, "x"); err != nil {
				t.Fatal(err)
			}
			if a := older.Answer(t, "PATCH", at); a.StatusCode != 416 {
				t.Errorf("request %d: %d %s", i-1, a.StatusCode, a.Content)
			}
			eventually(t, "only the newest request's bytes in the store", func() bool { return r.large(t) == 1 })
		}
		older = w
	}
}
