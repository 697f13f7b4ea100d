package server_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// TestDeleteTag is "Deleting tags".
func TestDeleteTag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.simple(t, "a", 1, nil)
	d := r.put(t, "a", "v1", payload)
	r.put(t, "a", "v2", payload)
	r.do(t, "GET", "/v2/a/manifests/v1", "").want(t, 200, "")
	r.do(t, "DELETE", "/v2/a/manifests/v1", "").want(t, 202, "", "Content-Length", "0").text(t, "")
	r.do(t, "GET", "/v2/a/manifests/v1", "").want(t, 404, oci.ManifestUnknown)
	r.do(t, "HEAD", "/v2/a/manifests/v1", "").want(t, 404, "")
	r.do(t, "DELETE", "/v2/a/manifests/v1", "").want(t, 404, oci.ManifestUnknown)
	for _, ref := range []string{"v2", d.String()} {
		r.do(t, "GET", "/v2/a/manifests/"+ref, "").want(t, 200, "").text(t, payload)
	}
	r.do(t, "GET", "/v2/a/tags/list", "").want(t, 200, "").text(t, `{"name":"a","tags":["v2"]}`)
	r.do(t, "DELETE", "/v2/unknown/manifests/v1", "").want(t, 404, oci.NameUnknown)
	r.put(t, "a", "v1", payload)
	r.do(t, "GET", "/v2/a/manifests/v1", "").want(t, 200, "")
}

// TestDeleteManifest is "Deleting Manifests".
func TestDeleteManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.simple(t, "a", 1, nil)
	d := r.put(t, "a", "v1", payload)
	r.put(t, "a", "v2", payload)
	r.put(t, "b", "v1", r.simple(t, "b", 1, nil)) // the same in another repository
	for _, ref := range []string{"v1", "v2", d.String()} {
		r.do(t, "GET", "/v2/a/manifests/"+ref, "").want(t, 200, "")
		r.do(t, "HEAD", "/v2/a/manifests/"+ref, "").want(t, 200, "")
	}
	r.do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").want(t, 202, "", "Content-Length", "0")
	for _, ref := range []string{"v1", "v2", d.String()} {
		r.do(t, "GET", "/v2/a/manifests/"+ref, "").want(t, 404, oci.ManifestUnknown)
		r.do(t, "HEAD", "/v2/a/manifests/"+ref, "").want(t, 404, "")
		r.do(t, "DELETE", "/v2/a/manifests/"+ref, "").want(t, 404, oci.ManifestUnknown)
	}
	r.do(t, "GET", "/v2/a/tags/list", "").want(t, 200, "").text(t, `{"name":"a","tags":[]}`)
	r.do(t, "GET", "/v2/b/manifests/"+d.String(), "").want(t, 200, "")
	r.do(t, "DELETE", "/v2/unknown/manifests/"+d.String(), "").want(t, 404, oci.NameUnknown)
	r.put(t, "a", "v1", payload)
	r.do(t, "GET", "/v2/a/manifests/"+d.String(), "").want(t, 200, "").text(t, payload)
}

// TestDeleteHeldManifest: a manifest that an index lists can't be deleted, and the
// error names the index. After the index is deleted, it can.
func TestDeleteHeldManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	child := r.put(t, "a", "child", r.simple(t, "a", 1, nil))
	inner := r.put(t, "a", "inner", index(t, child, child))
	outer := r.put(t, "a", "outer", index(t, inner))
	for d, holder := range map[oci.Digest]oci.Digest{child: inner, inner: outer} {
		a := r.do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").want(t, 409, oci.Denied)
		if !strings.Contains(string(a.body), holder.String()) {
			t.Errorf("%s doesn't name %s", a.body, holder)
		}
		r.do(t, "GET", "/v2/a/manifests/"+d.String(), "").want(t, 200, "")
	}
	r.do(t, "DELETE", "/v2/a/manifests/child", "").want(t, 202, "") // the tag only
	r.do(t, "GET", "/v2/a/manifests/"+child.String(), "").want(t, 200, "")
	for _, d := range []oci.Digest{outer, inner, child} {
		r.do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").want(t, 202, "")
	}
}

// TestDeleteBlob is "Deleting Blobs".
func TestDeleteBlob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.push(t, "a", "content")
	r.push(t, "b", "content")
	r.wantBlob(t, "a", d, "content")
	r.do(t, "HEAD", "/v2/a/blobs/"+d.String(), "").want(t, 200, "")
	r.do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").want(t, 202, "", "Content-Length", "0")
	for _, method := range []string{"GET", "HEAD", "DELETE"} {
		r.do(t, method, "/v2/a/blobs/"+d.String(), "").want(t, 404, oci.BlobUnknown)
		r.do(t, method, "/v2/unknown/blobs/"+d.String(), "").want(t, 404, oci.NameUnknown)
	}
	r.wantBlob(t, "b", d, "content")
	r.push(t, "a", "content")
	r.wantBlob(t, "a", d, "content")
}

// TestDeleteUsedBlob: deleting a blob that a manifest of the repository references is
// refused with 409, and succeeds after the manifest is deleted.
func TestDeleteUsedBlob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config, layer := r.push(t, "a", "{}"), r.push(t, "a", "layer")
	m := r.put(t, "a", "v1", image(t, config, []oci.Digest{layer}, nil))
	for _, d := range []oci.Digest{config, layer} {
		a := r.do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").want(t, 409, oci.Denied)
		if !strings.Contains(string(a.body), m.String()) {
			t.Errorf("%s doesn't name %s", a.body, m)
		}
		r.do(t, "HEAD", "/v2/a/blobs/"+d.String(), "").want(t, 200, "")
		// A reference in another repository doesn't matter.
		r.do(t, "POST", "/v2/b/blobs/uploads/?mount="+d.String()+"&from=a", "").want(t, 201, "")
		r.do(t, "DELETE", "/v2/b/blobs/"+d.String(), "").want(t, 202, "")
	}
	r.do(t, "DELETE", "/v2/a/manifests/"+m.String(), "").want(t, 202, "")
	for _, d := range []oci.Digest{config, layer} {
		r.do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").want(t, 202, "")
	}
}
