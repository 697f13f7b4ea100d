package distribution_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestLockedTables: another transaction has locked what a request needs for longer than
// PostgreSQL lets the session wait (lock_timeout). Nothing is wrong with the request, so each is
// answered with 503 and Retry-After, and succeeds when it is repeated later.
func TestLockedTables(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	r := replica(t, dsn+"&lock_timeout=20", t.TempDir())
	payload := r.Simple(t, "a", 1, nil)
	m := r.Put(t, "a", "v1", payload)
	at := r.StartUpload(t, "a", "")
	r.Do(t, "PATCH", at, "hello").Want(t, 202, "")
	unlock := servertest.LockTables(t, dsn)
	for req, body := range requests(m.String(), at) {
		method, path, _ := strings.Cut(req, " ")
		a := r.Do(t, method, path, body)
		if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || method != "HEAD" && a.Code(t) != oci.Unavailable {
			t.Errorf("%s: %d %s, Retry-After %q, want 503", req, a.StatusCode, a.Content, a.Header.Get("Retry-After"))
		}
	}
	unlock()
	r.Do(t, "PUT", at+"?digest="+digest("hello, world").String(), ", world").Want(t, 201, "")
	r.WantBlob(t, "a", digest("hello, world"), "hello, world")
	r.Do(t, "PUT", "/v2/a/manifests/v2", payload, "Content-Type", oci.MediaTypeImageManifest).Want(t, 201, "")
}
