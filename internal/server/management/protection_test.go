package management_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

func withoutLog(o *servertest.Options) { o.Management.Audit = nil }

// TestProtectedTag: a client tries to move and to delete a protected tag. The registry must
// refuse that with 409 and a text that names the protection rule.
func TestProtectedTag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "acme/app"
	one, two := r.Simple(t, path, 1, nil), r.Simple(t, path, 2, nil)
	d1 := r.Put(t, path, "v1.0", one)
	var rule struct{ UUID string }
	r.Manage(t, "POST", "/organization/acme/tagprotection", `{"pattern": "v[0-9.]+"}`).Into(t, 201, &rule)
	m, f := "/v2/"+path+"/manifests/", r.Since(t)
	for what, a := range map[string]answer{
		"moved":                     r.Do(t, "PUT", m+"v1.0", two),
		"deleted":                   r.Do(t, "DELETE", m+"v1.0", ""),
		"deleted with its manifest": r.Do(t, "DELETE", m+d1.String(), ""),
	} {
		a.Want(t, 409, oci.Denied)
		for _, part := range []string{"tag v1.0 of acme/app can't be " + what, `v[0-9.]+`, "namespace acme", rule.UUID} {
			if !strings.Contains(strings.ReplaceAll(string(a.Content), `\"`, ""), part) {
				t.Errorf("%s: the answer doesn't say %q: %s", what, part, a.Content)
			}
		}
	}
	r.Manage(t, "POST", "/repository/"+path+"/tag/v1.0/restore", encode(t, object{"manifest_digest": digest(two)})).WantStatus(t, 404)
	r.WantLog(t, f)
	r.Put(t, path, "v1.0", one)
	r.Manage(t, "DELETE", "/organization/acme/tagprotection/"+rule.UUID, "").WantStatus(t, 204)
	r.Put(t, path, "v1.0", two)
	detail := `{"rule": "` + rule.UUID + `", "change": "%s", "pattern": "v[0-9.]+"}`
	r.WantLog(t, audit.Filter{Kinds: []audit.Kind{audit.ChangeProtection}},
		"change_tag_protection acme    "+strings.Replace(detail, "%s", "create", 1),
		"change_tag_protection acme    "+strings.Replace(detail, "%s", "delete", 1))
}

func TestTagProtectionAPI(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "acme/app", "x")
	for _, at := range []string{"", "/organization/acme", "/repository/acme/app"} {
		path := at + "/tagprotection"
		var rule struct{ UUID string }
		r.Manage(t, "POST", path, `{"pattern": "v.*"}`).Into(t, 201, &rule)
		var list struct {
			Rules []struct{ UUID, Pattern, CreatedAt string }
		}
		r.Manage(t, "GET", path, "").Into(t, 200, &list)
		if len(list.Rules) != 1 || list.Rules[0].UUID != rule.UUID || list.Rules[0].Pattern != "v.*" {
			t.Errorf("%s: %+v", path, list)
		}
		for body, text := range map[string]string{
			`{"pattern": "v.*"}`: "already.*" + rule.UUID,
			`{"pattern": ""}`:    "pattern.*empty",
			`{"pattern": "("}`:   "pattern.*regular expression",
			`{"pattern": "` + strings.Repeat("a", 257) + `"}`: "pattern.*256",
			`{}`:                          "pattern",
			`{"pattern": 7}`:              "pattern",
			`{"pattern": "a", "more": 1}`: "more",
			`{"pattern": `:                "",
		} {
			r.Manage(t, "POST", path, body).Refused(t, 400, "invalid_request", text)
		}
		r.Manage(t, "DELETE", path+"/7", "").Refused(t, 400, "invalid_request", "UUID")
		r.Manage(t, "DELETE", path+"/b0a7f6b0-0000-4000-8000-000000000000", "").Refused(t, 404, "not_found", "no rule")
		r.Manage(t, "DELETE", path+"/"+rule.UUID, "").WantStatus(t, 204)
		r.Manage(t, "GET", path, "").Into(t, 200, &list)
		if len(list.Rules) != 0 {
			t.Errorf("%s: %+v after the deletion", path, list)
		}
	}
	r.Manage(t, "POST", "/organization/nowhere/tagprotection", `{"pattern": "v.*"}`).Refused(t, 404, "not_found", "nowhere")
	r.Manage(t, "GET", "/repository/acme/nothing/tagprotection", "").Refused(t, 404, "not_found", "acme/nothing")
}
