package management_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"

	"github.com/purser-registry/purser/internal/audit"
)

// TestQuayLimits: a client asks for more entries than a page of a list may have. The API must
// return a page of the greatest length, and no error.
func TestQuayLimits(t *testing.T) {
	t.Parallel()
	r := whole(t)
	payload := r.Simple(t, "acme/app", 1, nil)
	for i := range 103 {
		r.Put(t, "acme/app", fmt.Sprintf("v%03d", i), payload)
	}
	var tags tagList
	r.Manage(t, "GET", "/repository/acme/app/tag/?limit=1000", "").Into(t, 200, &tags)
	if len(tags.Tags) != 100 || !tags.HasAdditional {
		t.Errorf("%d tags, more: %v", len(tags.Tags), tags.HasAdditional)
	}
	r.Manage(t, "GET", "/repository/acme/app/tag/?limit=1000&page=2", "").Into(t, 200, &tags)
	if len(tags.Tags) != 3 || tags.HasAdditional {
		t.Errorf("%d tags on the second page, more: %v", len(tags.Tags), tags.HasAdditional)
	}
	for _, path := range []string{"/repository", "/organization", "/superuser/logs", "/autoprune/runs", "/repository/acme/app/tag", "/repository/acme/app/pull_statistics"} {
		for _, limit := range []string{"101", "1001", "99999", "9223372036854775807"} {
			r.Manage(t, "GET", path+"?limit="+limit, "").WantStatus(t, 200)
		}
		r.Manage(t, "GET", path+"?limit=0", "").Refused(t, 400, "invalid_request", "limit")
	}
}

// TestQuayVisibility: a client makes repositories private or public, and stars them. The API
// must store and show the visibility and the star. When a client makes a repository private, the
// API must warn that everybody may still pull from it.
func TestQuayVisibility(t *testing.T) {
	t.Parallel()
	r := setup(t)
	type told struct {
		Repository, Visibility string
		IsPublic               bool `json:"is_public"`
		IsStarred              bool `json:"is_starred"`
	}
	one := func(path string) (d told) {
		t.Helper()
		r.Manage(t, "GET", "/repository/"+path, "").Into(t, 200, &d)
		return d
	}
	names := func(query string) (list []string) {
		t.Helper()
		for _, sort := range []string{"", "&sort=created"} {
			var out struct{ Repositories []told }
			r.Manage(t, "GET", "/repository?"+query+sort, "").Into(t, 200, &out)
			list = nil
			for _, d := range out.Repositories {
				if list = append(list, d.Repository); d != one(d.Repository) {
					t.Errorf("the list has %+v, the repository %+v", d, one(d.Repository))
				}
			}
			slices.Sort(list)
		}
		return list
	}
	r.Manage(t, "POST", "/repository", `{"namespace":"acme","repository":"a","visibility":"public","description":""}`).WantStatus(t, 201)
	private := r.Manage(t, "POST", "/repository", `{"namespace":"acme","repository":"b","visibility":"private","description":"","starred":true}`)
	if private.WantStatus(t, 201); private.Header.Get("Warning") == "" {
		t.Error("nobody is warned of a private repository that protects nothing")
	}
	if d := one("acme/a"); d != (told{"acme/a", "public", true, false}) {
		t.Errorf("%+v", d)
	}
	if d := one("acme/b"); d != (told{"acme/b", "private", true, true}) {
		t.Errorf("%+v", d)
	}
	if all, private, stars := names("public=true&starred=false"), names("visibility=private"), names("starred=true&namespace=acme"); len(all) != 2 ||
		!slices.Equal(private, []string{"acme/b"}) || !slices.Equal(stars, []string{"acme/b"}) {
		t.Errorf("all %q, private %q, stars %q", all, private, stars)
	}
	f := r.Since(t)
	for _, visibility := range []string{"private", "private", "public"} {
		var ok struct{ Success bool }
		a := r.Manage(t, "POST", "/repository/acme/a/changevisibility", `{"visibility":"`+visibility+`"}`).Into(t, 200, &ok)
		if !ok.Success || (a.Header.Get("Warning") != "") != (visibility == "private") || one("acme/a").Visibility != visibility || !one("acme/a").IsPublic {
			t.Errorf("%s: %+v, Warning %q, then %+v", visibility, ok, a.Header.Get("Warning"), one("acme/a"))
		}
	}
	f.Kinds = []audit.Kind{audit.ChangeVisibility}
	r.WantLog(t, f, `change_repo_visibility acme acme/a   {"visibility": "private"}`, `change_repo_visibility acme acme/a   {"visibility": "public"}`)
	r.Manage(t, "POST", "/repository/acme/a/changevisibility", `{"visibility":"secret"}`).Refused(t, 400, "invalid_request", "visibility")
	r.Manage(t, "POST", "/repository/acme/none/changevisibility", `{"visibility":"public"}`).Refused(t, 404, "not_found", "acme/none")
	r.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"a"}`).WantStatus(t, 201)
	r.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"a"}`).WantStatus(t, 201)
	if stars := names("starred=true"); !slices.Equal(stars, []string{"acme/a", "acme/b"}) {
		t.Errorf("stars %q", stars)
	}
	var first, starred struct {
		Repositories []struct{ Repository string }
		NextPage     string `json:"next_page"`
	}
	r.Manage(t, "GET", "/user/starred?limit=1", "").Into(t, 200, &first)
	r.Manage(t, "GET", "/user/starred?limit=1&next_page="+first.NextPage, "").Into(t, 200, &starred)
	if len(first.Repositories) != 1 || first.Repositories[0].Repository != "acme/a" || len(starred.Repositories) != 1 || starred.Repositories[0].Repository != "acme/b" {
		t.Errorf("stars %+v, then %+v", first, starred)
	}
	r.Manage(t, "DELETE", "/user/starred/acme/a", "").WantStatus(t, 204)
	if stars := names("starred=true"); !slices.Equal(stars, []string{"acme/b"}) {
		t.Errorf("stars %q", stars)
	}
	r.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"none"}`).Refused(t, 404, "not_found", "acme/none")
}

// TestQuayUserRoutes: a client that isn't logged in uses Quay's routes below /user. These
// routes must concern the namespace library.
func TestQuayUserRoutes(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "library/app", "v1", r.Simple(t, "library/app", 1, nil))
	var made struct{ UUID string }
	r.Manage(t, "POST", "/user/autoprunepolicy/", `{"method":"number_of_tags","value":10}`).Into(t, 201, &made)
	var list struct{ Policies []api.PolicyView }
	r.Manage(t, "GET", "/organization/library/autoprunepolicy/", "").Into(t, 200, &list)
	if len(list.Policies) != 1 || list.Policies[0].UUID != made.UUID {
		t.Errorf("%+v", list)
	}
	told := r.Manage(t, "GET", "/user/autoprunepolicy/"+made.UUID, "")
	r.Manage(t, "PUT", "/user/autoprunepolicy/"+made.UUID, string(told.Content)).WantStatus(t, 204)
	r.Manage(t, "DELETE", "/user/autoprunepolicy/"+made.UUID, "").WantStatus(t, 200)
	r.Manage(t, "GET", "/user/autoprunepolicy", "").Into(t, 200, &list)
	if len(list.Policies) != 0 {
		t.Errorf("%+v", list)
	}
	var logs struct{ Logs []struct{ Kind string } }
	r.Manage(t, "GET", "/user/logs", "").Into(t, 200, &logs)
	if len(logs.Logs) < 4 || logs.Logs[0].Kind != "delete_namespace_autoprune_policy" {
		t.Errorf("%+v", logs)
	}
	var quota api.QuotaView
	var own []api.QuotaView
	r.Manage(t, "POST", "/organization/library/quota", `{"limit_tags":5}`).Into(t, 201, &quota)
	r.Manage(t, "GET", "/user/quota", "").Into(t, 200, &own)
	if len(own) != 1 || own[0].ID != quota.ID {
		t.Errorf("%+v", own)
	}
}

// TestQuayUser: a client asks Quay's route /user, with and without a trailing slash, who is
// logged in. The answer must be that nobody is.
func TestQuayUser(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, path := range []string{"/user", "/user/"} {
		var who struct {
			Anonymous     bool
			Username      string
			Organizations []struct{}
		}
		r.Manage(t, "GET", path, "").Into(t, 200, &who)
		if !who.Anonymous || who.Username != "library" || who.Organizations == nil {
			t.Errorf("%s: %+v", path, who)
		}
	}
}

// TestQuayAggregateLogs: a client asks for the number of audit entries of a repository, a
// namespace or the whole registry. The API must count them by day and kind.
func TestQuayAggregateLogs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, path := range []string{"library/app", "library/app", "library/other", "acme/app"} {
		r.Put(t, path, fmt.Sprint("v", i), r.Simple(t, path, i, nil))
	}
	if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE auditlog SET time = '2024-02-03 23:30:00+00' WHERE tag = 'v1'"); err != nil {
		t.Fatal(err)
	}
	count := func(path string) map[string]int {
		var out struct {
			Aggregated []struct {
				Kind, Datetime string
				Count          int
			}
		}
		r.Manage(t, "GET", path, "").Into(t, 200, &out)
		if out.Aggregated == nil {
			t.Errorf("%s: no list", path)
		}
		got := map[string]int{}
		for _, a := range out.Aggregated {
			if !strings.HasSuffix(a.Datetime, " 00:00:00 -0000") {
				t.Errorf("%s: %+v", path, a)
			}
			got[a.Kind] += a.Count
			if strings.HasPrefix(a.Datetime, "Sat, 03 Feb 2024") {
				got["then"] += a.Count
			}
		}
		return got
	}
	for path, want := range map[string]map[string]int{
		"/repository/library/app/aggregatelogs":                                         {"push_repo": 1, "create_repo": 1},
		"/repository/library/app/aggregatelogs?starttime=02/03/2024&endtime=02/03/2024": {"push_repo": 1, "then": 1},
		"/repository/library/app/aggregatelogs?starttime=02/04/2024&endtime=02/05/2024": {},
		"/repository/library/app/aggregatelogs?from=2024-01-01&kind=push_repo":          {"push_repo": 2, "then": 1},
		"/organization/library/aggregatelogs":                                           {"push_repo": 2, "create_repo": 2, "org_create": 1},
		"/user/aggregatelogs":                                                           {"push_repo": 2, "create_repo": 2, "org_create": 1},
		"/superuser/aggregatelogs?kind=push_repo,create_repo":                           {"push_repo": 3, "create_repo": 3},
		"/organization/nothing/aggregatelogs":                                           {},
	} {
		if got := count(path); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	r.Manage(t, "GET", "/user/aggregatelogs?starttime=2024", "").Refused(t, 400, "invalid_request", "starttime")
}
