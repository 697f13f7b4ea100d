package management_test

import (
	"math"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestSizesThatAreDeclared: a client pushes manifests that declare wrong sizes, up to the
// largest int64, for their layers and children. The registry must accept the manifests and use
// the stored sizes in its sums. Where a declared size differs from the stored size, the API
// must show the declared size too.
func TestSizesThatAreDeclared(t *testing.T) {
	t.Parallel()
	r := setup(t)
	huge := func(d oci.Digest) object {
		return object{"mediaType": servertest.LayerType, "digest": d.String(), "size": int64(math.MaxInt64)}
	}
	config, one, two := r.Push(t, "acme/app", "{}"), r.Push(t, "acme/app", "layer one"), r.Push(t, "acme/app", "layer two!")
	foreign := object{"mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar", "digest": digest("elsewhere").String(),
		"size": int64(math.MaxInt64), "urls": []string{"https://example.com/x"}}
	payload := encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest,
		"config": descriptor(servertest.ConfigType, config, 7), "layers": []any{huge(one), huge(two), foreign},
		"subject": object{"mediaType": oci.MediaTypeImageManifest, "digest": digest("none").String(), "size": int64(math.MaxInt64)}})
	child := r.Put(t, "acme/app", "v1", payload)
	list := encode(t, object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{
		object{"mediaType": oci.MediaTypeImageManifest, "digest": child.String(), "size": int64(math.MaxInt64)}}})
	top := r.Put(t, "acme/app", "all", list)
	about := r.Put(t, "acme/app", "sig", r.Simple(t, "acme/app", 1, object{
		"subject": object{"mediaType": oci.MediaTypeImageManifest, "digest": child.String(), "size": int64(math.MaxInt64)}}))
	image := len(payload) + 2 + 9 + 10
	want := map[string]int{"v1": image, "all": len(list) + image}
	checkTags := func() {
		t.Helper()
		for _, query := range []string{"", "?sort=size"} {
			var tags struct {
				Tags []struct {
					Name string
					Size int64
				}
			}
			r.Manage(t, "GET", "/repository/acme/app/tag/"+query, "").Into(t, 200, &tags)
			if len(tags.Tags) != 3 {
				t.Fatalf("tags: %+v", tags)
			}
			for _, tag := range tags.Tags {
				if tag.Name != "sig" && tag.Size != int64(want[tag.Name]) {
					t.Errorf("tag %s%s has %d bytes, want %d", tag.Name, query, tag.Size, want[tag.Name])
				}
			}
		}
	}
	checkTags()
	checkDeclared(t, r, child, image, about, top)
	r.Exec(t, "UPDATE manifests SET total_size = 9223372036854775807")
	for _, path := range []string{"/repository/acme/app", "/organization/acme", "/gc/status"} {
		r.Manage(t, "GET", path, "").Into(t, 200, new(any))
	}
	// The rows of the blobs get impossible sizes, as after an import that trusted the sizes of
	// another registry. The API's answers must have no negative sizes.
	r.Exec(t, "UPDATE blobs SET size = 9223372036854775807")
	for _, path := range []string{"/repository/acme/app", "/organization/acme", "/repository/acme/app/tag/", "/repository/acme/app/tag/?sort=size",
		"/repository/acme/app/manifest/" + child.String()} {
		if a := r.Manage(t, "GET", path, ""); a.StatusCode != 200 || strings.Contains(string(a.Content), ":-") {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.Content)
		}
	}
}

// checkDeclared checks the sizes that the management API shows for the image, for its referrer
// (`about`), and for the image index that lists the image (`index`).
func checkDeclared(t *testing.T, r *registry, image oci.Digest, size int, about, index oci.Digest) {
	t.Helper()
	type content struct {
		Size       int64
		Compressed int64  `json:"compressed_size"`
		Declared   *int64 `json:"declared_size"`
	}
	type described struct {
		Size            int64
		Config          content
		Layers          []content
		Manifests       []content
		SubjectSize     *int64 `json:"subject_size"`
		SubjectDeclared *int64 `json:"subject_declared_size"`
		Data            string `json:"manifest_data"`
	}
	get := func(d oci.Digest) (m described) {
		r.Manage(t, "GET", "/repository/acme/app/manifest/"+d.String(), "").Into(t, 200, &m)
		return m
	}
	m := get(image)
	if m.Size != int64(size) || m.Config.Size != 2 || m.Config.Declared == nil || *m.Config.Declared != 7 {
		t.Errorf("image: %+v", m)
	}
	for i, stored := range []int64{9, 10} {
		if l := m.Layers[i]; l.Compressed != stored || l.Declared == nil || *l.Declared != math.MaxInt64 {
			t.Errorf("layer %d: %+v", i, l)
		}
	}
	if l := m.Layers[2]; l.Compressed != math.MaxInt64 || l.Declared != nil { // nothing is stored of it
		t.Errorf("foreign layer: %+v", l)
	}
	if m.SubjectSize == nil || *m.SubjectSize != math.MaxInt64 || m.SubjectDeclared != nil { // it isn't there
		t.Errorf("subject that isn't there: %+v", m)
	}
	payload := int64(len(m.Data))
	if m = get(about); m.SubjectSize == nil || *m.SubjectSize != payload || m.SubjectDeclared == nil || *m.SubjectDeclared != math.MaxInt64 {
		t.Errorf("subject: %+v", m)
	}
	if m = get(index); m.Manifests[0].Size != payload || m.Manifests[0].Declared == nil || *m.Manifests[0].Declared != math.MaxInt64 {
		t.Errorf("index: %+v", m)
	}
}

// TestSizesOfNamespaces: a list of namespaces has sizes if it is asked for them: of what the client may
// pull in each.
func TestSizesOfNamespaces(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	c.root.Put(t, "acme/hidden", "v1", c.root.Simple(t, "acme/hidden", "x", nil))
	c.AddAccount(t, "guest", false)
	c.Grant(t, "acme/team/app", "guest", auth.Reader)
	guest := &registry{c.With(servertest.As("guest"))}
	size := func(r *registry, query string) *browse.Size {
		t.Helper()
		var list api.NamespaceList
		r.Manage(t, "GET", "/organization"+query, "").Into(t, 200, &list)
		if len(list.Namespaces) != 1 {
			t.Fatalf("%d namespaces", len(list.Namespaces))
		}
		return list.Namespaces[0].Size
	}
	var whole, part api.DescribedRepository
	c.root.Manage(t, "GET", "/organization/acme", "").Into(t, 200, &whole)
	c.root.Manage(t, "GET", "/repository/acme/team/app", "").Into(t, 200, &part)
	if got := size(c.root, "?statistics=true"); got == nil || got.Bytes != whole.Size.Bytes || got.Blobs != whole.Size.Blobs || !got.Exact {
		t.Errorf("root sees %+v, want %+v", got, whole.Size)
	}
	if got := size(guest, "?statistics=true"); got == nil || got.Bytes != part.Size.Bytes || got.OwnBytes != nil {
		t.Errorf("guest sees %+v, want %d bytes", got, part.Size.Bytes)
	}
	if got := size(c.root, ""); got != nil {
		t.Errorf("not asked for: %+v", got)
	}
}
