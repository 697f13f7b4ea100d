package management_test

import (
	"strings"
	"testing"
)

// TestNamedTags: a client asks for tags by their names. Those that don't exist are left out, and nothing else may be
// asked for beside them.
func TestNamedTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, tag := range []string{"v1", "v2", "v3"} {
		r.Put(t, "acme/app", tag, r.Simple(t, "acme/app", i+1, nil))
	}
	var got struct{ Tags []struct{ Name string } }
	r.Manage(t, "GET", "/repository/acme/app/tag?names=v3,none,v1", "").Into(t, 200, &got)
	if len(got.Tags) != 2 || got.Tags[0].Name != "v1" || got.Tags[1].Name != "v3" {
		t.Errorf("tags %+v, want v1 and v3", got.Tags)
	}
	for _, beside := range []string{"contains=v", "specificTag=v1", "onlyActiveTags=false", "not_pulled_for=1d", "sort=name", "page=2", "next_page=x"} {
		r.Manage(t, "GET", "/repository/acme/app/tag?names=v1&"+beside, "").Refused(t, 400, "invalid_request", "")
	}
	r.Manage(t, "GET", "/repository/acme/app/tag?names=a/b", "").Refused(t, 400, "invalid_request", "names")
	r.Manage(t, "GET", "/repository/acme/app/tag?names="+strings.Repeat("a,", 100)+"a", "").Refused(t, 400, "invalid_request", "names")
}

// TestRuleOfATag: a tag is described with the first rule of its repository, its namespace or the registry that
// protects it, and never with that of another place.
func TestRuleOfATag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, repository := range []string{"acme/app", "acme/web", "other/app"} {
		r.Put(t, repository, "v1", r.Simple(t, repository, 1, nil))
	}
	rule := func(path, pattern string) {
		t.Helper()
		r.Manage(t, "POST", path+"/tagprotection", `{"pattern":"`+pattern+`"}`).WantStatus(t, 201)
	}
	of := func(repository string) (by string) {
		t.Helper()
		var tag struct {
			IsProtected bool   `json:"is_protected"`
			ProtectedBy string `json:"protected_by"`
		}
		r.Manage(t, "GET", "/repository/"+repository+"/tag/v1", "").Into(t, 200, &tag)
		if tag.IsProtected != (tag.ProtectedBy != "") {
			t.Errorf("%s:v1 is %+v", repository, tag)
		}
		return tag.ProtectedBy
	}
	rule("/repository/acme/web", "^v1$")
	rule("/organization/acme", "^v2$")
	if by := of("acme/app"); by != "" {
		t.Errorf("acme/app:v1 is protected by %s", by)
	}
	rule("/organization/acme", "^v")
	if by := of("acme/app"); by != "^v of namespace acme" {
		t.Errorf("acme/app:v1 is protected by %s", by)
	}
	if by := of("acme/web"); by != "^v1$ of repository acme/web" {
		t.Errorf("acme/web:v1 is protected by %s", by)
	}
	if by := of("other/app"); by != "" {
		t.Errorf("other/app:v1 is protected by %s", by)
	}
	rule("", "1")
	if by := of("other/app"); by != "1 of the registry" {
		t.Errorf("other/app:v1 is protected by %s", by)
	}
	r.Manage(t, "GET", "/repository/acme/none/tag/v1", "").WantStatus(t, 404)
}
