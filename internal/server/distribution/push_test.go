package distribution_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/testscale"
)

// sizes are sizes of uploads that the server stores in different ways: an empty upload, uploads
// of up to catalog.MaxTail bytes, whose content is kept in the upload's row, and longer
// uploads, whose content is written to the store as it arrives, through one or several buffers.
var sizes = []int{0, 1, catalog.MaxTail - 1, catalog.MaxTail, catalog.MaxTail + 1, 3*catalog.MaxTail + 7, 5<<20 + 1}

var locationForm = regexp.MustCompile(`^/v2/a/b/blobs/uploads/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// TestStartUpload tests the POST of "POST then PUT".
func TestStartUpload(t *testing.T) {
	t.Parallel()
	r := setup(t)
	seen := map[string]bool{}
	for _, path := range []string{
		"/v2/a/b/blobs/uploads/", "/v2/a/b/blobs/uploads", "/v2/a/b/blobs/uploads/?digest-algorithm=sha512",
		"/v2/a/b/blobs/uploads/?digest-algorithm=sha256", "/v2/a/b/blobs/uploads/?digest=" + digest("later").String(),
	} {
		a := r.Do(t, "POST", path, "").Want(t, 202, "", "Content-Length", "0", "Range", "0-0", "Docker-Upload-Uuid", "*")
		at := a.Header.Get("Location")
		if !locationForm.MatchString(at) || seen[at] || !strings.HasSuffix(at, a.Header.Get("Docker-Upload-Uuid")) {
			t.Errorf("%s: location %q", path, at)
		}
		seen[at] = true
		r.Do(t, "GET", at, "").Want(t, 204, "", "Location", at, "Range", "0-0").Text(t, "")
	}
	for _, query := range []string{"digest-algorithm=md5", "digest-algorithm=SHA256", "digest=sha256:abc", "digest=md5:" + strings.Repeat("a", 32), "digest=x"} {
		r.Do(t, "POST", "/v2/a/b/blobs/uploads/?"+query, "x").Want(t, 400, oci.DigestInvalid)
	}
}

// TestPostThenPut tests "POST then PUT" of the OCI Distribution Specification: a client starts
// an upload by a POST, and sends the whole content in a PUT, with or without a Content-Length.
func TestPostThenPut(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, n := range sizes {
		content := pattern(byte(i), n)
		d := digest(content)
		for _, body := range []io.Reader{strings.NewReader(content), chunked(content)} {
			repository := fmt.Sprintf("r/%d", n)
			at := r.StartUpload(t, repository, "")
			a, err := r.Try(t.Context(), "PUT", at+"?digest="+d.String(), body, "Content-Type", "application/octet-stream")
			if err != nil {
				t.Fatal(err)
			}
			location := "/v2/" + repository + "/blobs/" + d.String()
			a.Want(t, 201, "", "Location", location, "Docker-Content-Digest", d.String(), "Content-Length", "0")
			r.WantBlob(t, repository, d, content)
			r.Do(t, "GET", at, "").Want(t, 404, oci.BlobUploadUnknown)
			r.Do(t, "PUT", at+"?digest="+d.String(), content).Want(t, 201, "", "Location", location)
		}
	}
}

// chunked returns a body whose size the HTTP client doesn't know. The client therefore sends it
// with the chunked transfer coding, and without a Content-Length.
func chunked(content string) io.Reader { return io.MultiReader(strings.NewReader(content)) }

// TestSinglePost tests "Single POST" of the specification.
func TestSinglePost(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, n := range sizes {
		content := pattern(byte(i), n)
		for _, d := range []oci.Digest{digest(content), digest512(content)} {
			repository := fmt.Sprintf("%s/%d", d.Algorithm(), n)
			path := "/v2/" + repository + "/blobs/"
			r.Do(t, "POST", path+"uploads/?digest="+d.String(), content, "Content-Type", "application/octet-stream").
				Want(t, 201, "", "Location", path+d.String(), "Docker-Content-Digest", d.String())
			r.WantBlob(t, repository, d, content)
		}
	}
	r.Do(t, "POST", "/v2/a/blobs/uploads/?digest="+digest("x").String(), "y").Want(t, 400, oci.DigestInvalid)
	r.Do(t, "GET", "/v2/a/blobs/"+digest("x").String(), "").Want(t, 404, oci.NameUnknown)
	// A client names a digest in the query of the POST, but sends no body. The registry must
	// start an upload, to whose URL the client then sends the content in a PUT.
	at := r.Do(t, "POST", "/v2/a/blobs/uploads/?digest="+digest512("x").String(), "").Want(t, 202, "").Header.Get("Location")
	r.Do(t, "PUT", at+"?digest="+digest512("x").String(), "x").Want(t, 201, "")
	r.WantBlob(t, "a", digest512("x"), "x")
}

// TestChunks tests "Pushing a blob in chunks" of the OCI Distribution Specification. A plan is
// a list of the sizes of the chunks of an upload. Each plan is sent in eight ways: with or
// without Content-Range, with or without Content-Length, and with the last chunk in the closing
// PUT or in a PATCH before it.
func TestChunks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const tail = catalog.MaxTail
	plans := map[string][]int{
		"one":           {10},
		"small":         {1, 2, 3, 4},
		"nothing":       {0, 0},
		"nothing first": {0, 5, 0, 5},
		"to the limit":  {tail - 1, 1},
		"past it":       {tail - 1, 1, 1},
		"past at once":  {tail + 1, 1},
		"over it":       {tail, tail},
		"grown":         {1, tail, 2 * tail, 1},
		"large":         {5 << 20, 5<<20 + 1, 3},
	}
	for name, plan := range plans {
		for way := range 8 {
			ranged, stream, lastInPut := way&1 != 0, way&2 != 0, way&4 != 0
			if name == "large" && way != 0 && way != 5 {
				continue
			}
			t.Run(fmt.Sprintf("%s,ranged=%v,stream=%v,put=%v", name, ranged, stream, lastInPut), func(t *testing.T) {
				r.sendChunks(t, plan, ranged, stream, lastInPut)
			})
		}
	}
}

func (r *registry) sendChunks(t *testing.T, plan []int, ranged, stream, lastInPut bool) {
	t.Helper()
	total := 0
	for _, n := range plan {
		total += n
	}
	content := pattern(byte(total), total)
	d := digest(content)
	at, sent := r.StartUpload(t, "a/b", ""), 0
	for i, n := range plan {
		piece := content[sent : sent+n]
		var body io.Reader = strings.NewReader(piece)
		if stream {
			body = chunked(piece)
		}
		headers := []string{"Content-Type", "application/octet-stream"}
		if ranged && n > 0 {
			headers = append(headers, "Content-Range", fmt.Sprintf("%d-%d", sent, sent+n-1))
		}
		method, path, status := "PATCH", at, 202
		last := i == len(plan)-1
		if last && lastInPut {
			method, path, status = "PUT", at+"?digest="+d.String(), 201
		}
		a, err := r.Try(t.Context(), method, path, body, headers...)
		if err != nil {
			t.Fatal(err)
		}
		a.Want(t, status, "")
		sent += n
		if status == 202 {
			end := fmt.Sprintf("0-%d", max(sent-1, 0))
			at = a.Want(t, 202, "", "Range", end, "Content-Length", "0").Header.Get("Location")
			r.Do(t, "GET", at, "").Want(t, 204, "", "Range", end, "Location", at)
		}
	}
	if !lastInPut {
		r.Do(t, "PUT", at+"?digest="+d.String(), "").Want(t, 201, "", "Location", "/v2/a/b/blobs/"+d.String())
	}
	r.WantBlob(t, "a/b", d, content)
}

// TestOutOfOrder: a client sends a PATCH or PUT whose Content-Range doesn't begin where the
// upload ends. The registry must answer 416 with the upload's current Range. Then it must accept
// a request whose bytes begin where the upload ends.
func TestOutOfOrder(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{100, catalog.MaxTail + 100} {
		content := pattern(3, 2*n)
		d := digest(content)
		at := r.StartUpload(t, "a", "")
		r.Do(t, "PATCH", at, content[:n], "Content-Range", fmt.Sprintf("%d-%d", 1, n)).
			Want(t, 416, oci.BlobUploadInvalid, "Location", at, "Range", "0-0")
		r.Do(t, "PATCH", at, content[:n], "Content-Range", fmt.Sprintf("0-%d", n-1)).Want(t, 202, "")
		stands := []string{"Location", fmt.Sprintf("%s.%d", at, n), "Range", fmt.Sprintf("0-%d", n-1)}
		for _, rng := range []string{fmt.Sprintf("0-%d", n-1), fmt.Sprintf("%d-%d", n+1, 2*n), fmt.Sprintf("%d-%d", n-1, 2*n-2)} {
			r.Do(t, "PATCH", at, content[:n], "Content-Range", rng).Want(t, 416, oci.BlobUploadInvalid, stands...)
			r.Do(t, "PUT", at+"?digest="+d.String(), content[:n], "Content-Range", rng).Want(t, 416, oci.BlobUploadInvalid, stands...)
		}
		r.Do(t, "GET", at, "").Want(t, 204, "", stands...)
		r.Do(t, "PUT", at+"?digest="+d.String(), content[n:], "Content-Range", fmt.Sprintf("%d-%d", n, 2*n-1)).Want(t, 201, "")
		r.WantBlob(t, "a", d, content)
	}
}

// TestContentRange: a client sends a PATCH or PUT with a malformed Content-Range. The registry
// must answer 400 BLOB_UPLOAD_INVALID. If the Content-Range doesn't match the length of the
// body, it must answer 400 SIZE_INVALID.
func TestContentRange(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, v := range []string{"x", "0", "0-", "-4", "4-0", "0-4-5", "bytes", "+0-4", "0-99999999999999999999", "0-4/3", "a-b"} {
		at := r.StartUpload(t, "a", "")
		r.Do(t, "PATCH", at, "hello", "Content-Range", v).Want(t, 400, oci.BlobUploadInvalid)
		r.Do(t, "PUT", at+"?digest="+digest("hello").String(), "hello", "Content-Range", v).Want(t, 400, oci.BlobUploadInvalid)
		r.Do(t, "GET", at, "").Want(t, 204, "", "Range", "0-0")
	}
	for _, v := range []string{"0-4", "bytes 0-4/5", "bytes 0-4/*", "bytes=0-4"} {
		r.Do(t, "PATCH", r.StartUpload(t, "a", ""), "hello", "Content-Range", v).Want(t, 202, "", "Range", "0-4")
	}
	for _, v := range []string{"0-3", "0-5"} {
		r.Do(t, "PATCH", r.StartUpload(t, "a", ""), "hello", "Content-Range", v).Want(t, 400, oci.SizeInvalid)
	}
}

// TestContentRangeOfStream: a client sends a body without Content-Length, and the body is
// shorter or longer than its Content-Range says. The registry must answer SIZE_INVALID. A
// client would take the status 202 to mean that the whole range was saved.
func TestContentRangeOfStream(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{5, catalog.MaxTail + 5} {
		content := pattern(9, n)
		for _, end := range []int{n - 2, n} {
			at := r.StartUpload(t, "a", "")
			a, err := r.Try(t.Context(), "PATCH", at, chunked(content), "Content-Range", fmt.Sprintf("0-%d", end))
			if err != nil {
				t.Fatal(err)
			}
			if a.StatusCode != 400 || a.Code(t) != oci.SizeInvalid {
				t.Errorf("%d bytes with Content-Range 0-%d: %d %s, Range %s, want 400 SIZE_INVALID", n, end, a.StatusCode, a.Content, a.Header.Get("Range"))
			}
		}
	}
}

// TestDigestMismatch: a client finishes an upload with a wrong digest. The registry must answer
// DIGEST_INVALID, store no blob, and leave the upload as it was, so that the client can finish
// the upload with the right digest.
func TestDigestMismatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, n := range sizes {
		content := pattern(byte(i), n)
		wrong := digest(content + "x")
		for _, split := range []int{0, n / 2, n} {
			at := r.StartUpload(t, "a", "")
			if split > 0 {
				r.Do(t, "PATCH", at, content[:split]).Want(t, 202, "")
			}
			stands := fmt.Sprintf("0-%d", max(split-1, 0))
			for _, d := range []oci.Digest{wrong, digest512(content + "x")} {
				r.Do(t, "PUT", at+"?digest="+d.String(), content[split:]).Want(t, 400, oci.DigestInvalid)
				r.Do(t, "GET", at, "").Want(t, 204, "", "Range", stands)
				r.Do(t, "HEAD", "/v2/a/blobs/"+d.String(), "").Want(t, 404, "")
			}
			d := digest(content)
			r.Do(t, "PUT", at+"?digest="+d.String(), content[split:]).Want(t, 201, "")
			r.WantBlob(t, "a", d, content)
		}
	}
}

// TestClose: a client sends the PUT that finishes an upload. The registry must refuse it if its
// digest is missing or malformed, if there is no such upload, or if the upload belongs to
// another repository.
func TestClose(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	r.Do(t, "PATCH", at, "hello").Want(t, 202, "")
	for _, query := range []string{"", "?digest=", "?digest=x", "?digest=sha256:abc", "?digest=md5:" + strings.Repeat("a", 32), "?other=1"} {
		r.Do(t, "PUT", at+query, "").Want(t, 400, oci.DigestInvalid)
	}
	d := digest("hello").String()
	for _, path := range []string{
		strings.Replace(at, "/v2/a/", "/v2/b/", 1), "/v2/a/blobs/uploads/x", "/v2/a/blobs/uploads/00000000-0000-4000-8000-000000000000",
	} {
		r.Do(t, "PUT", path+"?digest="+d, "").Want(t, 404, oci.BlobUploadUnknown)
		r.Do(t, "PATCH", path, "x").Want(t, 404, oci.BlobUploadUnknown)
		r.Do(t, "GET", path, "").Want(t, 404, oci.BlobUploadUnknown)
		r.Do(t, "DELETE", path, "").Want(t, 404, oci.BlobUploadUnknown)
	}
	r.Do(t, "PUT", at+"?digest="+strings.Replace(d, ":", "%3A", 1), "").Want(t, 201, "")
	r.WantBlob(t, "a", digest("hello"), "hello")
}

// TestSHA512: a client pushes blobs with a sha512 digest. It announces the algorithm when it
// starts the upload, or only uses it in the PUT that finishes the upload. Both must succeed.
func TestSHA512(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, n := range sizes {
		content := pattern(byte(i), n)
		d := digest512(content)
		for _, query := range []string{"", "?digest-algorithm=sha512"} {
			for _, split := range testscale.Pick([]int{0, n / 2}, []int{0, n / 2, n}) {
				repository := fmt.Sprintf("r%d/%d/%d", len(query), n, split)
				at := r.StartUpload(t, repository, query)
				if split > 0 {
					r.Do(t, "PATCH", at, content[:split]).Want(t, 202, "")
				}
				r.Do(t, "PUT", at+"?digest="+d.String(), content[split:]).
					Want(t, 201, "", "Docker-Content-Digest", d.String(), "Location", "/v2/"+repository+"/blobs/"+d.String())
				r.WantBlob(t, repository, d, content)
				r.Do(t, "GET", "/v2/"+repository+"/blobs/"+digest(content).String(), "").Want(t, 404, oci.BlobUnknown)
			}
		}
		// The client announces sha512 when it starts the upload, but finishes the upload with a
		// sha256 digest. That must succeed too.
		at := r.StartUpload(t, "x", "?digest-algorithm=sha512")
		r.Do(t, "PATCH", at, content).Want(t, 202, "")
		r.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
		r.WantBlob(t, "x", digest(content), content)
	}
}

// TestCancel tests "Cancel a blob upload" of the specification.
func TestCancel(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{0, 10, catalog.MaxTail + 1} {
		at := r.StartUpload(t, "a", "")
		r.Do(t, "PATCH", at, pattern(1, n)).Want(t, 202, "")
		r.Do(t, "DELETE", at, "").Want(t, 204, "").Text(t, "")
		for _, method := range []string{"GET", "PATCH", "DELETE"} {
			r.Do(t, method, at, "").Want(t, 404, oci.BlobUploadUnknown)
		}
		r.Do(t, "PUT", at+"?digest="+digest("").String(), "").Want(t, 404, oci.BlobUploadUnknown)
	}
}

// TestMount tests "Mounting a blob from another repository" of the specification.
func TestMount(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.Authorize = func(_ context.Context, a auth.Access, of auth.Resource) error {
			if a == auth.Pull && strings.HasPrefix(of.Repository, "secret") {
				return oci.NewError(oci.Denied)
			}
			return nil
		}
	})
	d, hidden := r.Push(t, "a/b", "content"), r.Push(t, "secret/x", "hidden")
	d512 := digest512("x")
	r.Do(t, "POST", "/v2/a/b/blobs/uploads/?digest="+d512.String(), "x").Want(t, 201, "")
	for _, c := range []struct {
		to, query string
		status    int
	}{
		{"m/1", "mount=" + d.String() + "&from=a/b", 201},
		{"m/2", "mount=" + d.String(), 201},
		{"m/3", "mount=" + d.String() + "&from=", 201},
		{"m/4", "mount=" + d512.String() + "&from=a/b", 201},
		{"m/4", "mount=" + d.String() + "&from=m/1", 201}, // from a repository that got it by a mount
		{"m/1", "mount=" + d.String() + "&from=a/b", 201}, // again
		{"a/b", "mount=" + d.String() + "&from=a/b", 201}, // from itself
		{"n/1", "mount=" + d.String() + "&from=unknown/repo", 202},
		{"n/2", "mount=" + d.String() + "&from=secret/x", 202}, // the source doesn't have it and can't be read
		{"n/3", "mount=" + hidden.String() + "&from=secret/x", 202},
		{"n/4", "mount=" + hidden.String(), 202}, // only in a repository that the client can't read
		{"n/5", "mount=" + digest("nowhere").String(), 202},
		{"n/6", "mount=" + digest("nowhere").String() + "&from=a/b", 202},
	} {
		a := r.Do(t, "POST", "/v2/"+c.to+"/blobs/uploads/?"+c.query, "").Want(t, c.status, "", "Location", "*")
		at := a.Header.Get("Location")
		if c.status == 202 {
			r.Do(t, "PUT", at+"?digest="+digest(c.to).String(), c.to).Want(t, 201, "")
			r.WantBlob(t, c.to, digest(c.to), c.to)
			continue
		}
		if a.Header.Get("Docker-Content-Digest") == "" {
			t.Errorf("mount %s: no Docker-Content-Digest", c.query)
		}
		r.Do(t, "GET", at, "").Want(t, 200, "")
		r.Do(t, "HEAD", at, "").Want(t, 200, "")
	}
	r.Do(t, "POST", "/v2/m/9/blobs/uploads/?mount=x&from=a/b", "").Want(t, 400, oci.DigestInvalid)
	r.Do(t, "POST", "/v2/m/9/blobs/uploads/?mount="+d.String()+"&from=A/B", "").Want(t, 400, oci.NameInvalid)
}

// TestFailedMountMakesNoRepository: a client tries to mount a blob that doesn't exist into a
// new repository, and the registry starts an upload instead. As long as the client hasn't pushed
// content to the new repository, the repository must not exist.
func TestFailedMountMakesNoRepository(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "a", "x")
	r.Do(t, "POST", "/v2/b/blobs/uploads/?mount="+digest("y").String()+"&from=a", "").Want(t, 202, "")
	r.Do(t, "GET", "/v2/_catalog", "").Want(t, 200, "").Text(t, `{"repositories":["a"]}`)
}

// TestRefusedManifestMakesNoRepository: a client pushes a manifest to a new repository, and the
// registry refuses the manifest. The repository must not exist afterwards.
func TestRefusedManifestMakesNoRepository(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "a", "x")
	r.Do(t, "PUT", "/v2/c/manifests/v1", image(t, digest("y"), nil, nil)).Want(t, 400, oci.ManifestBlobUnknown)
	r.Do(t, "GET", "/v2/_catalog", "").Want(t, 200, "").Text(t, `{"repositories":["a"]}`)
}

// TestLargeBlob: a client pushes and pulls a blob of 24 MiB, which is larger than any buffer
// that its bytes pass through.
func TestLargeBlob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := bytes.Repeat([]byte(pattern(5, 1<<20)), 24)
	d := oci.Compute(oci.SHA256, content)
	at := r.StartUpload(t, "a", "")
	a, err := r.Try(t.Context(), "PATCH", at, io.MultiReader(bytes.NewReader(content)))
	if err != nil {
		t.Fatal(err)
	}
	a.Want(t, 202, "", "Range", fmt.Sprintf("0-%d", len(content)-1))
	r.Do(t, "PUT", at+"?digest="+d.String(), "").Want(t, 201, "")
	r.WantBlob(t, "a", d, string(content))
}
