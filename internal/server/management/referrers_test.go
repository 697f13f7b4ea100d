package management_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

type referrers struct {
	Referrers []struct {
		Digest       oci.Digest
		ArtifactType string `json:"artifact_type"`
		MediaType    string `json:"media_type"`
		Size         int
		TotalSize    int `json:"total_size"`
		Annotations  map[string]string
	}
	NextPage string `json:"next_page"`
}

// TestAPIReferrers: the manifests that refer to another are listed in the order of their pushes,
// on pages, by artifact type, and whether their subject is in the repository or not.
func TestAPIReferrers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	subject := digest("absent")
	refer := func(i int, kind, text string) string {
		m := r.Simple(t, "acme/app", i, object{
			"subject": descriptor(oci.MediaTypeImageManifest, subject, 1), "artifactType": kind, "annotations": map[string]string{"n": fmt.Sprint(i), "text": text},
		})
		r.Put(t, "acme/app", digest(m).String(), m)
		return m
	}
	var pushed []string
	for i := range 5 {
		pushed = append(pushed, refer(i, []string{"a/even", "a/odd"}[i%2], ""))
	}
	path := "/repository/acme/app/manifest/" + subject.String() + "/referrers"
	var list referrers
	r.Manage(t, "GET", path, "").Into(t, 200, &list)
	if len(list.Referrers) != 5 || list.NextPage != "" {
		t.Fatalf("%+v", list)
	}
	for i, m := range list.Referrers {
		if m.Digest != digest(pushed[i]) || m.Size != len(pushed[i]) || m.TotalSize != len(pushed[i])+len("{}") || m.Annotations["n"] != fmt.Sprint(i) || m.MediaType != oci.MediaTypeImageManifest {
			t.Errorf("%d: %+v", i, m)
		}
	}
	list = referrers{}
	r.Manage(t, "GET", path+"?artifact_type=a/odd", "").Into(t, 200, &list)
	if len(list.Referrers) != 2 || list.Referrers[0].ArtifactType != "a/odd" {
		t.Errorf("%+v", list)
	}
	var seen []oci.Digest
	for next, pages := "", 0; pages == 0 || next != ""; pages++ {
		list = referrers{}
		r.Manage(t, "GET", path+"?limit=2&next_page="+next, "").Into(t, 200, &list)
		for _, m := range list.Referrers {
			seen = append(seen, m.Digest)
		}
		if next = list.NextPage; pages > 3 || len(list.Referrers) > 2 {
			t.Fatalf("page %d: %+v", pages, list)
		}
	}
	for i := range seen {
		if len(seen) != 5 || seen[i] != digest(pushed[i]) {
			t.Fatalf("the pages have %v", seen)
		}
	}
	for i := range 40 { // 40 times 60 KiB of annotations
		pushed = append(pushed, refer(100+i, "a/large", strings.Repeat("x", 60<<10)))
	}
	list = referrers{}
	r.Manage(t, "GET", path+"?artifact_type=a/large", "").Into(t, 200, &list)
	if n := len(list.Referrers); n < 5 || n > 9 || list.NextPage == "" {
		t.Errorf("a page of %d large referrers, next %q", n, list.NextPage)
	}
	r.Manage(t, "GET", strings.Replace(path, subject.String(), digest("other").String(), 1), "").Into(t, 200, &list)
	if len(list.Referrers) != 0 {
		t.Errorf("%+v", list)
	}
	r.Manage(t, "GET", path+"?next_page=x", "").Refused(t, 400, "invalid_request", "cursor")
	r.Manage(t, "GET", path+"?artifact_type=%00", "").Refused(t, 400, "invalid_request", "artifact_type")
	r.Manage(t, "GET", strings.Replace(path, "acme/app", "acme%2Fnone", 1), "").Refused(t, 404, "not_found", "acme/none")
}

// TestAPIChildSizes: an index's manifests have the sizes of their images, unless the repository
// doesn't have them.
func TestAPIChildSizes(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Catalog = o.NewCatalog(func(c *catalog.Options) { c.SparseIndexes = true })
	})
	config := r.Push(t, "acme/app", "configuration")
	child := image(t, config, []oci.Digest{r.Push(t, "acme/app", "a layer")}, nil)
	r.Put(t, "acme/app", digest(child).String(), child)
	d := r.Put(t, "acme/app", "v1", index(t, digest(child), digest("absent"), digest(child)))
	var m struct {
		Manifests []struct {
			TotalSize *int `json:"total_size"`
		}
	}
	r.Manage(t, "GET", "/repository/acme/app/manifest/"+d.String(), "").Into(t, 200, &m)
	want := len(child) + len("configuration") + len("a layer")
	if len(m.Manifests) != 3 || m.Manifests[0].TotalSize == nil || *m.Manifests[0].TotalSize != want || m.Manifests[1].TotalSize != nil ||
		m.Manifests[2].TotalSize == nil || *m.Manifests[2].TotalSize != want {
		t.Errorf("%+v, want %d", m, want)
	}
}

// TestAPITagProtectedBy: the description of a tag says that a rule protects it, and which one
// only to those who may list the rules.
func TestAPITagProtectedBy(t *testing.T) {
	t.Parallel()
	r := closed(t)
	var tag struct {
		IsProtected bool   `json:"is_protected"`
		ProtectedBy string `json:"protected_by"`
	}
	r.as("reader").Manage(t, "GET", "/repository/acme/app/tag/v1", "").Into(t, 200, &tag)
	if tag.IsProtected {
		t.Errorf("%+v", tag)
	}
	r.as("admin").Manage(t, "POST", "/organization/acme/tagprotection", `{"pattern":"^v"}`).WantStatus(t, 201)
	for account, rule := range map[string]string{"reader": "", "writer": "", "maintainer": "^v of namespace acme", "root": "^v of namespace acme"} {
		tag.IsProtected, tag.ProtectedBy = false, ""
		r.as(account).Manage(t, "GET", "/repository/acme/app/tag/v1", "").Into(t, 200, &tag)
		if !tag.IsProtected || tag.ProtectedBy != rule {
			t.Errorf("%s sees %+v, want the rule %q", account, tag, rule)
		}
	}
	r.as("stranger").Manage(t, "GET", "/repository/acme/app/manifest/"+digest("x").String()+"/referrers", "").WantStatus(t, 403)
}
