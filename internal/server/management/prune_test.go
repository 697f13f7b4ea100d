package management_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// pruning is a registry with auto-pruning.
func pruning(t testing.TB) (*registry, *autoprune.Pruner) {
	t.Helper()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	var p *autoprune.Pruner
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		var err error
		if p, err = autoprune.New(autoprune.Options{DB: pool, Catalog: o.Catalog, Log: o.Log, Interval: time.Second}); err != nil {
			t.Fatal(err)
		}
		o.Management.Autoprune = p
	})
	r.Listen(t)
	return r, p
}

// TestAPIPolicies checks Quay's routes and formats.
func TestAPIPolicies(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "app/a", "v1", r.Simple(t, "app/a", 1, nil))
	r.Put(t, "other/a", "v1", r.Simple(t, "other/a", 1, nil))
	for _, base := range []string{"/organization/app/autoprunepolicy", "/repository/app/a/autoprunepolicy", "/autoprunepolicy"} {
		confirm := ""
		if base == "/autoprunepolicy" { // which Quay hasn't
			confirm = "?confirm=reaches,selects_most"
		}
		var made struct{ UUID string }
		r.Manage(t, "POST", base+"/"+confirm, `{"method": "number_of_tags", "value": 10, "tagPattern": "v.*", "tagPatternMatches": false}`).Into(t, 201, &made)
		var list struct{ Policies []api.PolicyView }
		r.Manage(t, "GET", base+"/", "").Into(t, 200, &list)
		p := list.Policies
		if len(p) != 1 || p[0].UUID != made.UUID || p[0].Method != "number_of_tags" || p[0].Value != 10.0 || *p[0].TagPattern != "v.*" || p[0].TagPatternMatches {
			t.Fatalf("%s: %+v", base, list)
		}
		one := base + "/" + made.UUID
		a := r.Manage(t, "PUT", one+confirm, `{"uuid": "`+made.UUID+`", "method": "creation_date", "olderThan": "2w"}`)
		if a.StatusCode != 204 || len(a.Content) != 0 {
			t.Errorf("PUT %s: %d %s", one, a.StatusCode, a.Content)
		}
		var view api.PolicyView
		r.Manage(t, "GET", one, "").Into(t, 200, &view)
		if view.Method != "creation_date" || view.Value != "2w" || view.TagPattern != nil || !view.TagPatternMatches {
			t.Errorf("GET %s: %+v", one, view)
		}
		again := `{"method": "creation_date", "olderThan": "2w"}`
		r.Manage(t, "PUT", one+"?version=1", again).Refused(t, 409, "invalid_request", "saved meanwhile")
		r.Manage(t, "PUT", fmt.Sprintf("%s?version=%d", one, view.Version), again).WantStatus(t, 204)
		r.Manage(t, "PUT", one, `{"uuid": "x", "method": "creation_date", "olderThan": "2w"}`).Refused(t, 400, "invalid_request", "^uuid: ")
		r.Manage(t, "POST", base+confirm, `{"method": "creation_date", "olderThan": "14d"}`).Refused(t, 400, "invalid_request", "has this policy already, as "+made.UUID)
		var gone struct{ UUID string }
		r.Manage(t, "DELETE", one, "").Into(t, 200, &gone)
		if gone.UUID != made.UUID {
			t.Errorf("DELETE %s: %+v", one, gone)
		}
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			body := ""
			if method == "PUT" {
				body = `{"method": "creation_date", "olderThan": "2w"}`
			}
			r.Manage(t, method, one, body).Refused(t, 404, "not_found", "has no auto-prune policy")
		}
	}
	var made struct{ UUID string }
	r.Manage(t, "POST", "/organization/app/autoprunepolicy", `{"method": "number_of_tags", "numTags": 1}`).Into(t, 201, &made)
	r.Manage(t, "GET", "/organization/other/autoprunepolicy/"+made.UUID, "").Refused(t, 404, "not_found", "namespace other has no")
	r.Manage(t, "DELETE", "/organization/other/autoprunepolicy/"+made.UUID, "").Refused(t, 404, "not_found", "namespace other has no")
	for _, path := range []string{"/organization/none", "/repository/app/none"} {
		r.Manage(t, "GET", path+"/autoprunepolicy", "").Refused(t, 404, "not_found", "not known to this registry")
		r.Manage(t, "POST", path+"/autoprunepolicy", `{"method": "number_of_tags", "numTags": 1}`).Refused(t, 404, "not_found", "not known to this registry")
		r.Manage(t, "POST", path+"/autoprunepolicy/preview", "").Refused(t, 404, "not_found", "not known to this registry")
	}
}

// TestAPIRefusesBadPolicies: a client sends invalid auto-prune policies. The API must refuse
// each with an error that begins with the name of the invalid member.
func TestAPIRefusesBadPolicies(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "app/a", "v1", r.Simple(t, "app/a", 1, nil))
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
		`{"method": "max_bytes"}`:                                                                          "^maxBytes: it is missing",
		`{"method": "max_bytes", "maxBytes": 5}`:                                                           "^maxBytes: it must be a string",
		`{"method": "max_bytes", "maxBytes": "0"}`:                                                         "^maxBytes: .*zero",
		`{"method": "max_bytes", "maxBytes": "5GiB", "olderThan": "2w"}`:                                   "^olderThan: max_bytes has none",
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
		`{"method": "creation_date", "olderThan": "2w", "keep": [{"newest": 1}, {"usedWithin": 3}]}`:       `^keep\[1\]\.usedWithin: `,
		`{"method": "creation_date", "olderThan": "2w", "mode": "watch"}`:                                  `^mode: "watch" is unknown`,
		`{"method": "creation_date", "olderThan": "2w", "windows": []}`:                                    `^windows: it is empty`,
		`{"method": "creation_date", "olderThan": "2w", "windows": [{"days": ["mon"]}, {"days": ["x"]}]}`:  `^windows\[1\]\.days\[0\]: `,
		`{"method": "creation_date", "olderThan": "2w", "neverBelow": 0}`:                                  `^neverBelow: `,
		`{"method": "creation_date", "olderThan": "2w", "keepUntagged": "0d"}`:                             `^keepUntagged: `,
		`{"method": "creation_date", "olderThan": "2w", "maxDeleted": 0}`:                                  `^maxDeleted: `,
		`{"method": "creation_date", "olderThan": "2w", "maxDeleted": "10%"}`:                              `^maxDeleted: `,
		`{"method": "creation_date", "olderThan": "2w", "maxDeletedPercent": 101}`:                         `^maxDeletedPercent: .*100`,
		`{"method": "creation_date", "olderThan": "2w", "maxDeletedPercent": 2.5}`:                         `^maxDeletedPercent: `,
		`{"method": "creation_date", "olderThan": "2w", "grace": "0d"}`:                                    `^grace: .*zero`,
		`{"method": "creation_date", "olderThan": "2w", "tagPatternMatches": false}`:                       "^tagPatternMatches: ",
		`{"method": "creation_date", "olderThan": "2w", "tags": "v.*"}`:                                    "tags",
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": "` + strings.Repeat("a", 257) + `"}`: "^tagPattern: .*257.*256",
		`[]`: "object",
		`{"method": "creation_date", "olderThan": "2w"`: "unexpected end of JSON",
	} {
		for _, path := range []string{"/organization/app/autoprunepolicy", "/organization/app/autoprunepolicy/preview"} {
			a := r.Manage(t, "POST", path, body).Refused(t, 400, "invalid_request", want)
			told[body] = string(a.Content)
		}
	}
	var list struct{ Policies []any }
	r.Manage(t, "GET", "/organization/app/autoprunepolicy", "").Into(t, 200, &list)
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

// TestAPIPreviewRunUndo: a client previews an auto-prune policy, saves it, lets auto-pruning
// run, and undoes the run. The preview must list the tag that the run then deletes and the undo
// restores.
func TestAPIPreviewRunUndo(t *testing.T) {
	t.Parallel()
	r, p := pruning(t)
	for i := range 4 {
		r.Put(t, "app/a", fmt.Sprintf("v%d", i), r.Simple(t, "app/a", i, nil))
	}
	var preview autoprune.Preview
	r.Manage(t, "POST", "/organization/app/autoprunepolicy/preview", `{"method": "number_of_tags", "numTags": 3}`).Into(t, 200, &preview)
	if !preview.Complete || preview.Deleted != 1 || preview.Tags != 4 || len(preview.Going) != 1 || preview.Going[0].Tag != "v0" ||
		len(preview.Staying) != 3 || preview.Going[0].Reason == "" {
		t.Fatalf("preview: %+v", preview)
	}
	r.Manage(t, "POST", "/organization/app/autoprune/run", "").Refused(t, 409, "invalid_request", "no auto-prune policy applies")
	r.Manage(t, "POST", "/organization/app/autoprunepolicy", `{"method": "number_of_tags", "numTags": 3}`).Into(t, 201, new(any))
	var state struct {
		UsesDefaults bool `json:"uses_defaults"`
		Task         *autoprune.TaskStatus
	}
	r.Manage(t, "GET", "/organization/app/autoprune", "").Into(t, 200, &state)
	if !state.UsesDefaults || state.Task == nil || state.Task.Status != "queued" {
		t.Errorf("state: %+v", state)
	}
	var now autoprune.Preview
	r.Manage(t, "POST", "/repository/app/a/autoprunepolicy/preview?limit=1", "").Into(t, 200, &now)
	if now.Deleted != 1 || len(now.Staying) != 1 || len(now.Policies) != 1 || now.Policies[0].ID == "" {
		t.Errorf("preview of what is: %+v", now)
	}
	background(t, p.Run)
	r.Manage(t, "POST", "/organization/app/autoprune/run", "").Into(t, 202, new(any))
	var runs struct{ Runs []autoprune.RunSummary }
	eventually(t, "the run has ended", func() bool {
		r.Manage(t, "GET", "/autoprune/runs?namespace=app", "").Into(t, 200, &runs)
		return len(runs.Runs) > 0 && runs.Runs[len(runs.Runs)-1].State == "success"
	})
	first := runs.Runs[len(runs.Runs)-1]
	var details autoprune.RunDetails
	r.Manage(t, "GET", "/autoprune/runs/"+first.ID, "").Into(t, 200, &details)
	if details.Deleted != 1 || len(details.PerRepository) != 1 || details.PerRepository[0].Repository != "app/a" {
		t.Errorf("run: %+v", details)
	}
	eventually(t, "the tag is gone", func() bool { return r.Do(t, "GET", "/v2/app/a/manifests/v0", "").StatusCode == 404 })
	r.wantPerformer(t, "autoprune_tag_delete", api.LogPerformer{Kind: "worker", Name: "autoprune worker"}, 1)
	var undone autoprune.Undone
	r.Manage(t, "POST", "/autoprune/runs/"+first.ID+"/undo", "").Into(t, 200, &undone)
	if undone.Restored != 1 || undone.Next != "" {
		t.Errorf("undone: %+v", undone)
	}
	r.Do(t, "GET", "/v2/app/a/manifests/v0", "").Want(t, 200, "")
	r.Manage(t, "GET", "/autoprune/runs/x", "").Refused(t, 404, "not_found", `no run of auto-pruning that is called "x"`)
	r.Manage(t, "POST", "/autoprune/runs/"+first.ID+"/undo?cursor=x", "").Refused(t, 400, "invalid_request", "cursor is not valid")
	r.Manage(t, "GET", "/autoprune/runs?cursor=x", "").Refused(t, 400, "invalid_request", "cursor is not valid")
	r.Manage(t, "PUT", "/organization/app/autoprune", `{"uses_defaults": false}`)
	r.Manage(t, "GET", "/organization/app/autoprune", "").Into(t, 200, &state)
	if state.UsesDefaults {
		t.Error("the namespace still uses the defaults")
	}
}

// TestAPIAsks: a client lists a policy that asks, and approves it.
func TestAPIAsks(t *testing.T) {
	t.Parallel()
	r, p := pruning(t)
	for i := range 4 {
		r.Put(t, "app/a", fmt.Sprintf("v%d", i), r.Simple(t, "app/a", i, nil))
	}
	const capped = `{"method": "number_of_tags", "numTags": 1, "maxDeleted": 2, "maxDeletedPercent": 90}`
	var preview autoprune.Preview
	r.Manage(t, "POST", "/repository/app/a/autoprunepolicy/preview", capped).Into(t, 200, &preview)
	want := autoprune.RunAsk{Scope: policy.NamespaceScope, Would: 3, Most: 2}
	if preview.Deleted != 0 || len(preview.Asks) != 1 || preview.Asks[0] != want || preview.Reasons[judge.Asks] != 3 ||
		!strings.Contains(preview.Policies[0].Notice, "it would delete 3 tags, more than its cap of 2") {
		t.Errorf("preview: %+v", preview)
	}
	var made struct{ UUID string }
	r.Manage(t, "POST", "/organization/app/autoprunepolicy", capped).Into(t, 201, &made)
	var list struct{ Asks []autoprune.Ask }
	r.Manage(t, "GET", "/organization/app/autoprune/asks", "").Into(t, 200, &list)
	if list.Asks == nil || len(list.Asks) != 0 {
		t.Errorf("asks: %+v", list)
	}
	background(t, p.Run)
	eventually(t, "the policy asks", func() bool {
		r.Manage(t, "GET", "/organization/app/autoprune/asks", "").Into(t, 200, &list)
		return len(list.Asks) > 0
	})
	want.Policy, want.Version = made.UUID, 1
	if list.Asks[0].RunAsk != want {
		t.Errorf("asks: %+v", list)
	}
	var waiting struct{ Namespaces []autoprune.NamespaceAsks }
	r.Manage(t, "GET", "/autoprune/asks", "").Into(t, 200, &waiting)
	if w := waiting.Namespaces; len(w) != 1 || w[0].Namespace != "app" || w[0].Policies != 1 || w[0].Tags != 3 || w[0].Asked.IsZero() {
		t.Errorf("waiting: %+v", w)
	}
	path := "/organization/app/autoprune/asks/" + made.UUID + "/approve"
	r.Manage(t, "POST", path, `{"version": 1, "tags": 2}`).Refused(t, 409, "invalid_request", "would delete 3 tags, more than the 2 that were approved")
	r.Manage(t, "POST", path, `{"version": 7, "tags": 3}`).Refused(t, 409, "invalid_request", "has version 1, and version 7 was approved")
	r.Manage(t, "POST", path, `{"tags": 3}`).Refused(t, 400, "invalid_request", "version")
	r.Manage(t, "POST", path, `{"version": 1, "tags": 0}`).Refused(t, 400, "invalid_request", "tags")
	r.Manage(t, "POST", "/organization/app/autoprune/asks/x/approve", `{"version": 1, "tags": 3}`).Refused(t, 404, "not_found", "doesn't ask")
	r.Manage(t, "POST", "/organization/none/autoprune/asks/x/approve", `{"version": 1, "tags": 3}`).Refused(t, 404, "not_found", "not known")
	r.Manage(t, "GET", "/organization/none/autoprune/asks", "").Refused(t, 404, "not_found", "not known")
	var approved autoprune.Ask
	r.Manage(t, "POST", path, `{"version": 1, "tags": 3}`).Into(t, 200, &approved)
	if approved.Approved == nil || *approved.Approved != 3 || approved.Until == nil {
		t.Errorf("approved: %+v", approved)
	}
	if r.Manage(t, "GET", "/autoprune/asks", "").Into(t, 200, &waiting); waiting.Namespaces == nil || len(waiting.Namespaces) != 0 {
		t.Errorf("waiting after the approval: %+v", waiting.Namespaces)
	}
	eventually(t, "the tags are gone", func() bool {
		r.Manage(t, "GET", "/organization/app/autoprune/asks", "").Into(t, 200, &list)
		return len(list.Asks) == 0 && r.Do(t, "GET", "/v2/app/a/manifests/v2", "").StatusCode == 404
	})
	r.Do(t, "GET", "/v2/app/a/manifests/v3", "").Want(t, 200, "")
}

// wantPerformer checks that there are `n` audit entries of a kind, that all have the performer
// `want`, and that a client finds them by filtering by this performer.
func (r *registry) wantPerformer(t testing.TB, kind string, want api.LogPerformer, n int) {
	t.Helper()
	for _, query := range []string{"kind=" + kind, "performer=" + url.QueryEscape(want.Name), "actor=" + url.QueryEscape(want.Name) + "&kind=" + kind} {
		type entry struct {
			Kind      string
			Performer *api.LogPerformer
			Metadata  struct{ Performer string }
		}
		var list struct{ Logs []entry }
		r.Manage(t, "GET", "/superuser/logs?"+query, "").Into(t, 200, &list)
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

// TestAPIPolicyWarnings: a client saves a policy whose pattern may match unintended tags. The
// answer must warn of that. When the client sends back the policy as it read it, with the
// warnings, the API must accept it.
func TestAPIPolicyWarnings(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "app/a", "v1", r.Simple(t, "app/a", 1, nil))
	base := "/organization/app/autoprunepolicy"
	var made struct {
		UUID     string
		Warnings []string
	}
	r.Manage(t, "POST", base+"/", `{"method": "number_of_tags", "value": 10, "tagPattern": " v1.2 ", "removeOrphans": true}`).Into(t, 201, &made)
	if len(made.Warnings) != 2 || !strings.Contains(made.Warnings[0], "no anchors") || !strings.Contains(made.Warnings[1], "dot between digits") {
		t.Errorf("the answer warns %q", made.Warnings)
	}
	one := base + "/" + made.UUID
	told := r.Manage(t, "GET", one, "")
	var view api.PolicyView
	told.Into(t, 200, &view)
	if *view.TagPattern != "v1.2" || !view.RemoveOrphans || len(view.Warnings) != 2 {
		t.Errorf("the policy: %s", told.Content)
	}
	a := r.Manage(t, "PUT", one, string(told.Content))
	if a.StatusCode != 204 || len(a.Header.Values("Warning")) != 2 || !strings.HasPrefix(a.Header.Get("Warning"), `299 - "`) {
		t.Errorf("PUT: %d %s, warnings %q", a.StatusCode, a.Content, a.Header.Values("Warning"))
	}
	a = r.Manage(t, "PUT", one, `{"method": "number_of_tags", "value": 10, "tagPattern": "^v1$"}`)
	if a.StatusCode != 204 || a.Header.Get("Warning") != "" {
		t.Errorf("PUT: %d %s, warnings %q", a.StatusCode, a.Content, a.Header.Values("Warning"))
	}
	var preview struct{ Policies []struct{ Warnings []string } }
	r.Manage(t, "POST", base+"/preview", `{"method": "number_of_tags", "value": 10, "tagPattern": "v"}`).Into(t, 200, &preview)
	if len(preview.Policies) != 1 || len(preview.Policies[0].Warnings) != 1 {
		t.Errorf("the preview: %+v", preview)
	}
	var rule struct{ Warnings []string }
	r.Manage(t, "POST", "/organization/app/tagprotection", `{"pattern": "v"}`).Into(t, 201, &rule)
	if len(rule.Warnings) != 1 {
		t.Errorf("the rule: %+v", rule)
	}
}

// TestAPIUnreadable: the database contains a policy and a protection rule that this version
// can't parse. The API must list them with a text that says why, and let clients delete them.
func TestAPIUnreadable(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "app/a", "v1", r.Simple(t, "app/a", 1, nil))
	r.Exec(t, `INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) SELECT 'p', id, '{"method": "by_magic"}' FROM top_level_namespaces`)
	r.Exec(t, `INSERT INTO tagprotectionrules (uuid, namespace_id, pattern)
		SELECT '00000000-0000-4000-8000-000000000001', id, '(' FROM top_level_namespaces`)
	base := "/organization/app/autoprunepolicy"
	var list struct{ Policies []api.PolicyView }
	r.Manage(t, "GET", base, "").Into(t, 200, &list)
	if len(list.Policies) != 1 || !strings.Contains(list.Policies[0].Problem, "by_magic") || list.Policies[0].Stored != `{"method": "by_magic"}` {
		t.Errorf("policies: %+v", list)
	}
	var made struct{ UUID string }
	r.Manage(t, "POST", base, `{"method": "number_of_tags", "numTags": 1}`).Into(t, 201, &made)
	var gone struct{ UUID string }
	r.Manage(t, "DELETE", base+"/p", "").Into(t, 200, &gone)
	var rules struct{ Rules []api.ProtectionRule }
	r.Manage(t, "GET", "/organization/app/tagprotection", "").Into(t, 200, &rules)
	if len(rules.Rules) != 1 || rules.Rules[0].Problem == "" || rules.Rules[0].Pattern != "(" {
		t.Errorf("rules: %+v", rules)
	}
	r.Manage(t, "DELETE", "/organization/app/tagprotection/"+rules.Rules[0].UUID, "").WantStatus(t, 204)
}

// TestDefaultPolicyOfSetting: the setting autoprune.default_policy defines a policy. The API
// must list this policy with the setting's name, and refuse to change or delete the policy.
func TestDefaultPolicyOfSetting(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Exec(t, `INSERT INTO defaultautoprunepolicy (uuid, policy, setting) VALUES ('7d0f4c1e-0000-4000-8000-000000000000', '{"method":"number_of_tags","numTags":7}', true)`)
	const path = "/autoprunepolicy/7d0f4c1e-0000-4000-8000-000000000000"
	told := r.Manage(t, "GET", path, "").WantStatus(t, 200)
	if !strings.Contains(string(told.Content), `"setting":"autoprune.default_policy"`) {
		t.Errorf("%s", told.Content)
	}
	r.Manage(t, "PUT", path, string(told.Content)).Refused(t, 409, "invalid_request", "autoprune.default_policy")
	r.Manage(t, "DELETE", path, "").Refused(t, 409, "invalid_request", "autoprune.default_policy")
	r.Manage(t, "POST", "/autoprunepolicy", `{"method":"number_of_tags","value":7}`).WantStatus(t, 201)
}
