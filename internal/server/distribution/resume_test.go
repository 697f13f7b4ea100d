package distribution_test

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/testscale"
)

// stands waits until a GET of the upload's URL says that `n` bytes are saved. The test has to
// wait, because the registry saves the bytes that have arrived from a client only when it
// notices that the client has disconnected.
func (r *registry) stands(t *testing.T, at string, n int) {
	t.Helper()
	want := fmt.Sprintf("0-%d", max(n-1, 0))
	eventually(t, "upload at "+want, func() bool {
		h := r.Do(t, "GET", at, "").Want(t, 204, "").Header
		if base, _, _ := strings.Cut(at, "."); n > 0 && h.Get("Range") == want && h.Get("Location") != fmt.Sprintf("%s.%d", base, n) {
			t.Fatalf("Location %q of an upload of %d bytes", h.Get("Location"), n)
		}
		return h.Get("Range") == want
	})
}

// TestTruncatedBody: a client closes its connection before it has sent as many bytes as its
// Content-Length says, or in the middle of an HTTP chunk. The registry must answer 400
// SIZE_INVALID and save the bytes that have arrived. Then the client sends the rest, and the
// upload must succeed.
func TestTruncatedBody(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range testscale.Pick([]int{0, 10, catalog.MaxTail + 10}, []int{0, 10, catalog.MaxTail, catalog.MaxTail + 10, 1 << 20}) {
		content := pattern(byte(n), n+1000)
		d := digest(content)
		for _, method := range []string{"PATCH", "PUT"} {
			for _, how := range []struct{ header, body string }{
				{length(n + 1000), content[:n]},
				{"Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s", n+1000, content[:n])},
			} {
				at := r.StartUpload(t, "a", "")
				path := at
				if method == "PUT" {
					path += "?digest=" + d.String()
				}
				w := r.Dial(t)
				w.Send(t, method, path, []string{how.header}, how.body)
				if err := w.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				w.Answer(t, method, path).Want(t, 400, oci.SizeInvalid)
				r.stands(t, at, n)
				r.Do(t, "PUT", at+"?digest="+d.String(), content[n:], "Content-Range", fmt.Sprintf("%d-%d", n, n+999)).Want(t, 201, "")
				r.WantBlob(t, "a", d, content)
			}
		}
	}
}

// TestTruncatedPush: a client sends a truncated body in a request that it can't continue later:
// a PUT of a manifest, or a POST of a whole blob. The registry must answer SIZE_INVALID and
// store nothing.
func TestTruncatedPush(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a", 1, nil)
	for _, c := range []struct{ method, path, body string }{
		{"PUT", "/v2/a/manifests/v1", payload},
		{"PUT", "/v2/a/manifests/" + digest(payload).String(), payload},
		{"POST", "/v2/a/blobs/uploads/?digest=" + digest("content").String(), "content"},
	} {
		w := r.Dial(t)
		w.Send(t, c.method, c.path, []string{length(len(c.body) + 1)}, c.body) // Content-Length is one too large
		if err := w.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		w.Answer(t, c.method, c.path).Want(t, 400, oci.SizeInvalid)
		w = r.Dial(t)
		w.Send(t, c.method, c.path, []string{"Transfer-Encoding: chunked"}, fmt.Sprintf("%x\r\n%s\r\n", len(c.body), c.body)) // no last chunk
		if err := w.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		w.Answer(t, c.method, c.path).Want(t, 400, oci.SizeInvalid)
	}
	r.Do(t, "GET", "/v2/a/manifests/"+digest(payload).String(), "").Want(t, 404, oci.ManifestUnknown)
	r.Do(t, "GET", "/v2/a/blobs/"+digest("content").String(), "").Want(t, 404, oci.BlobUnknown)
}

// TestBrokenChunks: a body with malformed chunked encoding is refused.
func TestBrokenChunks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	w := r.Dial(t)
	w.Send(t, "PATCH", at, []string{"Transfer-Encoding: chunked"}, "5\r\nhello\r\nzz\r\n")
	w.Answer(t, "PATCH", at).Want(t, 400, oci.SizeInvalid)
	r.stands(t, at, 5)
	r.Do(t, "PUT", at+"?digest="+digest("hello").String(), "").Want(t, 201, "")
}

// TestLongerThanLength: bytes after the Content-Length don't belong to the body.
func TestLongerThanLength(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	w := r.Dial(t)
	w.Send(t, "PATCH", at, []string{length(5)}, "hello, too long")
	w.Answer(t, "PATCH", at).Want(t, 202, "", "Range", "0-4")
	r.Do(t, "PUT", at+"?digest="+digest("hello").String(), "").Want(t, 201, "")
	w = r.Dial(t)
	w.Send(t, "PATCH", at, []string{"Content-Length: x"}, "hello")
	if a := w.Answer(t, "PATCH", at); a.StatusCode != 400 {
		t.Errorf("Content-Length x: %d", a.StatusCode)
	}
}

// TestDroppedConnection: a client's connection breaks three times while the client sends an
// upload. Each time, the client continues on another replica, behind the bytes that are saved.
// The finished blob must be complete.
func TestDroppedConnection(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	two.Listen(t)
	for _, n := range []int{100, catalog.MaxTail + 1, 3 << 20} {
		for _, rst := range []bool{false, true} {
			content := pattern(byte(n), 4*n)
			d := digest(content)
			at := one.StartUpload(t, "a", "")
			replicas := []*registry{one, two, one}
			for i, r := range replicas {
				w := r.Dial(t)
				w.Send(t, "PATCH", at, []string{length(len(content)), fmt.Sprintf("Content-Range: %d-%d", i*n, i*n+len(content)-1)}, content[i*n:(i+1)*n])
				if rst {
					// A reset discards data that the other end hasn't read.
					eventually(t, "all that was sent is read", w.IsRead)
					w.SetLinger(0)
				}
				w.Close()
				two.stands(t, at, (i+1)*n)
			}
			two.Do(t, "PUT", at+"?digest="+d.String(), content[3*n:]).Want(t, 201, "")
			one.WantBlob(t, "a", d, content)
			two.WantBlob(t, "a", d, content)
		}
	}
}

// TestReplicas: two processes with the same database and store act as one registry. When one
// process has moved a tag, the other must return the new manifest within a second. Each must
// continue uploads that the other has begun.
func TestReplicas(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	two.Listen(t)
	content := pattern(2, 200_000)
	d := digest(content)
	at := one.StartUpload(t, "a", "")
	for i, r := range []*registry{two, one, two, one} { // a chunk each
		piece := content[i*50_000 : (i+1)*50_000]
		r.Do(t, "PATCH", at, piece, "Content-Range", fmt.Sprintf("%d-%d", i*50_000, (i+1)*50_000-1)).Want(t, 202, "", "Location", fmt.Sprintf("%s.%d", at, (i+1)*50_000))
	}
	two.Do(t, "PUT", at+"?digest="+d.String(), "").Want(t, 201, "")
	one.WantBlob(t, "a", d, content)

	first, second := one.Simple(t, "a", 1, nil), one.Simple(t, "a", 2, nil)
	one.Put(t, "a", "v1", first)
	eventually(t, "the tag on the other", func() bool { return two.Do(t, "GET", "/v2/a/manifests/v1", "").StatusCode == 200 })
	two.Put(t, "a", "v1", second)
	moved := time.Now()
	for string(one.Do(t, "GET", "/v2/a/manifests/v1", "").Content) != second {
		if time.Since(moved) > time.Second {
			t.Fatal("a tag that moved isn't seen on the other replica within a second")
		}
	}
	one.Do(t, "DELETE", "/v2/a/manifests/"+digest(second).String(), "").Want(t, 202, "")
	eventually(t, "the deletion on the other", func() bool { return two.Do(t, "GET", "/v2/a/manifests/v1", "").StatusCode == 404 })
}

// TestReplicasInTurn: a load balancer sends a client's requests for one upload to two replicas
// in turn. The client's PATCH requests have no Content-Range. The replicas must accept all
// requests.
func TestReplicasInTurn(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	two.Listen(t)
	for _, n := range testscale.Pick([]int{1000, catalog.MaxTail + 1}, []int{1000, catalog.MaxTail, catalog.MaxTail + 1, 1 << 20}) {
		for plan, turns := range map[string][]*registry{"12121": {one, two, one, two, one}, "12211": {one, two, two, one, one}, "11221": {one, one, two, two, one}} {
			content := pattern(byte(n), 4*n)
			d := digest(content)
			at := turns[0].StartUpload(t, "a", "")
			for i := range 3 {
				a := turns[i+1].Do(t, "PATCH", at, content[i*n:(i+1)*n])
				if a.StatusCode != 202 {
					t.Fatalf("chunks of %d bytes to replicas %s: chunk %d: %d %s, want 202", n, plan, i, a.StatusCode, a.Content)
				}
			}
			a := turns[4].Do(t, "PUT", at+"?digest="+d.String(), content[3*n:])
			if a.StatusCode != 201 {
				t.Fatalf("chunks of %d bytes to replicas %s: closing: %d %s, want 201", n, plan, a.StatusCode, a.Content)
			}
			one.WantBlob(t, "a", d, content)
		}
	}
}

// TestExpectContinue: a client sends the header Expect: 100-continue and waits before it sends
// the body. The registry must answer 100 if it wants the body, and otherwise an error at once.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	w := r.Dial(t)
	headers := []string{length(5), "Expect: 100-continue"}
	w.Send(t, "PATCH", at, headers, "")
	if a := w.Answer(t, "PATCH", at); a.StatusCode != 100 {
		t.Fatalf("%d, want 100", a.StatusCode)
	}
	if _, err := io.WriteString(w, "hello"); err != nil {
		t.Fatal(err)
	}
	w.Answer(t, "PATCH", at).Want(t, 202, "", "Range", "0-4")
	w = r.Dial(t)
	w.Send(t, "PATCH", at, append(headers, "Content-Range: 7-11"), "")
	w.Answer(t, "PATCH", at).Want(t, 416, oci.BlobUploadInvalid, "Range", "0-4")
}

// TestSlowClient: a client stops sending in the middle of a body. After BodyIdleTimeout the
// registry must end the request and save the bytes that have arrived.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Server.BodyIdleTimeout = 300 * time.Millisecond })
	at := r.StartUpload(t, "a", "")
	w := r.Dial(t)
	w.Send(t, "PATCH", at, []string{length(10)}, "hello")
	w.Answer(t, "PATCH", at).Want(t, 400, oci.SizeInvalid)
	r.stands(t, at, 5)
}

// TestSteadyClient: a client sends a body for longer than BodyIdleTimeout, with pauses that are much
// shorter. Its request must not be ended.
func TestSteadyClient(t *testing.T) {
	t.Parallel()
	const idle = 3 * time.Second // a busy machine may take a second to wake who waits for the next byte
	r := setup(t, func(o *servertest.Options) { o.Server.BodyIdleTimeout = idle })
	at := r.StartUpload(t, "a", "")
	const pauses = 20
	w := r.Dial(t)
	w.Send(t, "PATCH", at, []string{length(pauses)}, "")
	for range pauses {
		time.Sleep(idle / (pauses - 4))
		if _, err := io.WriteString(w, "x"); err != nil {
			t.Fatal(err)
		}
	}
	w.Answer(t, "PATCH", at).Want(t, 202, "", "Range", "0-19")
}

// TestSlowManifest: a client stops sending in the middle of a manifest. After BodyIdleTimeout
// the registry must end the request with an error.
func TestSlowManifest(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Server.BodyIdleTimeout = 200 * time.Millisecond })
	w := r.Dial(t)
	w.SetDeadline(time.Now().Add(5 * time.Second))
	w.Send(t, "PUT", "/v2/a/manifests/v1", []string{length(100)}, "{")
	w.Answer(t, "PUT", "/v2/a/manifests/v1").Want(t, 400, oci.SizeInvalid)
}

// TestMaxRequestOfDownload: a client asks for a blob and reads nothing of the answer. The
// registry must end the request after MaxRequest.
func TestMaxRequestOfDownload(t *testing.T) {
	t.Parallel()
	patient := setup(t) // the push may take as long as it does
	r := replica(t, patient.DSN, patient.Dir, func(o *servertest.Options) { o.Server.MaxRequest = 500 * time.Millisecond })
	d := patient.Push(t, "a", pattern(1, 32<<20))
	w := r.Dial(t)
	w.Send(t, "GET", "/v2/a/blobs/"+d.String(), nil, "")
	eventually(t, "the end of a download that nobody reads", func() bool {
		for _, rec := range r.Log.Records(t, "request") {
			if rec["http.request.method"] == "GET" && strings.HasPrefix(rec["url.path"].(string), "/v2/a/blobs/") {
				return true
			}
		}
		return false
	})
}

// TestMaxRequestOfUpload: a client sends a body byte by byte without end. The registry must
// end the request after MaxRequest.
func TestMaxRequestOfUpload(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Server.MaxRequest = 500 * time.Millisecond })
	at := r.StartUpload(t, "a", "")
	w := r.Dial(t)
	w.Send(t, "PATCH", at, []string{length(1 << 20)}, "")
	started := time.Now()
	for time.Since(started) < 5*time.Second {
		if _, err := io.WriteString(w, "x"); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("a request goes on beyond MaxRequest")
}

// TestLostUpload: the store has lost the saved bytes of an upload. The registry must answer
// requests for this upload with BLOB_UPLOAD_UNKNOWN, so that the client starts another upload.
func TestLostUpload(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	r.Do(t, "PATCH", at, pattern(1, 1<<20)).Want(t, 202, "")
	files, err := filepath.Glob(filepath.Join(r.Dir, "objects", "*", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("objects %v, %v", files, err)
	}
	servertest.Remove(t, files[0])
	r.Do(t, "PATCH", at, "more").Want(t, 404, oci.BlobUploadUnknown)
	r.Do(t, "PUT", at+"?digest="+digest("x").String(), "").Want(t, 404, oci.BlobUploadUnknown)
}
