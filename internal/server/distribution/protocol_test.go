package distribution_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"

	"github.com/purser-registry/purser/internal/oci"
)

// TestInvalidRanges: a client asks for a range of a blob that ends before it begins, or whose
// first position overflows int64 and so lies outside the blob. The registry must answer 416
// (RFC 9110, section 14.2). If the registry can't parse the Range header, it must ignore the
// header and send the whole blob.
func TestInvalidRanges(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 1000)
	d := r.Push(t, "a", content)
	get := func(header string) answer { return r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "", "Range", header) }
	for _, header := range []string{"bytes=500-0", "bytes=1-0", "bytes=2000-1999", "bytes=99999999999999999999-0", "bytes=99999999999999999999-", "bytes=-0"} {
		get(header).Want(t, 416, oci.SizeInvalid, "Content-Range", "bytes */1000")
	}
	get("bytes=0-99999999999999999999").Want(t, 206, "", "Content-Range", "bytes 0-999/1000").Text(t, content)
	get("bytes=-99999999999999999999").Want(t, 206, "", "Content-Range", "bytes 0-999/1000").Text(t, content)
	for _, header := range []string{"bytes=", "bytes=-", "bytes=x-1", "bytes=1-x", "bytes=+1-2", "lines=1-2"} {
		get(header).Want(t, 200, "", "Content-Range", "").Text(t, content)
	}
}

// TestHeadOfLists: a client sends HEAD for a listing. The answer must have the same headers as
// the answer to GET, but no content (RFC 9110, section 9.3.2).
func TestHeadOfLists(t *testing.T) {
	t.Parallel()
	r := setup(t)
	subject := r.Put(t, "a", "one", r.Simple(t, "a", 1, nil))
	r.Put(t, "a", "two", r.Simple(t, "a", 2, object{"subject": descriptor(oci.MediaTypeImageManifest, subject, 1)}))
	r.Put(t, "b", "one", r.Simple(t, "b", 1, nil))
	for _, path := range []string{
		"/v2/_catalog", "/v2/_catalog?n=1", "/v2/a/tags/list", "/v2/a/tags/list?n=1",
		"/v2/a/referrers/" + subject.String(), "/v2/a/referrers/" + subject.String() + "?artifactType=x/y",
	} {
		get := r.Do(t, "GET", path, "").Want(t, 200, "", "Content-Length", "*")
		head := r.Do(t, "HEAD", path, "").Want(t, 200, "")
		head.Text(t, "")
		for _, name := range []string{"Content-Length", "Content-Type", "Link", "Oci-Filters-Applied"} {
			if got, want := head.Header.Get(name), get.Header.Get(name); got != want {
				t.Errorf("HEAD %s: %s is %q, with GET %q", path, name, got, want)
			}
		}
	}
	r.Do(t, "HEAD", "/v2/none/tags/list", "").Want(t, 404, oci.NameUnknown).Text(t, "")
	upload := r.StartUpload(t, "a", "")
	r.Do(t, "HEAD", upload, "").Want(t, 204, "", "Location", "*", "Range", "*")
}

// TestNoSniff: every answer must have the header X-Content-Type-Options: nosniff, so that
// browsers rely on the Content-Type instead of guessing the type from the content.
func TestNoSniff(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "a", "<html><script>alert(1)</script>")
	tag := r.Put(t, "a", "one", r.Simple(t, "a", 1, nil))
	for _, path := range []string{
		"/v2/", "/v2/a/blobs/" + d.String(), "/v2/a/manifests/" + tag.String(), "/v2/a/tags/list", "/v2/_catalog",
		"/v2/a/manifests/none", "/nothing", "/api/v1/repository", "/api/v1/nothing",
	} {
		if got := r.Do(t, "GET", path, "").Header.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("GET %s: X-Content-Type-Options is %q", path, got)
		}
	}
}

// TestRepeatedTag: a client pushes a manifest by digest, and its query names the same tag
// twice. The registry must set the tag once, and count it once in the limit on tags.
func TestRepeatedTag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	m := r.Simple(t, "a", 1, nil)
	d := digest(m)
	r.Do(t, "PUT", "/v2/a/manifests/"+d.String()+"?tag=b&tag=a&tag=b&tag=a", m).Want(t, 201, "", "OCI-Tag", "b, a")
	var many strings.Builder
	for i := range 300 {
		fmt.Fprintf(&many, "&tag=t%d", i%100)
	}
	r.Do(t, "PUT", "/v2/a/manifests/"+d.String()+"?"+many.String()[1:], m).Want(t, 201, "")
	r.Do(t, "PUT", "/v2/a/manifests/"+d.String()+"?tag=more"+many.String(), m).Want(t, http.StatusRequestURITooLong, oci.Unsupported)
}

// TestWithdrawnArtifactManifest: release candidates of version 1.1 of the OCI specifications
// had an artifact manifest, which was withdrawn later. If a client pushes such a manifest, the
// error must say that its media type isn't supported, and not what else is invalid about it.
func TestWithdrawnArtifactManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const withdrawn = "application/vnd.oci.artifact.manifest.v1+json"
	payload := encode(t, object{"mediaType": withdrawn, "artifactType": "x/y", "blobs": []any{}})
	for _, headers := range [][]string{{"Content-Type", withdrawn}, nil} {
		a := r.Do(t, "PUT", "/v2/a/manifests/one", payload, headers...).Want(t, 400, oci.ManifestInvalid)
		if !strings.Contains(string(a.Content), "isn't supported") || strings.Contains(string(a.Content), "schemaVersion") {
			t.Errorf("an artifact manifest is told %s", a.Content)
		}
	}
	a := r.Do(t, "PUT", "/v2/a/manifests/one", "{}", "Content-Type", "application/json").Want(t, 400, oci.ManifestInvalid)
	if !strings.Contains(string(a.Content), "isn't supported") {
		t.Errorf("a manifest of type application/json is told %s", a.Content)
	}
}

// TestCacheOfBuildKit: BuildKit exports its build cache as an image index that lists blobs
// instead of manifests. The registry must store the index and return it unchanged. Until the
// index is deleted, the registry must refuse to delete the blobs that the index lists.
func TestCacheOfBuildKit(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config, layer := r.Push(t, "a", "config"), r.Push(t, "a", "layer")
	list := func(layers ...oci.Digest) string {
		entries := []any{}
		for _, d := range layers {
			entries = append(entries, descriptor(servertest.LayerType, d, 5))
		}
		return encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex,
			"manifests": append(entries, descriptor("application/vnd.buildkit.cacheconfig.v0", config, 6))})
	}
	cache := list(layer)
	d := r.Put(t, "a", "cache", cache)
	r.Do(t, "GET", "/v2/a/manifests/cache", "").Want(t, 200, "", "Content-Type", oci.MediaTypeImageIndex).Text(t, cache)
	var tag struct{ Size int }
	if err := json.Unmarshal(r.Do(t, "GET", "/api/v1/repository/a/tag/cache", "").Content, &tag); err != nil || tag.Size != len(cache)+len("config")+len("layer") {
		t.Errorf("the size of the cache is %d, %v", tag.Size, err)
	}
	for _, listed := range []oci.Digest{layer, config} {
		r.Do(t, "DELETE", "/v2/a/blobs/"+listed.String(), "").Want(t, 409, oci.Denied)
	}
	a := r.Do(t, "PUT", "/v2/a/manifests/other", list(layer, digest("nowhere"))).Want(t, 400, oci.ManifestBlobUnknown)
	if !strings.Contains(string(a.Content), digest("nowhere").String()) || strings.Contains(string(a.Content), layer.String()) {
		t.Errorf("%s names another layer than the missing one", a.Content)
	}
	r.Do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").Want(t, 202, "")
	r.Do(t, "DELETE", "/v2/a/blobs/"+layer.String(), "").Want(t, 202, "")
}
