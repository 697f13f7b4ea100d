package management_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

// TestAPIConfirm: a client that asks for it must be refused what has warnings, with the warnings, until
// it confirms them. A client of Quay's must get what it asks for, and the warnings.
func TestAPIConfirm(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	for _, tag := range []string{"latest", "prod", "pr-1"} {
		r.Put(t, "app/a", tag, r.Simple(t, "app/a", 1, nil))
	}
	base := "/organization/app/autoprunepolicy"
	const glob = `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^pr-*"}`
	type found struct{ Found []policy.Warning }
	var preview found
	r.Manage(t, "POST", base+"/preview", glob).Into(t, 200, &preview)
	if len(preview.Found) != 1 || preview.Found[0].Code != policy.ShellPattern || !slices.Equal(preview.Found[0].Examples, []string{"app/a:prod"}) {
		t.Errorf("the preview: %+v", preview)
	}
	var refused struct {
		Details struct{ Warnings []policy.Warning }
	}
	for _, confirm := range []string{"none", "selects_latest", "x"} {
		r.Manage(t, "POST", base+"?confirm="+confirm, glob).Into(t, 409, &refused)
		if w := refused.Details.Warnings; len(w) != 1 || w[0].Code != policy.ShellPattern {
			t.Errorf("confirm %s: %+v", confirm, refused)
		}
	}
	var made struct {
		UUID     string
		Warnings []string
		Found    []policy.Warning
	}
	r.Manage(t, "POST", base+"?confirm=none,shell_pattern", glob).Into(t, 201, &made)
	if len(made.Found) != 1 || len(made.Warnings) != 1 || !strings.Contains(made.Warnings[0], "app/a:prod") {
		t.Errorf("created: %+v", made)
	}
	one := base + "/" + made.UUID
	r.Manage(t, "PUT", one+"?confirm=none", glob).WantStatus(t, 204) // unchanged: it was confirmed
	const latest = `{"method": "creation_date", "olderThan": "30d", "keep": [{"tagPattern": "^prod$"}]}`
	r.Manage(t, "PUT", one+"?confirm=none", latest).Refused(t, 409, "invalid_request", "somebody must confirm this first: it deletes, once they are old enough, 1 tag with the name latest")
	a := r.Manage(t, "PUT", one, latest).WantStatus(t, 204)
	if got := a.Header.Values("Warning"); len(got) != 1 || !strings.Contains(got[0], "latest") {
		t.Errorf("the header Warning: %q", got)
	}
	r.Exec(t, "UPDATE tags SET created_at = now() - CASE name WHEN 'prod' THEN interval '20 days' ELSE interval '10 days' END, updated_at = NULL")
	r.Manage(t, "POST", base, `{"method": "number_of_tags", "numTags": 1}`).WantStatus(t, 201)
	r.Manage(t, "DELETE", one+"?confirm=none", "").Refused(t, 409, "invalid_request", "without the policy, policies would delete 1 tag that they leave now: app/a:prod")
	r.Manage(t, "PUT", one+"?confirm=none", `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^pr-[0-9]+$"}`).
		Refused(t, 409, "invalid_request", "without what the policy kept until now, policies would delete 1 tag")
	var gone found
	r.Manage(t, "DELETE", one+"?confirm=uncovers", "").Into(t, 200, &gone)
	if len(gone.Found) != 1 {
		t.Errorf("deleted: %+v", gone)
	}
	r.Manage(t, "POST", "/autoprunepolicy", `{"method": "number_of_tags", "numTags": 100}`).WantStatus(t, 201) // app has policies of its own
	r.Put(t, "other/a", "v1", r.Simple(t, "other/a", 1, nil))
	r.Manage(t, "POST", "/autoprunepolicy", `{"method": "number_of_tags", "numTags": 101}`).Refused(t, 409, "invalid_request", "it applies in 1 namespace: other")
	for kind, want := range map[string]string{"create_namespace_autoprune_policy": "shell_pattern", "update_namespace_autoprune_policy": "selects_latest", "delete_namespace_autoprune_policy": "uncovers"} {
		var n int
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM auditlog WHERE kind = $1 AND detail->'warnings' @> jsonb_build_array(jsonb_build_object('code', $2::text))", kind, want).Scan(&n); err != nil || n == 0 {
			t.Errorf("%s has no entry with %s: %v", kind, want, err)
		}
	}
}

// TestAPIConfirmDefaults: what the registry's defaults would delete in a namespace must be confirmed before
// it accepts them, also by a client that says nothing of it.
func TestAPIConfirmDefaults(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "app/a", "main", r.Simple(t, "app/a", 1, nil))
	r.Exec(t, "UPDATE tags SET created_at = now() - interval '10 days', updated_at = NULL")
	const state = "/organization/app/autoprune"
	r.Manage(t, "PUT", state, `{"uses_defaults": false}`).WantStatus(t, 204)
	r.Manage(t, "POST", "/autoprunepolicy?confirm=all", `{"method": "creation_date", "olderThan": "5d"}`).WantStatus(t, 201)
	for _, confirm := range []string{"", "?confirm=none", "?confirm=selects_latest"} {
		r.Manage(t, "PUT", state+confirm, `{"uses_defaults": true}`).
			Refused(t, 409, "invalid_request", "with the registry's default policies, policies would delete 1 tag that they leave now: app/a:main")
	}
	var now struct {
		UsesDefaults bool `json:"uses_defaults"`
	}
	if r.Manage(t, "GET", state, "").Into(t, 200, &now); now.UsesDefaults {
		t.Error("the defaults apply although nobody has confirmed it")
	}
	r.Manage(t, "PUT", state+"?confirm=uncovers", `{"uses_defaults": true}`).WantStatus(t, 204)
	if r.Manage(t, "GET", state, "").Into(t, 200, &now); !now.UsesDefaults {
		t.Error("the defaults don't apply although somebody has confirmed it")
	}
	var n int
	err := r.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM auditlog
		WHERE kind = 'change_default_autoprune_policy' AND detail->'warnings' @> '[{"code": "uncovers"}]'`).Scan(&n)
	if err != nil || n != 1 {
		t.Errorf("%d entries have the warning: %v", n, err)
	}
}

// TestAPIRests: a client must be told which policy rests and why, and can confirm that.
func TestAPIRests(t *testing.T) {
	t.Parallel()
	r, p := pruning(t)
	r.Put(t, "app/a", "main", r.Simple(t, "app/a", 1, nil))
	var made struct{ UUID string }
	r.Manage(t, "POST", "/organization/app/autoprunepolicy?confirm=none", `{"method": "creation_date", "olderThan": "1d"}`).Into(t, 201, &made)
	r.Put(t, "app/a", "latest", r.Simple(t, "app/a", 1, nil))
	r.Exec(t, "UPDATE tags SET created_at = now() - interval '10 days', updated_at = NULL")
	background(t, p.Run)
	var state struct{ Task *autoprune.TaskStatus }
	eventually(t, "the policy rests", func() bool {
		r.Manage(t, "GET", "/organization/app/autoprune", "").Into(t, 200, &state)
		return state.Task != nil && len(state.Task.Rests) > 0
	})
	rest := state.Task.Rests[0]
	if rest.Policy != made.UUID || !slices.Contains(policy.Codes(rest.Warnings), policy.SelectsLatest) {
		t.Errorf("it rests: %+v", rest)
	}
	path := "/organization/app/autoprune/rests/" + made.UUID + "/confirm"
	r.Manage(t, "POST", path, `{"version": 1, "codes": ["short_age"]}`).Refused(t, 409, "invalid_request", "look at it once more")
	r.Manage(t, "POST", path, `{"version": 2, "codes": ["selects_latest", "selects_most"]}`).Refused(t, 409, "invalid_request", "look at it once more")
	r.Manage(t, "POST", "/organization/app/autoprune/rests/x/confirm", `{"version": 1, "codes": []}`).Refused(t, 404, "not_found", "waits for no confirmation")
	r.Manage(t, "POST", path, `{"version": 1, "codes": ["selects_latest", "selects_most"]}`).WantStatus(t, 204)
	eventually(t, "the policy deletes", func() bool {
		var n int
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tags").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}
