package server_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

func withoutLog(o *server.Options) { o.Audit = nil }

// TestProtectedTag: moving or deleting a protected tag is refused with an explanation.
func TestProtectedTag(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "acme/app"
	one, two := r.simple(t, path, 1, nil), r.simple(t, path, 2, nil)
	d1 := r.put(t, path, "v1.0", one)
	var rule struct{ UUID string }
	r.manage(t, "POST", "/organization/acme/tagprotection", `{"pattern": "v[0-9.]+"}`).into(t, 201, &rule)
	m, f := "/v2/"+path+"/manifests/", r.since(t)
	for what, a := range map[string]answer{
		"moved":                     r.do(t, "PUT", m+"v1.0", two),
		"deleted":                   r.do(t, "DELETE", m+"v1.0", ""),
		"deleted with its manifest": r.do(t, "DELETE", m+d1.String(), ""),
	} {
		a.want(t, 409, oci.Denied)
		for _, part := range []string{"tag v1.0 of acme/app can't be " + what, `v[0-9.]+`, "namespace acme", rule.UUID} {
			if !strings.Contains(strings.ReplaceAll(string(a.body), `\"`, ""), part) {
				t.Errorf("%s: the answer doesn't say %q: %s", what, part, a.body)
			}
		}
	}
	r.manage(t, "POST", "/repository/"+path+"/tag/v1.0/restore", encode(t, object{"manifest_digest": digest(two)})).wantStatus(t, 404)
	r.wantLog(t, f)
	r.put(t, path, "v1.0", one)
	r.manage(t, "DELETE", "/organization/acme/tagprotection/"+rule.UUID, "").wantStatus(t, 204)
	r.put(t, path, "v1.0", two)
	detail := `{"rule": "` + rule.UUID + `", "change": "%s", "pattern": "v[0-9.]+"}`
	r.wantLog(t, audit.Filter{Kinds: []audit.Kind{audit.ChangeProtection}},
		"change_tag_protection acme    "+strings.Replace(detail, "%s", "create", 1),
		"change_tag_protection acme    "+strings.Replace(detail, "%s", "delete", 1))
}

func TestTagProtectionAPI(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push(t, "acme/app", "x")
	for _, at := range []string{"", "/organization/acme", "/repository/acme/app"} {
		path := at + "/tagprotection"
		var rule struct{ UUID string }
		r.manage(t, "POST", path, `{"pattern": "v.*"}`).into(t, 201, &rule)
		var list struct {
			Rules []struct{ UUID, Pattern, CreatedAt string }
		}
		r.manage(t, "GET", path, "").into(t, 200, &list)
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
			r.manage(t, "POST", path, body).refused(t, 400, "invalid_request", text)
		}
		r.manage(t, "DELETE", path+"/7", "").refused(t, 400, "invalid_request", "UUID")
		r.manage(t, "DELETE", path+"/b0a7f6b0-0000-4000-8000-000000000000", "").refused(t, 404, "not_found", "no rule")
		r.manage(t, "DELETE", path+"/"+rule.UUID, "").wantStatus(t, 204)
		r.manage(t, "GET", path, "").into(t, 200, &list)
		if len(list.Rules) != 0 {
			t.Errorf("%s: %+v after the deletion", path, list)
		}
	}
	r.manage(t, "POST", "/organization/nowhere/tagprotection", `{"pattern": "v.*"}`).refused(t, 404, "not_found", "nowhere")
	r.manage(t, "GET", "/repository/acme/nothing/tagprotection", "").refused(t, 404, "not_found", "acme/nothing")
}
