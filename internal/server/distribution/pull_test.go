package distribution_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// TestDeterminingSupport tests "Determining Support" of the specification.
func TestDeterminingSupport(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, path := range []string{"/v2/", "/v2"} {
		r.Do(t, "GET", path, "").Want(t, 200, "", "Content-Type", "application/json").Text(t, "{}")
		r.Do(t, "HEAD", path, "").Want(t, 200, "", "Content-Length", "2").Text(t, "")
	}
}

// TestPullManifest tests, with manifests, "Pulling manifests" and "Checking if content exists
// in the registry" of the OCI Distribution Specification.
func TestPullManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a/b/c", 1, nil)
	d := r.Put(t, "a/b/c", "v1", payload)
	r.Push(t, "blobs-only", "x")
	none := digest("none")

	for range 2 { // from the database, then from memory
		for _, ref := range []string{"v1", d.String()} {
			path := "/v2/a/b/c/manifests/" + ref
			headers := []string{
				"Docker-Content-Digest", d.String(), "Content-Type", oci.MediaTypeImageManifest,
				"Content-Length", fmt.Sprint(len(payload)), "Etag", `"` + d.String() + `"`,
			}
			r.Do(t, "GET", path, "", "Accept", oci.MediaTypeImageManifest).Want(t, 200, "", headers...).Text(t, payload)
			r.Do(t, "HEAD", path, "").Want(t, 200, "", headers...).Text(t, "")
		}
	}
	for path, code := range map[string]oci.Code{
		"/v2/a/b/c/manifests/v2":                          oci.ManifestUnknown,
		"/v2/a/b/c/manifests/" + none.String():            oci.ManifestUnknown,
		"/v2/a/b/c/manifests/" + digest("{}").String():    oci.ManifestUnknown, // a blob
		"/v2/a/b/c/manifests/" + digest512("").String():   oci.ManifestUnknown,
		"/v2/blobs-only/manifests/v1":                     oci.ManifestUnknown,
		"/v2/blobs-only/manifests/" + d.String():          oci.ManifestUnknown, // another repository's
		"/v2/a/b/manifests/v1":                            oci.NameUnknown,
		"/v2/unknown/manifests/v1":                        oci.NameUnknown,
		"/v2/unknown/manifests/" + none.String():          oci.NameUnknown,
		"/v2/a/b/c/manifests/" + strings.Repeat("t", 128): oci.ManifestUnknown,
	} {
		r.Do(t, "GET", path, "").Want(t, 404, code, "Docker-Content-Digest", "")
		r.Do(t, "HEAD", path, "").Want(t, 404, code, "Docker-Content-Digest", "")
	}
}

// TestPullInvalidReference: a client pulls a manifest by a reference that is neither a valid
// digest nor a valid tag. The registry must answer 404 ("Pulling manifests"), because the
// conformance tests of the OCI Distribution Specification pull the tag .INVALID_MANIFEST_NAME
// and expect this status.
func TestPullInvalidReference(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "a", "v1", r.Simple(t, "a", 1, nil))
	for _, ref := range []string{".INVALID_MANIFEST_NAME", "-x", strings.Repeat("t", 129), "t%20x", "%C3%A9"} {
		for _, method := range []string{"GET", "HEAD"} {
			if a := r.Do(t, method, "/v2/a/manifests/"+ref, ""); a.StatusCode != 404 {
				t.Errorf("%s of manifest %s: %d %s, want 404", method, ref, a.StatusCode, a.Content)
			}
		}
	}
}

// TestPullInvalidDigest: a client sends requests with malformed digests and with digests of an
// unknown algorithm in the path. The registry must answer 400 DIGEST_INVALID.
func TestPullInvalidDigest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "a", "x")
	hex := strings.Repeat("a", 64)
	for _, d := range []string{
		"sha256:", "sha256:abc", "sha256:" + strings.ToUpper(hex), "sha256:" + hex + "a", "SHA256:" + hex, "sha512:" + hex,
		"sha1:" + hex[:40], "md5:" + hex[:32], "blake3:" + hex, ":" + hex, "sha256:" + hex[:63] + "g", "sha256:%00" + hex[:63],
	} {
		for _, route := range []string{"GET manifests", "HEAD manifests", "DELETE manifests", "GET blobs", "HEAD blobs", "DELETE blobs", "GET referrers"} {
			method, kind, _ := strings.Cut(route, " ")
			r.Do(t, method, "/v2/a/"+kind+"/"+d, "").Want(t, 400, oci.DigestInvalid)
		}
	}
	for _, d := range []string{"nothing", hex, "latest"} {
		r.Do(t, "GET", "/v2/a/blobs/"+d, "").Want(t, 400, oci.DigestInvalid)
	}
}

// TestPullBlob tests, with blobs, "Pulling blobs" and "Checking if content exists in the
// registry" of the OCI Distribution Specification.
func TestPullBlob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for name, content := range map[string]string{"empty": "", "small": "hello", "large": pattern(1, 3<<20)} {
		d := r.Push(t, "a/"+name, content)
		headers := []string{
			"Docker-Content-Digest", d.String(), "Content-Length", fmt.Sprint(len(content)), "Etag", `"` + d.String() + `"`,
			"Content-Type", "application/octet-stream", "Accept-Ranges", "bytes",
		}
		for range 2 {
			r.Do(t, "GET", "/v2/a/"+name+"/blobs/"+d.String(), "").Want(t, 200, "", headers...).Text(t, content)
			r.Do(t, "HEAD", "/v2/a/"+name+"/blobs/"+d.String(), "").Want(t, 200, "", headers...).Text(t, "")
		}
	}
	for path, code := range map[string]oci.Code{
		"/v2/a/small/blobs/" + digest("").String():         oci.BlobUnknown, // another repository's
		"/v2/a/small/blobs/" + digest512("hello").String(): oci.BlobUnknown,
		"/v2/a/blobs/" + digest("hello").String():          oci.NameUnknown,
	} {
		r.Do(t, "GET", path, "").Want(t, 404, code)
		r.Do(t, "HEAD", path, "").Want(t, 404, code)
	}
}

// TestRange: a client sends GET of a blob with a Range header. The registry must answer as RFC
// 9110, section 14, says, to which the OCI Distribution Specification refers ("Pulling blobs").
func TestRange(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := "0123456789"
	d := r.Push(t, "a", content)
	path := "/v2/a/blobs/" + d.String()
	for _, c := range []struct{ header, want, body string }{
		{"bytes=0-0", "bytes 0-0/10", "0"},
		{"bytes=0-9", "bytes 0-9/10", content},
		{"bytes=0-", "bytes 0-9/10", content},
		{"bytes=3-5", "bytes 3-5/10", "345"},
		{"bytes=3-", "bytes 3-9/10", "3456789"},
		{"bytes=9-", "bytes 9-9/10", "9"},
		{"bytes=5-100", "bytes 5-9/10", "56789"},
		{"bytes=5-9223372036854775807", "bytes 5-9/10", "56789"},
		{"bytes=-1", "bytes 9-9/10", "9"},
		{"bytes=-10", "bytes 0-9/10", content},
		{"bytes=-11", "bytes 0-9/10", content},
		{"bytes=-9223372036854775807", "bytes 0-9/10", content},
	} {
		r.Do(t, "GET", path, "", "Range", c.header).
			Want(t, 206, "", "Content-Range", c.want, "Content-Length", fmt.Sprint(len(c.body)),
				"Docker-Content-Digest", d.String(), "Accept-Ranges", "bytes").Text(t, c.body)
	}
	for _, header := range []string{"bytes=10-", "bytes=10-20", "bytes=9223372036854775807-", "bytes=-0", "bytes=5-3"} {
		a := r.Do(t, "GET", path, "", "Range", header).Want(t, 416, oci.SizeInvalid, "Content-Range", "bytes */10")
		if a.Header.Get("Docker-Content-Digest") != "" {
			t.Errorf("%s: the digest of a body that isn't the blob's", header)
		}
	}
	// RFC 9110 lets a server ignore a Range header. Purser ignores one that is malformed or
	// lists several ranges, and sends the whole blob.
	for _, header := range []string{
		"bytes=0-1,3-4", "bytes=", "bytes=-", "bytes=x-y", "bytes=1", "items=0-1", "0-1", "bytes 0-1",
		"bytes=+1-2", "bytes=0x1-2", "bytes=1--2", "bytes=--1", "bytes=1_0-",
	} {
		r.Do(t, "GET", path, "", "Range", header).Want(t, 200, "", "Content-Range", "").Text(t, content)
	}
	r.Do(t, "HEAD", path, "", "Range", "bytes=0-1").Want(t, 200, "", "Content-Length", "10")
	r.Do(t, "GET", path, "", "Range", "bytes=0-1", "If-Range", `"`+d.String()+`"`).Want(t, 206, "").Text(t, "01")
	for _, v := range []string{`"other"`, `W/"` + d.String() + `"`, "Wed, 21 Oct 2015 07:28:00 GMT"} {
		r.Do(t, "GET", path, "", "Range", "bytes=0-1", "If-Range", v).Want(t, 200, "").Text(t, content)
	}
	empty := r.Push(t, "a", "")
	for _, header := range []string{"bytes=0-", "bytes=0-0"} {
		r.Do(t, "GET", "/v2/a/blobs/"+empty.String(), "", "Range", header).Want(t, 416, oci.SizeInvalid, "Content-Range", "bytes */0")
	}
}

// TestResumedPull: a client downloads a blob in several requests, each with a Range that
// begins where the previous one ended. The pieces together must be the blob.
func TestResumedPull(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(7, 300_001)
	d := r.Push(t, "a", content)
	var got strings.Builder
	for got.Len() < len(content) {
		a := r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "", "Range", fmt.Sprintf("bytes=%d-%d", got.Len(), got.Len()+99_999))
		a.Want(t, 206, "")
		got.Write(a.Content)
	}
	if got.String() != content {
		t.Error("the pieces aren't the blob")
	}
}

// TestIfNoneMatch tests RFC 9110, section 13.1.2, for GET and HEAD.
func TestIfNoneMatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a", 1, nil)
	m := r.Put(t, "a", "v1", payload)
	b := digest("{}")
	for path, d := range map[string]oci.Digest{
		"/v2/a/manifests/v1": m, "/v2/a/manifests/" + m.String(): m, "/v2/a/blobs/" + b.String(): b,
	} {
		tag := `"` + d.String() + `"`
		for _, v := range []string{tag, "W/" + tag, "*", `"x", ` + tag, `"x",W/` + tag + `,"y"`} {
			for _, method := range []string{"GET", "HEAD"} {
				if a := r.Do(t, method, path, "", "If-None-Match", v); a.StatusCode != http.StatusNotModified || a.Header.Get("Etag") != tag || len(a.Content) > 0 {
					t.Errorf("%s %s with If-None-Match %s: %d, Etag %s, want 304", method, path, v, a.StatusCode, a.Header.Get("Etag"))
				}
			}
		}
		r.Do(t, "GET", path, "", "If-None-Match", `"x"`, "If-None-Match", tag).Want(t, 304, "")
		for _, v := range []string{`"x"`, `"` + digest("x").String() + `"`, ""} {
			r.Do(t, "GET", path, "", "If-None-Match", v).Want(t, 200, "")
		}
	}
	r.Do(t, "GET", "/v2/a/blobs/"+digest("x").String(), "", "If-None-Match", "*").Want(t, 404, oci.BlobUnknown)
	r.Do(t, "GET", "/v2/a/manifests/v9", "", "If-None-Match", "*").Want(t, 404, oci.ManifestUnknown)
}
