package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// nopStore is for servers that never use their store.
type nopStore struct{ blob.Store }

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// gate is a proxy between a registry and its database that can be shut.
type gate struct {
	net.Listener
	network, to string

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// newGate returns a gate in front of dsn, and the DSN to go through it.
func newGate(t *testing.T, dsn string) (*gate, string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Listener: l, network: "tcp", to: net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), conns: map[net.Conn]bool{}}
	if strings.HasPrefix(cfg.Host, "/") {
		g.network, g.to = "unix", filepath.Join(cfg.Host, fmt.Sprintf(".s.PGSQL.%d", cfg.Port))
	}
	g.wg.Go(g.serve)
	t.Cleanup(func() {
		g.set(true)
		l.Close() //nolint:errcheck // ends serve
		g.wg.Wait()
	})
	return g, fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable",
		l.Addr().(*net.TCPAddr).Port, cfg.User, cfg.Password, cfg.Database)
}

func (g *gate) serve() {
	for {
		c, err := g.Accept()
		if err != nil {
			return
		}
		g.wg.Go(func() { g.join(c) })
	}
}

func (g *gate) join(c net.Conn) {
	defer c.Close() //nolint:errcheck // its end is all that matters
	s, err := net.Dial(g.network, g.to)
	if err != nil {
		return
	}
	defer s.Close() //nolint:errcheck
	g.mu.Lock()
	if g.shut {
		g.mu.Unlock()
		return
	}
	g.conns[c], g.conns[s] = true, true
	g.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { io.Copy(s, c); s.Close() }) //nolint:errcheck
	both.Go(func() { io.Copy(c, s); c.Close() }) //nolint:errcheck
	both.Wait()
	g.mu.Lock()
	delete(g.conns, c)
	delete(g.conns, s)
	g.mu.Unlock()
}

// set shuts the gate, which breaks all connections, or opens it.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		for c := range g.conns {
			c.Close() //nolint:errcheck
		}
	}
}

// requests returns one request of every kind that needs the database.
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

// TestDatabaseDown: while the database can't be reached, every request is answered with
// 503 and Retry-After, without internal details, and changes nothing; afterwards
// everything works again.
func TestDatabaseDown(t *testing.T) {
	t.Parallel()
	g, dsn := newGate(t, dbtest.DSN(t))
	r := replica(t, dsn, t.TempDir())
	payload := r.simple(t, "a", 1, nil)
	m := r.put(t, "a", "v1", payload)
	at := r.start(t, "a", "")
	r.do(t, "PATCH", at, "hello").want(t, 202, "")
	g.set(true)
	for round := range 2 {
		for req, body := range requests(m.String(), at) {
			method, path, _ := strings.Cut(req, " ")
			a := r.do(t, method, path, body)
			if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || method != "HEAD" && a.code(t) != oci.Unavailable {
				t.Errorf("round %d, %s: %d %s, Retry-After %q, want 503", round, req, a.StatusCode, a.body, a.Header.Get("Retry-After"))
			}
			if strings.Contains(string(a.body), "127.0.0.1") {
				t.Errorf("internal text was sent: %s", a.body)
			}
		}
	}
	r.do(t, "GET", "/v2/", "").want(t, 200, "")
	if len(r.log.records(t, "request failed")) == 0 {
		t.Error("nothing in the log")
	}
	g.set(false)
	r.do(t, "GET", "/v2/a/manifests/v1", "").want(t, 200, "").text(t, payload)
	r.do(t, "GET", at, "").want(t, 204, "", "Range", "0-4")
	r.do(t, "PUT", at+"?digest="+digest("hello, world").String(), ", world").want(t, 201, "")
	r.wantBlob(t, "a", digest("hello, world"), "hello, world")
}

// TestDatabaseClosed: a request that outlives the pool gets an answer to retry.
func TestDatabaseClosed(t *testing.T) {
	t.Parallel()
	r := replica(t, dbtest.DSN(t), t.TempDir())
	at := r.start(t, "a", "")
	r.db.Close()
	for req, body := range requests(digest("x").String(), at) {
		method, path, _ := strings.Cut(req, " ")
		if a := r.do(t, method, path, body); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s, want 503 with Retry-After", req, a.StatusCode, a.body)
		}
	}
}

// TestNoDatabase: the database never existed.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	r := replica(t, "host=127.0.0.1 port=1 user=x dbname=x sslmode=disable", t.TempDir())
	for req, body := range requests(digest("x").String(), "/v2/a/blobs/uploads/00000000-0000-4000-8000-000000000000") {
		method, path, _ := strings.Cut(req, " ")
		r.do(t, method, path, body).want(t, 503, oci.Unavailable, "Retry-After", "*")
	}
}

// TestLostObject: if a blob's object is truncated or missing, the first request for it
// ends early. From then on the blob doesn't exist, which is logged once.
func TestLostObject(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 100_000)
	d := r.push(t, "a", content)
	path := "/v2/a/blobs/" + d.String()
	object := filepath.Join(r.dir, "objects", r.key(t, d)[:2], r.key(t, d))
	for range 2 {
		r.do(t, "GET", path, "").want(t, 200, "")
	}
	if err := os.Truncate(object, 50_000); err != nil {
		t.Fatal(err)
	}
	if a, err := r.try(t.Context(), "GET", path, http.NoBody); err == nil {
		t.Errorf("of an object that was cut short %d bytes were sent as if they were all", len(a.body))
	}
	eventually(t, "it is taken for lost", func() bool { return r.lost(t, d) })
	r.do(t, "GET", path, "").want(t, 404, oci.BlobUnknown, "Docker-Content-Digest", "")
	if _, err := r.db.Pool.Exec(t.Context(), "UPDATE blobs SET lost_at = NULL"); err != nil {
		t.Fatal(err)
	}
	remove(t, object)
	for range 2 {
		r.do(t, "GET", path, "", "Range", "bytes=0-9").want(t, 404, oci.BlobUnknown)
		r.do(t, "GET", path, "").want(t, 404, oci.BlobUnknown, "Docker-Content-Digest", "")
	}
}

// lost says whether a blob is marked as lost.
func (r *registry) lost(t *testing.T, d oci.Digest) (lost bool) {
	t.Helper()
	if err := r.db.Pool.QueryRow(t.Context(), "SELECT lost_at IS NOT NULL FROM blobs WHERE digest = $1", d.Bytes()).Scan(&lost); err != nil {
		t.Fatal(err)
	}
	return lost
}

// key is where a blob's object is.
func (r *registry) key(t *testing.T, d oci.Digest) string {
	t.Helper()
	var key string
	if err := r.db.Pool.QueryRow(t.Context(), "SELECT storage_key FROM blobs WHERE digest = $1", d.Bytes()).Scan(&key); err != nil {
		t.Fatal(err)
	}
	return key
}

// TestOutdatedKey: a reader that has an object's old key in its cache finds the new
// one.
func TestOutdatedKey(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 100_000)
	d := r.push(t, "a", content)
	r.wantBlob(t, "a", d, content) // the key is cached
	old := r.key(t, d)
	base := blob.NewBase()
	if err := os.Rename(filepath.Join(r.dir, "objects", old[:2], old), filepath.Join(r.dir, "objects", base[:2], base+"-0")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.db.Pool.Exec(t.Context(), "UPDATE blobs SET storage_key = $1 WHERE digest = $2", base+"-0", d.Bytes()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.wantBlob(t, "a", d, content)
		r.do(t, "GET", "/v2/a/blobs/"+d.String(), "", "Range", "bytes=10-19").want(t, 206, "").text(t, content[10:20])
	}
	// Unlinked by another process while its key is cached here, and then swept: the
	// blob is unknown, not lost.
	if _, err := r.db.Pool.Exec(t.Context(), "DELETE FROM repository_blobs"); err != nil {
		t.Fatal(err)
	}
	remove(t, filepath.Join(r.dir, "objects", base[:2], base+"-0"))
	r.do(t, "GET", "/v2/a/blobs/"+d.String(), "").want(t, 404, oci.BlobUnknown)
}

// TestUnmountedStore: a missing store is a server error.
func TestUnmountedStore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.push(t, "a", "content")
	at := r.start(t, "a", "")
	if err := os.Rename(filepath.Join(r.dir, "objects"), filepath.Join(r.dir, "gone")); err != nil {
		t.Fatal(err)
	}
	r.do(t, "GET", "/v2/a/blobs/"+d.String(), "").want(t, 503, oci.Unavailable)
	r.do(t, "PATCH", at, pattern(1, 100_000)).want(t, 503, oci.Unavailable)
	r.do(t, "PUT", at+"?digest="+digest("x").String(), "x").want(t, 503, oci.Unavailable)
	if err := os.Rename(filepath.Join(r.dir, "gone"), filepath.Join(r.dir, "objects")); err != nil {
		t.Fatal(err)
	}
	r.wantBlob(t, "a", d, "content")
	r.do(t, "PUT", at+"?digest="+digest("x").String(), "x").want(t, 201, "")
}

// presigner is a store that supports presigned URLs.
type presigner struct {
	blob.Store
	err error
}

func (p presigner) Presign(_ context.Context, key string, o blob.PresignOptions) (string, error) {
	return fmt.Sprintf("https://store.example/%s?ttl=%s&type=%s", key, o.TTL, o.ContentType), p.err
}

// TestRedirect: if the store supports presigned URLs and redirects are on, GET of a
// blob is redirected; HEAD is answered directly.
func TestRedirect(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *server.Options) {
		o.Store, o.Redirect, o.RedirectTTL = presigner{Store: o.Store}, true, time.Minute
	})
	d := r.push(t, "a", "content")
	path := "/v2/a/blobs/" + d.String()
	r.do(t, "GET", path, "").want(t, 307, "", "Docker-Content-Digest", d.String(),
		"Location", "https://store.example/"+r.key(t, d)+"?ttl=1m0s&type=application/octet-stream").text(t, "")
	r.do(t, "HEAD", path, "").want(t, 200, "", "Content-Length", "7")
	r.do(t, "GET", path, "", "If-None-Match", `"`+d.String()+`"`).want(t, 304, "")
	r.do(t, "GET", "/v2/a/blobs/"+digest("x").String(), "").want(t, 404, oci.BlobUnknown)
	off := replica(t, r.dsn, r.dir, func(o *server.Options) { o.Store = presigner{Store: o.Store} })
	off.wantBlob(t, "a", d, "content")
	dir := replica(t, r.dsn, r.dir, func(o *server.Options) { o.Redirect = true }) // a directory has no URLs
	dir.wantBlob(t, "a", d, "content")
	broken := replica(t, r.dsn, r.dir, func(o *server.Options) { o.Store, o.Redirect = presigner{o.Store, io.ErrNoProgress}, true })
	broken.do(t, "GET", path, "").want(t, 503, oci.Unavailable)
}
