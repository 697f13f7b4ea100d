package distribution_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// nopStore is for servers that never use their store.
type nopStore struct{ blob.Store }

// requests returns one request of every kind that needs the database: a map from "METHOD path"
// to the body. `d` must be the digest of a manifest, and `at` the URL of an upload.
func requests(d, at string) map[string]string {
	return map[string]string{
		"GET /v2/a/manifests/v1": "", "HEAD /v2/a/manifests/v1": "", "GET /v2/a/manifests/" + d: "", "HEAD /v2/a/manifests/" + d: "",
		"GET /v2/a/blobs/" + d: "", "HEAD /v2/a/blobs/" + d: "", "DELETE /v2/a/blobs/" + d: "", "DELETE /v2/a/manifests/v1": "",
		"DELETE /v2/a/manifests/" + d: "", "GET /v2/a/tags/list": "", "GET /v2/_catalog": "", "GET /v2/a/referrers/" + d: "",
		"GET " + at: "", "PATCH " + at: "more", "PUT " + at + "?digest=" + d: "more", "DELETE " + at: "",
		"POST /v2/a/blobs/uploads/?digest=" + digest("x").String(): "x", "POST /v2/a/blobs/uploads/?mount=" + d + "&from=b": "", "POST /v2/a/blobs/uploads/?mount=" + d: "",
		"PUT /v2/a/manifests/v1": `{"schemaVersion":2,"mediaType":"` + oci.MediaTypeImageIndex + `","manifests":[]}`,
	}
}

// TestDatabaseDown: the database can't be reached. The registry must answer every request with
// 503 and Retry-After, without internal details, and change nothing. When the database is back,
// all requests must succeed again.
func TestDatabaseDown(t *testing.T) {
	t.Parallel()
	g, dsn := servertest.NewGate(t, dbtest.DSN(t))
	r := replica(t, dsn, pgtest.TempDir(t))
	payload := r.Simple(t, "a", 1, nil)
	m := r.Put(t, "a", "v1", payload)
	at := r.StartUpload(t, "a", "")
	r.Do(t, "PATCH", at, "hello").Want(t, 202, "")
	g.Set(true)
	for round := range 2 {
		for req, body := range requests(m.String(), at) {
			method, path, _ := strings.Cut(req, " ")
			a := r.Do(t, method, path, body)
			if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || method != "HEAD" && a.Code(t) != oci.Unavailable {
				t.Errorf("round %d, %s: %d %s, Retry-After %q, want 503", round, req, a.StatusCode, a.Content, a.Header.Get("Retry-After"))
			}
			if strings.Contains(string(a.Content), "127.0.0.1") {
				t.Errorf("internal text was sent: %s", a.Content)
			}
		}
	}
	r.Do(t, "GET", "/v2/", "").Want(t, 200, "")
	if len(r.Log.Records(t, "request failed")) == 0 {
		t.Error("nothing in the log")
	}
	g.Set(false)
	r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 200, "").Text(t, payload)
	r.Do(t, "GET", at, "").Want(t, 204, "", "Range", "0-4")
	r.Do(t, "PUT", at+"?digest="+digest("hello, world").String(), ", world").Want(t, 201, "")
	r.WantBlob(t, "a", digest("hello, world"), "hello, world")
}

// TestDatabaseClosed: the registry is about to stop and has closed its connection pool. It must
// answer a request that comes after that with 503 and Retry-After.
func TestDatabaseClosed(t *testing.T) {
	t.Parallel()
	r := replica(t, dbtest.DSN(t), pgtest.TempDir(t))
	at := r.StartUpload(t, "a", "")
	r.DB.Close()
	for req, body := range requests(digest("x").String(), at) {
		method, path, _ := strings.Cut(req, " ")
		if a := r.Do(t, method, path, body); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s, want 503 with Retry-After", req, a.StatusCode, a.Content)
		}
	}
}

// TestNoDatabase: a registry starts and can't reach its database. It must answer every request
// that needs the database with 503.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	r := replica(t, "host=127.0.0.1 port=1 user=x dbname=x sslmode=disable", pgtest.TempDir(t))
	for req, body := range requests(digest("x").String(), "/v2/a/blobs/uploads/00000000-0000-4000-8000-000000000000") {
		method, path, _ := strings.Cut(req, " ")
		r.Do(t, method, path, body).Want(t, 503, oci.Unavailable, "Retry-After", "*")
	}
}

// TestLostObject: the object of a blob is truncated. The answer to the first GET of the blob
// ends early. From then on the registry must report the blob as unknown. If the object is
// missing altogether, the registry must answer even the first GET with 404.
func TestLostObject(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 100_000)
	d := r.Push(t, "a", content)
	path := "/v2/a/blobs/" + d.String()
	object := filepath.Join(r.Dir, "objects", r.Key(t, d)[:2], r.Key(t, d))
	for range 2 {
		r.Do(t, "GET", path, "").Want(t, 200, "")
	}
	if err := os.Truncate(object, 50_000); err != nil {
		t.Fatal(err)
	}
	if a, err := r.Try(t.Context(), "GET", path, http.NoBody); err == nil {
		t.Errorf("of an object that was cut short %d bytes were sent as if they were all", len(a.Content))
	}
	eventually(t, "it is taken for lost", func() bool { return r.lost(t, d) })
	r.Do(t, "GET", path, "").Want(t, 404, oci.BlobUnknown, "Docker-Content-Digest", "")
	if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE blobs SET lost_at = NULL"); err != nil {
		t.Fatal(err)
	}
	servertest.Remove(t, object)
	for range 2 {
		r.Do(t, "GET", path, "", "Range", "bytes=0-9").Want(t, 404, oci.BlobUnknown)
		r.Do(t, "GET", path, "").Want(t, 404, oci.BlobUnknown, "Docker-Content-Digest", "")
	}
}

// lost says whether a blob is marked as lost.
func (r *registry) lost(t *testing.T, d oci.Digest) (lost bool) {
	t.Helper()
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT lost_at IS NOT NULL FROM blobs WHERE digest = $1", d.Bytes()).Scan(&lost); err != nil {
		t.Fatal(err)
	}
	return lost
}

// TestOutdatedKey: another process has given a blob a new object, while this process has the
// storage key of the old object in its cache. At a GET of the blob, this process must read the
// blob's row again and send the new object.
func TestOutdatedKey(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 100_000)
	d := r.Push(t, "a", content)
	r.WantBlob(t, "a", d, content) // the key is cached
	old := r.Key(t, d)
	base := blob.NewBase()
	if err := os.Rename(filepath.Join(r.Dir, "objects", old[:2], old), filepath.Join(r.Dir, "objects", base[:2], base+"-0")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE blobs SET storage_key = $1 WHERE digest = $2", base+"-0", d.Bytes()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.WantBlob(t, "a", d, content)
		r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "", "Range", "bytes=10-19").Want(t, 206, "").Text(t, content[10:20])
	}
	// Another process has deleted the blob from the repository, and the sweeper has deleted the
	// blob's object, while this process has the object's storage key in its cache. At a GET,
	// this process must report the blob as unknown.
	if _, err := r.DB.Pool.Exec(t.Context(), "DELETE FROM repository_blobs"); err != nil {
		t.Fatal(err)
	}
	servertest.Remove(t, filepath.Join(r.Dir, "objects", base[:2], base+"-0"))
	r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "").Want(t, 404, oci.BlobUnknown)
}

// TestUnmountedStore: the directory of the store disappears. The registry must answer requests
// about blobs with 503. When the directory is back, these requests must succeed again.
func TestUnmountedStore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "a", "content")
	at := r.StartUpload(t, "a", "")
	if err := os.Rename(filepath.Join(r.Dir, "objects"), filepath.Join(r.Dir, "gone")); err != nil {
		t.Fatal(err)
	}
	r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "").Want(t, 503, oci.Unavailable)
	r.Do(t, "PATCH", at, pattern(1, 100_000)).Want(t, 503, oci.Unavailable)
	r.Do(t, "PUT", at+"?digest="+digest("x").String(), "x").Want(t, 503, oci.Unavailable)
	if err := os.Rename(filepath.Join(r.Dir, "gone"), filepath.Join(r.Dir, "objects")); err != nil {
		t.Fatal(err)
	}
	r.WantBlob(t, "a", d, "content")
	r.Do(t, "PUT", at+"?digest="+digest("x").String(), "x").Want(t, 201, "")
}

// presigner is a store that supports presigned URLs.
type presigner struct {
	blob.Store
	err error
}

func (p presigner) Presign(_ context.Context, key string, o blob.PresignOptions) (string, error) {
	return fmt.Sprintf("https://store.example/%s?ttl=%s&type=%s", key, o.TTL, o.ContentType), p.err
}

// TestRedirect: the store supports presigned URLs, and Options.Redirect is set. The registry
// must answer GET of a blob with a redirect, and answer HEAD itself.
func TestRedirect(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Store, o.Distribution.Redirect, o.Distribution.RedirectTTL = presigner{Store: o.Store}, true, time.Minute
	})
	d := r.Push(t, "a", "content")
	path := "/v2/a/blobs/" + d.String()
	r.Do(t, "GET", path, "").Want(t, 307, "", "Docker-Content-Digest", d.String(),
		"Location", "https://store.example/"+r.Key(t, d)+"?ttl=1m0s&type=application/octet-stream").Text(t, "")
	r.Do(t, "HEAD", path, "").Want(t, 200, "", "Content-Length", "7")
	r.Do(t, "GET", path, "", "If-None-Match", `"`+d.String()+`"`).Want(t, 304, "")
	r.Do(t, "GET", "/v2/a/blobs/"+digest("x").String(), "").Want(t, 404, oci.BlobUnknown)
	off := replica(t, r.DSN, r.Dir, func(o *servertest.Options) { o.Store = presigner{Store: o.Store} })
	off.WantBlob(t, "a", d, "content")
	dir := replica(t, r.DSN, r.Dir, func(o *servertest.Options) { o.Distribution.Redirect = true }) // a directory has no URLs
	dir.WantBlob(t, "a", d, "content")
	broken := replica(t, r.DSN, r.Dir, func(o *servertest.Options) {
		o.Store, o.Distribution.Redirect = presigner{o.Store, io.ErrNoProgress}, true
	})
	broken.Do(t, "GET", path, "").Want(t, 503, oci.Unavailable)
}
