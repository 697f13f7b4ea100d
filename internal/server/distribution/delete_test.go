package distribution_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// TestDeleteTag tests "Deleting tags" of the specification.
func TestDeleteTag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a", 1, nil)
	d := r.Put(t, "a", "v1", payload)
	r.Put(t, "a", "v2", payload)
	r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 200, "")
	r.Do(t, "DELETE", "/v2/a/manifests/v1", "").Want(t, 202, "", "Content-Length", "0").Text(t, "")
	r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 404, oci.ManifestUnknown)
	r.Do(t, "HEAD", "/v2/a/manifests/v1", "").Want(t, 404, "")
	r.Do(t, "DELETE", "/v2/a/manifests/v1", "").Want(t, 404, oci.ManifestUnknown)
	for _, ref := range []string{"v2", d.String()} {
		r.Do(t, "GET", "/v2/a/manifests/"+ref, "").Want(t, 200, "").Text(t, payload)
	}
	r.Do(t, "GET", "/v2/a/tags/list", "").Want(t, 200, "").Text(t, `{"name":"a","tags":["v2"]}`)
	r.Do(t, "DELETE", "/v2/unknown/manifests/v1", "").Want(t, 404, oci.NameUnknown)
	r.Put(t, "a", "v1", payload)
	r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 200, "")
}

// TestDeleteManifest tests "Deleting Manifests" of the specification.
func TestDeleteManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a", 1, nil)
	d := r.Put(t, "a", "v1", payload)
	r.Put(t, "a", "v2", payload)
	r.Put(t, "b", "v1", r.Simple(t, "b", 1, nil)) // the same in another repository
	for _, ref := range []string{"v1", "v2", d.String()} {
		r.Do(t, "GET", "/v2/a/manifests/"+ref, "").Want(t, 200, "")
		r.Do(t, "HEAD", "/v2/a/manifests/"+ref, "").Want(t, 200, "")
	}
	r.Do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").Want(t, 202, "", "Content-Length", "0")
	for _, ref := range []string{"v1", "v2", d.String()} {
		r.Do(t, "GET", "/v2/a/manifests/"+ref, "").Want(t, 404, oci.ManifestUnknown)
		r.Do(t, "HEAD", "/v2/a/manifests/"+ref, "").Want(t, 404, "")
		r.Do(t, "DELETE", "/v2/a/manifests/"+ref, "").Want(t, 404, oci.ManifestUnknown)
	}
	r.Do(t, "GET", "/v2/a/tags/list", "").Want(t, 200, "").Text(t, `{"name":"a","tags":[]}`)
	r.Do(t, "GET", "/v2/b/manifests/"+d.String(), "").Want(t, 200, "")
	r.Do(t, "DELETE", "/v2/unknown/manifests/"+d.String(), "").Want(t, 404, oci.NameUnknown)
	r.Put(t, "a", "v1", payload)
	r.Do(t, "GET", "/v2/a/manifests/"+d.String(), "").Want(t, 200, "").Text(t, payload)
}

// TestDeleteHeldManifest: a client deletes a manifest that an image index lists. The registry
// must refuse that with 409, and name the digest of the index in the error. After the index is
// deleted, the deletion must succeed.
func TestDeleteHeldManifest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	child := r.Put(t, "a", "child", r.Simple(t, "a", 1, nil))
	inner := r.Put(t, "a", "inner", index(t, child, child))
	outer := r.Put(t, "a", "outer", index(t, inner))
	for d, holder := range map[oci.Digest]oci.Digest{child: inner, inner: outer} {
		a := r.Do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").Want(t, 409, oci.Denied)
		if !strings.Contains(string(a.Content), holder.String()) {
			t.Errorf("%s doesn't name %s", a.Content, holder)
		}
		r.Do(t, "GET", "/v2/a/manifests/"+d.String(), "").Want(t, 200, "")
	}
	r.Do(t, "DELETE", "/v2/a/manifests/child", "").Want(t, 202, "") // the tag only
	r.Do(t, "GET", "/v2/a/manifests/"+child.String(), "").Want(t, 200, "")
	for _, d := range []oci.Digest{outer, inner, child} {
		r.Do(t, "DELETE", "/v2/a/manifests/"+d.String(), "").Want(t, 202, "")
	}
}

// TestDeleteBlob tests "Deleting Blobs" of the specification.
func TestDeleteBlob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "a", "content")
	r.Push(t, "b", "content")
	r.WantBlob(t, "a", d, "content")
	r.Do(t, "HEAD", "/v2/a/blobs/"+d.String(), "").Want(t, 200, "")
	r.Do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").Want(t, 202, "", "Content-Length", "0")
	for _, method := range []string{"GET", "HEAD", "DELETE"} {
		r.Do(t, method, "/v2/a/blobs/"+d.String(), "").Want(t, 404, oci.BlobUnknown)
		r.Do(t, method, "/v2/unknown/blobs/"+d.String(), "").Want(t, 404, oci.NameUnknown)
	}
	r.WantBlob(t, "b", d, "content")
	r.Push(t, "a", "content")
	r.WantBlob(t, "a", d, "content")
}

// TestDeleteUsedBlob: a client deletes a blob that a manifest of the same repository uses. The
// registry must refuse that with 409, and name the manifest's digest in the error. After the
// manifest is deleted, the deletion must succeed.
func TestDeleteUsedBlob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	config, layer := r.Push(t, "a", "{}"), r.Push(t, "a", "layer")
	m := r.Put(t, "a", "v1", image(t, config, []oci.Digest{layer}, nil))
	for _, d := range []oci.Digest{config, layer} {
		a := r.Do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").Want(t, 409, oci.Denied)
		if !strings.Contains(string(a.Content), m.String()) {
			t.Errorf("%s doesn't name %s", a.Content, m)
		}
		r.Do(t, "HEAD", "/v2/a/blobs/"+d.String(), "").Want(t, 200, "")
		// A reference in another repository doesn't matter.
		r.Do(t, "POST", "/v2/b/blobs/uploads/?mount="+d.String()+"&from=a", "").Want(t, 201, "")
		r.Do(t, "DELETE", "/v2/b/blobs/"+d.String(), "").Want(t, 202, "")
	}
	r.Do(t, "DELETE", "/v2/a/manifests/"+m.String(), "").Want(t, 202, "")
	for _, d := range []oci.Digest{config, layer} {
		r.Do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").Want(t, 202, "")
	}
}
