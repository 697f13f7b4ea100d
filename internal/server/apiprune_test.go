package server_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server"
)

// pruning is a registry with auto-pruning.
func pruning(t testing.TB) (*registry, *autoprune.Pruner) {
	t.Helper()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	var p *autoprune.Pruner
	r := replica(t, dsn, t.TempDir(), func(o *server.Options) {
		var err error
		if p, err = autoprune.New(autoprune.Options{DB: pool, Catalog: o.Catalog, Log: o.Log, Interval: time.Second}); err != nil {
			t.Fatal(err)
		}
		o.Autoprune = p
	})
	r.listen(t)
	return r, p
}

// background runs fn until the test ends.
func background(t testing.TB, fn func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAPIPolicies checks Quay's routes and formats.
func TestAPIPolicies(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.put(t, "app/a", "v1", r.simple(t, "app/a", 1, nil))
	r.put(t, "other/a", "v1", r.simple(t, "other/a", 1, nil))
	for _, base := range []string{"/organization/app/autoprunepolicy", "/repository/app/a/autoprunepolicy", "/autoprunepolicy"} {
		var made struct{ UUID string }
		r.manage(t, "POST", base+"/", `{"method": "number_of_tags", "value": 10, "tagPattern": "v.*", "tagPatternMatches": false}`).into(t, 201, &made)
		var list struct{ Policies []server.PolicyView }
		r.manage(t, "GET", base+"/", "").into(t, 200, &list)
		p := list.Policies
		if len(p) != 1 || p[0].UUID != made.UUID || p[0].Method != "number_of_tags" || p[0].Value != 10.0 || *p[0].TagPattern != "v.*" || p[0].TagPatternMatches {
			t.Fatalf("%s: %+v", base, list)
		}
		one := base + "/" + made.UUID
		a := r.manage(t, "PUT", one, `{"uuid": "`+made.UUID+`", "method": "creation_date", "olderThan": "2w"}`)
		if a.StatusCode != 204 || len(a.body) != 0 {
			t.Errorf("PUT %s: %d %s", one, a.StatusCode, a.body)
		}
		var view server.PolicyView
		r.manage(t, "GET", one, "").into(t, 200, &view)
		if view.Method != "creation_date" || view.Value != "2w" || view.TagPattern != nil || !view.TagPatternMatches {
			t.Errorf("GET %s: %+v", one, view)
		}
		r.manage(t, "PUT", one, `{"uuid": "x", "method": "creation_date", "olderThan": "2w"}`).refused(t, 400, "invalid_request", "^uuid: ")
		r.manage(t, "POST", base, `{"method": "creation_date", "olderThan": "14d"}`).refused(t, 400, "invalid_request", "has this policy already, as "+made.UUID)
		var gone struct{ UUID string }
		r.manage(t, "DELETE", one, "").into(t, 200, &gone)
		if gone.UUID != made.UUID {
			t.Errorf("DELETE %s: %+v", one, gone)
		}
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			body := ""
			if method == "PUT" {
				body = `{"method": "creation_date", "olderThan": "2w"}`
			}
			r.manage(t, method, one, body).refused(t, 404, "not_found", "has no auto-prune policy")
		}
	}
	var made struct{ UUID string }
	r.manage(t, "POST", "/organization/app/autoprunepolicy", `{"method": "number_of_tags", "numTags": 1}`).into(t, 201, &made)
	r.manage(t, "GET", "/organization/other/autoprunepolicy/"+made.UUID, "").refused(t, 404, "not_found", "namespace other has no")
	r.manage(t, "DELETE", "/organization/other/autoprunepolicy/"+made.UUID, "").refused(t, 404, "not_found", "namespace other has no")
	for _, path := range []string{"/organization/none", "/repository/app/none"} {
		r.manage(t, "GET", path+"/autoprunepolicy", "").refused(t, 404, "not_found", "not known to this registry")
		r.manage(t, "POST", path+"/autoprunepolicy", `{"method": "number_of_tags", "numTags": 1}`).refused(t, 404, "not_found", "not known to this registry")
		r.manage(t, "POST", path+"/autoprunepolicy/preview", "").refused(t, 404, "not_found", "not known to this registry")
	}
}

// TestAPIRefusesBadPolicies: each invalid policy gets its own error, which names the
// field.
func TestAPIRefusesBadPolicies(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.put(t, "app/a", "v1", r.simple(t, "app/a", 1, nil))
	told := make(map[string]string)
	for body, want := range map[string]string{
		`{"method": "oldest", "olderThan": "2w"}`:                                                          "^method: ",
		`{"olderThan": "2w"}`:                                                                              "^method: ",
		`{"method": "number_of_tags", "numTags": 0}`:                                                       "^numTags: ",
		`{"method": "number_of_tags", "numTags": -1}`:                                                      "^numTags: ",
		`{"method": "number_of_tags", "numTags": 1.5}`:                                                     "^numTags: ",
		`{"method": "number_of_tags", "numTags": "ten"}`:                                                   "^numTags: ",
		`{"method": "number_of_tags"}`:                                                                     "^numTags: ",
		`{"method": "creation_date"}`:                                                                      "^olderThan: ",
		`{"method": "creation_date", "olderThan": ""}`:                                                     "^olderThan: .*empty",
		`{"method": "creation_date", "olderThan": "0d"}`:                                                   "^olderThan: .*0",
		`{"method": "creation_date", "olderThan": "-2d"}`:                                                  "^olderThan: ",
		`{"method": "creation_date", "olderThan": "2 fortnights"}`:                                         "^olderThan: ",
		`{"method": "creation_date", "olderThan": "2x"}`:                                                   "^olderThan: .*unit",
		`{"method": "creation_date", "olderThan": "99999999999999999999y"}`:                                "^olderThan: ",
		`{"method": "creation_date", "olderThan": "２w"}`:                                                   "^olderThan: ",
		`{"method": "creation_date", "olderThan": "2w", "numTags": 1}`:                                     "^numTags: ",
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": "("}`:                                "^tagPattern: ",
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": ""}`:                                 "^tagPattern: ",
		`{"method": "creation_date", "olderThan": "2w", "tagPatternMatches": false}`:                       "^tagPatternMatches: ",
		`{"method": "creation_date", "olderThan": "2w", "tags": "v.*"}`:                                    "tags",
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": "` + strings.Repeat("a", 257) + `"}`: "^tagPattern: .*257.*256",
		`[]`: "object",
		`{"method": "creation_date", "olderThan": "2w"`: "unexpected end of JSON",
	} {
		for _, path := range []string{"/organization/app/autoprunepolicy", "/organization/app/autoprunepolicy/preview"} {
			a := r.manage(t, "POST", path, body).refused(t, 400, "invalid_request", want)
			told[body] = string(a.body)
		}
	}
	var list struct{ Policies []any }
	r.manage(t, "GET", "/organization/app/autoprunepolicy", "").into(t, 200, &list)
	if len(list.Policies) != 0 {
		t.Errorf("policies: %v", list.Policies)
	}
	seen := make(map[string]string)
	for body, text := range told {
		if other, ok := seen[text]; ok && !strings.Contains(body, "method\": \"creation_date\"}") && !strings.Contains(other, "\"olderThan\": \"-") {
			t.Logf("%s and %s are told the same: %s", body, other, text)
		}
		seen[text] = body
	}
}

// TestAPIPreviewRunUndo makes a preview, a run, and its undo.
func TestAPIPreviewRunUndo(t *testing.T) {
	t.Parallel()
	r, p := pruning(t)
	for i := range 4 {
		r.put(t, "app/a", fmt.Sprintf("v%d", i), r.simple(t, "app/a", i, nil))
	}
	var preview autoprune.Preview
	r.manage(t, "POST", "/organization/app/autoprunepolicy/preview", `{"method": "number_of_tags", "numTags": 3}`).into(t, 200, &preview)
	if !preview.Complete || preview.Deleted != 1 || preview.Tags != 4 || len(preview.Going) != 1 || preview.Going[0].Tag != "v0" ||
		len(preview.Staying) != 3 || preview.Going[0].Reason == "" {
		t.Fatalf("preview: %+v", preview)
	}
	r.manage(t, "POST", "/organization/app/autoprune/run", "").refused(t, 409, "invalid_request", "no auto-prune policy applies")
	r.manage(t, "POST", "/organization/app/autoprunepolicy", `{"method": "number_of_tags", "numTags": 3}`).into(t, 201, new(any))
	var state struct {
		UsesDefaults bool `json:"uses_defaults"`
		Task         *autoprune.TaskStatus
	}
	r.manage(t, "GET", "/organization/app/autoprune", "").into(t, 200, &state)
	if !state.UsesDefaults || state.Task == nil || state.Task.Status != "queued" {
		t.Errorf("state: %+v", state)
	}
	var now autoprune.Preview
	r.manage(t, "POST", "/repository/app/a/autoprunepolicy/preview?limit=1", "").into(t, 200, &now)
	if now.Deleted != 1 || len(now.Staying) != 1 || len(now.Policies) != 1 || now.Policies[0].ID == "" {
		t.Errorf("preview of what is: %+v", now)
	}
	background(t, p.Run)
	r.manage(t, "POST", "/organization/app/autoprune/run", "").into(t, 202, new(any))
	var runs struct{ Runs []autoprune.RunSummary }
	eventually(t, "the run has ended", func() bool {
		r.manage(t, "GET", "/autoprune/runs?namespace=app", "").into(t, 200, &runs)
		return len(runs.Runs) > 0 && runs.Runs[len(runs.Runs)-1].State == "success"
	})
	first := runs.Runs[len(runs.Runs)-1]
	var details autoprune.RunDetails
	r.manage(t, "GET", "/autoprune/runs/"+first.ID, "").into(t, 200, &details)
	if details.Deleted != 1 || len(details.PerRepository) != 1 || details.PerRepository[0].Repository != "app/a" {
		t.Errorf("run: %+v", details)
	}
	eventually(t, "the tag is gone", func() bool { return r.do(t, "GET", "/v2/app/a/manifests/v0", "").StatusCode == 404 })
	r.wantPerformer(t, "autoprune_tag_delete", server.LogPerformer{Kind: "worker", Name: "autoprune worker"}, 1)
	r.exec(t, "UPDATE auditlog SET actor = NULL") // as the first release wrote it
	r.wantPerformer(t, "autoprune_tag_delete", server.LogPerformer{Kind: "worker", Name: "autoprune worker"}, 1)
	var undone autoprune.Undone
	r.manage(t, "POST", "/autoprune/runs/"+first.ID+"/undo", "").into(t, 200, &undone)
	if undone.Restored != 1 || undone.Next != "" {
		t.Errorf("undone: %+v", undone)
	}
	r.do(t, "GET", "/v2/app/a/manifests/v0", "").want(t, 200, "")
	r.manage(t, "GET", "/autoprune/runs/x", "").refused(t, 404, "not_found", `no run of auto-pruning that is called "x"`)
	r.manage(t, "POST", "/autoprune/runs/"+first.ID+"/undo?cursor=x", "").refused(t, 400, "invalid_request", "cursor is not valid")
	r.manage(t, "GET", "/autoprune/runs?cursor=x", "").refused(t, 400, "invalid_request", "cursor is not valid")
	r.manage(t, "PUT", "/organization/app/autoprune", `{"uses_defaults": false}`)
	r.manage(t, "GET", "/organization/app/autoprune", "").into(t, 200, &state)
	if state.UsesDefaults {
		t.Error("the namespace still uses the defaults")
	}
}

// wantPerformer checks the performer of all entries of a kind, and that filtering by
// performer finds them.
func (r *registry) wantPerformer(t testing.TB, kind string, want server.LogPerformer, n int) {
	t.Helper()
	for _, query := range []string{"kind=" + kind, "performer=" + url.QueryEscape(want.Name), "actor=" + url.QueryEscape(want.Name) + "&kind=" + kind} {
		type entry struct {
			Kind      string
			Performer *server.LogPerformer
			Metadata  struct{ Performer string }
		}
		var list struct{ Logs []entry }
		r.manage(t, "GET", "/superuser/logs?"+query, "").into(t, 200, &list)
		list.Logs = slices.DeleteFunc(list.Logs, func(e entry) bool { return e.Kind != kind })
		if len(list.Logs) != n {
			t.Errorf("%s: %d entries, want %d", query, len(list.Logs), n)
		}
		for _, e := range list.Logs {
			if e.Kind != kind || e.Performer == nil || *e.Performer != want || e.Metadata.Performer != want.Name {
				t.Errorf("%s: %+v, performer %+v, want %+v", query, e, e.Performer, want)
			}
		}
	}
}

// TestAPIPolicyWarnings: a pattern that may match unintended tags causes a warning, and
// a client can send back the policy that it read.
func TestAPIPolicyWarnings(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.put(t, "app/a", "v1", r.simple(t, "app/a", 1, nil))
	base := "/organization/app/autoprunepolicy"
	var made struct {
		UUID     string
		Warnings []string
	}
	r.manage(t, "POST", base+"/", `{"method": "number_of_tags", "value": 10, "tagPattern": " v1.2 ", "removeOrphans": true}`).into(t, 201, &made)
	if len(made.Warnings) != 2 || !strings.Contains(made.Warnings[0], "no anchors") || !strings.Contains(made.Warnings[1], "dot between digits") {
		t.Errorf("the answer warns %q", made.Warnings)
	}
	one := base + "/" + made.UUID
	told := r.manage(t, "GET", one, "")
	var view server.PolicyView
	told.into(t, 200, &view)
	if *view.TagPattern != "v1.2" || !view.RemoveOrphans || len(view.Warnings) != 2 {
		t.Errorf("the policy: %s", told.body)
	}
	a := r.manage(t, "PUT", one, string(told.body))
	if a.StatusCode != 204 || len(a.Header.Values("Warning")) != 2 || !strings.HasPrefix(a.Header.Get("Warning"), `299 - "`) {
		t.Errorf("PUT: %d %s, warnings %q", a.StatusCode, a.body, a.Header.Values("Warning"))
	}
	a = r.manage(t, "PUT", one, `{"method": "number_of_tags", "value": 10, "tagPattern": "^v1$"}`)
	if a.StatusCode != 204 || a.Header.Get("Warning") != "" {
		t.Errorf("PUT: %d %s, warnings %q", a.StatusCode, a.body, a.Header.Values("Warning"))
	}
	var preview struct{ Policies []struct{ Warnings []string } }
	r.manage(t, "POST", base+"/preview", `{"method": "number_of_tags", "value": 10, "tagPattern": "v"}`).into(t, 200, &preview)
	if len(preview.Policies) != 1 || len(preview.Policies[0].Warnings) != 1 {
		t.Errorf("the preview: %+v", preview)
	}
	var rule struct{ Warnings []string }
	r.manage(t, "POST", "/organization/app/tagprotection", `{"pattern": "v"}`).into(t, 201, &rule)
	if len(rule.Warnings) != 1 {
		t.Errorf("the rule: %+v", rule)
	}
}

// TestAPIUnreadable: policies and rules that this version can't parse are listed and
// can be deleted.
func TestAPIUnreadable(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.put(t, "app/a", "v1", r.simple(t, "app/a", 1, nil))
	r.exec(t, `INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) SELECT 'p', id, '{"method": "by_magic"}' FROM top_level_namespaces`)
	r.exec(t, `INSERT INTO tagprotectionrules (uuid, namespace_id, pattern)
		SELECT '00000000-0000-4000-8000-000000000001', id, '(' FROM top_level_namespaces`)
	base := "/organization/app/autoprunepolicy"
	var list struct{ Policies []server.PolicyView }
	r.manage(t, "GET", base, "").into(t, 200, &list)
	if len(list.Policies) != 1 || !strings.Contains(list.Policies[0].Problem, "by_magic") || list.Policies[0].Stored != `{"method": "by_magic"}` {
		t.Errorf("policies: %+v", list)
	}
	var made struct{ UUID string }
	r.manage(t, "POST", base, `{"method": "number_of_tags", "numTags": 1}`).into(t, 201, &made)
	var gone struct{ UUID string }
	r.manage(t, "DELETE", base+"/p", "").into(t, 200, &gone)
	var rules struct{ Rules []server.ProtectionRule }
	r.manage(t, "GET", "/organization/app/tagprotection", "").into(t, 200, &rules)
	if len(rules.Rules) != 1 || rules.Rules[0].Problem == "" || rules.Rules[0].Pattern != "(" {
		t.Errorf("rules: %+v", rules)
	}
	r.manage(t, "DELETE", "/organization/app/tagprotection/"+rules.Rules[0].UUID, "").wantStatus(t, 204)
}

// TestDefaultPolicyOfSetting: the configured default policy is listed with the
// setting's name, and can't be changed through the API.
func TestDefaultPolicyOfSetting(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.exec(t, `INSERT INTO defaultautoprunepolicy (uuid, policy, setting) VALUES ('7d0f4c1e-0000-4000-8000-000000000000', '{"method":"number_of_tags","numTags":7}', true)`)
	const path = "/autoprunepolicy/7d0f4c1e-0000-4000-8000-000000000000"
	told := r.manage(t, "GET", path, "").wantStatus(t, 200)
	if !strings.Contains(string(told.body), `"setting":"autoprune.default_policy"`) {
		t.Errorf("%s", told.body)
	}
	r.manage(t, "PUT", path, string(told.body)).refused(t, 409, "invalid_request", "autoprune.default_policy")
	r.manage(t, "DELETE", path, "").refused(t, 409, "invalid_request", "autoprune.default_policy")
	r.manage(t, "POST", "/autoprunepolicy", `{"method":"number_of_tags","value":7}`).wantStatus(t, 201)
}
