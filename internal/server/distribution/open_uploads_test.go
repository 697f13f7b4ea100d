package distribution_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOpenUploads: a client may have three open uploads, and has three. The registry must
// refuse to start a fourth, until the client finishes or cancels one of the three, through this
// process or another.
func TestOpenUploads(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Distribution.ClientUploads = 3 })
	a, b, c := r.StartUpload(t, "a", ""), r.StartUpload(t, "a", ""), r.StartUpload(t, "a", "")
	refused := func() {
		t.Helper()
		r.Do(t, "POST", "/v2/a/blobs/uploads/", "").Want(t, 429, oci.TooManyRequests, "Retry-After", "*")
	}
	// The client finishes one upload and cancels another through a second process. The first
	// process must notice that, and let the client start two more uploads.
	other := replica(t, r.DSN, r.Dir)
	other.Do(t, "PUT", a+"?digest="+digest("x").String(), "x").Want(t, 201, "")
	other.Do(t, "DELETE", b, "").Want(t, 204, "")
	b = r.StartUpload(t, "a", "")
	r.StartUpload(t, "a", "")
	refused()
	r.Do(t, "DELETE", b, "").Want(t, 204, "")
	r.StartUpload(t, "a", "")
	refused()
	r.Do(t, "PUT", c+"?digest="+digest("y").String(), "y").Want(t, 201, "")
	r.StartUpload(t, "a", "")
	refused()
}
