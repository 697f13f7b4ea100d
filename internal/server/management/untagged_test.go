package management_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestListUntagged: the pages of the list have each manifest without a tag once, and none that has one.
// A manifest that an index lists is named with the index, and stays.
func TestListUntagged(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	child := r.Put(t, "acme/web", "child", r.Simple(t, "acme/web", "child", nil))
	index := r.Put(t, "acme/web", "index", fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%d}]}`,
		child, len(r.Simple(t, "acme/web", "child", nil))))
	want := map[string]bool{child.String(): true}
	for i := range 7 {
		tag := fmt.Sprintf("t%d", i)
		d := r.Put(t, "acme/web", tag, r.Simple(t, "acme/web", i, nil))
		if i > 0 {
			want[d.String()] = true
			r.Do(t, "DELETE", "/v2/acme/web/manifests/"+tag, "").WantStatus(t, 202)
		}
	}
	r.Do(t, "DELETE", "/v2/acme/web/manifests/child", "").WantStatus(t, 202)
	for next := ""; ; {
		var page api.UntaggedList
		r.Manage(t, "GET", "/repository/acme%2Fweb/untagged?limit=2&next_page="+url.QueryEscape(next), "").Into(t, 200, &page)
		for _, m := range page.Manifests {
			if !want[m.Digest.String()] {
				t.Errorf("%s has a tag, or was listed before", m.Digest)
			}
			delete(want, m.Digest.String())
			if listed := m.Digest == child; listed != (m.Index != nil) || listed && *m.Index != index {
				t.Errorf("%s: index %v", m.Digest, m.Index)
			}
			if m.Size == 0 || m.PushedAt.IsZero() {
				t.Errorf("%+v", m)
			}
		}
		if next = page.NextPage; next == "" {
			break
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
	r.Manage(t, "DELETE", "/repository/acme%2Fweb/manifest/"+child.String()+"?untagged=true", "").WantStatus(t, 409)
	r.Manage(t, "DELETE", "/repository/acme%2Fweb/manifest/"+index.String()+"?untagged=true", "").WantStatus(t, 409)
	r.Manage(t, "DELETE", "/repository/acme%2Fweb/manifest/"+index.String(), "").WantStatus(t, 204)
	r.Do(t, "GET", "/v2/acme/web/manifests/index", "").WantStatus(t, 404)
	r.Manage(t, "GET", "/repository/acme%2Fweb/untagged?next_page=x", "").WantStatus(t, 400)
	r.Manage(t, "GET", "/repository/acme%2Fnone/untagged", "").WantStatus(t, 404)
}
