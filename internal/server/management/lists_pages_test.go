package management_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// pagedElsewhere are the paged lists whose limit isn't a number of entries, with the tests of
// their pages.
var pagedElsewhere = map[string]string{
	"listUnpulledRepositories": "the limit is how many repositories a page examines: TestPullHistoryAPI",
	"getNamespaceUsage":        "a page has days beside its repositories: TestNamespaceUsage",
}

// TestPagesOfLists: a client asks each list that has more than one entry for a page of one, for the
// next page, and for more than a page may have.
func TestPagesOfLists(t *testing.T) {
	t.Parallel()
	r, values := filled(t)
	operations, s := operationsOf(t, r)
	for _, o := range operations {
		if o.answer == nil || !s.isPaged(o) || pagedElsewhere[o.id] != "" {
			continue
		}
		path := o.pathOf(values)
		first, next := pageAt(t, r, path, "limit=1")
		if len(first) != 1 || next == "" {
			t.Errorf("%s: a page of one has %d entries, and the next begins at %q", o.id, len(first), next)
			continue
		}
		second, _ := pageAt(t, r, path, "limit=1&"+next)
		if len(second) != 1 || second[0] == first[0] {
			t.Errorf("%s: after %s comes %s", o.id, first, second)
		}
		a := r.Manage(t, "GET", path+"?limit=1000000", "")
		if a.StatusCode == 400 {
			a.Refused(t, 400, "invalid_request", "limit")
		} else if all, _ := pageAt(t, r, path, "limit=1000000"); len(all) < 2 || len(all) > 1000 {
			t.Errorf("%s: a page of a million has %d entries", o.id, len(all))
		}
		r.Manage(t, "GET", path+"?limit=1&"+strings.SplitAfter(next, "=")[0]+"!x", "").WantStatus(t, cursorRefusal(o.id))
	}
}

// pathOf returns the path of a list in a registry that filled has made.
func (o operationOf) pathOf(values map[string]string) string {
	if o.id == "getUserRobotPermissions" {
		return "/user/robots/x/permissions"
	}
	path := strings.TrimPrefix(o.path, "/api/v1")
	for name, value := range values {
		path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(value))
	}
	return path
}

// cursorRefusal returns the status of the refusal of what isn't a cursor. Reporters are listed
// after any name.
func cursorRefusal(id string) int {
	switch id {
	case "listHoldReporters":
		return 200
	case "listTrash":
		return 404
	}
	return 400
}

// pageAt fetches a page of a list. It returns the entries, and the parameter for the next page.
func pageAt(t *testing.T, r *registry, path, query string) (entries []string, next string) {
	t.Helper()
	var answer map[string]json.RawMessage
	r.Manage(t, "GET", path+"?"+query, "").Into(t, 200, &answer)
	for parameter, member := range map[string]string{"next_page": "next_page", "cursor": "next"} {
		var text string
		if json.Unmarshal(answer[member], &text) == nil && text != "" {
			next = parameter + "=" + url.QueryEscape(text)
		}
	}
	for member, text := range answer {
		var list []json.RawMessage
		var named map[string]json.RawMessage
		switch {
		case json.Unmarshal(text, &list) == nil:
			for _, entry := range list {
				entries = append(entries, string(entry))
			}
		case member == "permissions" && json.Unmarshal(text, &named) == nil:
			for name := range named {
				entries = append(entries, name)
			}
		}
	}
	return entries, next
}

// filled starts a registry with all operations, in which every list has more than one entry for
// the account root, and returns the values of variables in the lists' paths.
func filled(t *testing.T) (*registry, map[string]string) {
	t.Helper()
	whole := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		o.Access = &auth.Options{AnonymousPull: true}
		o.TrashKeep = time.Hour
		if o.Management.Webhooks, err = webhook.New(webhook.Options{DB: d, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: d, Catalog: o.Catalog, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d}); err != nil {
			t.Fatal(err)
		}
		places := statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}
		if o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
	})
	whole.AddAccount(t, "root", true)
	r := whole.as("root")
	subject := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	other := r.Put(t, "acme/app", "v2", r.Simple(t, "acme/app", 2, nil))
	for i, repository := range []string{"acme/web", "acme/gone-a", "acme/gone-b", "other/app", "root/one", "root/two"} {
		r.Put(t, repository, "v1", r.Simple(t, repository, 20+i, nil))
	}
	for i := range 2 {
		d := descriptor(oci.MediaTypeImageManifest, subject, 1)
		r.Put(t, "acme/app", fmt.Sprintf("s%d", i), r.Simple(t, "acme/app", 10+i, object{"subject": d}))
	}
	for i := range 2 {
		r.Put(t, "acme/app", "gone", r.Simple(t, "acme/app", 40+i, nil))
	}
	r.Manage(t, "DELETE", "/repository/acme/app/tag/gone", "").WantStatus(t, 204)
	values := map[string]string{"orgname": "acme", "repository": "acme/app", "digest": subject.String(), "robot_shortname": "a", "teamname": "t1", "reporter": "r1"}
	r.fillAccounts(t)
	values["uuid"] = r.fillRules(t)
	for _, reporter := range []string{"r1", "r2"} {
		held := []string{subject.String(), other.String()}
		if reporter == "r2" {
			held = []string{digest("elsewhere").String()}
		}
		r.Manage(t, "PUT", "/holds/"+reporter, encode(t, object{"digests": held})).WantStatus(t, 200)
	}
	for _, name := range []string{"app", "web"} {
		r.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"`+name+`"}`).WantStatus(t, 201)
		r.Manage(t, "PUT", "/repository/acme/"+name+"/autoprune/exception", "{}").WantStatus(t, 204)
		r.Manage(t, "DELETE", "/repository/acme/gone-"+map[string]string{"app": "a", "web": "b"}[name], "").WantStatus(t, 204)
	}
	r.Exec(t, `INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date)
		SELECT id, tag, 1, now() FROM repositories, unnest(ARRAY['v1', 'v2']) tag WHERE path = 'acme/app'`)
	r.Exec(t, `INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at)
		SELECT gen_random_uuid(), id, name, 'success', now(), now() FROM top_level_namespaces WHERE name IN ('acme', 'other')`)
	measure(t, r)
	return r, values
}

// fillAccounts makes robots, teams, roles, tokens and log-ins.
func (r *registry) fillAccounts(t *testing.T) {
	t.Helper()
	made := func(method, path, body string) {
		t.Helper()
		if a := r.Manage(t, method, path, body); a.StatusCode >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, a.StatusCode, a.Content)
		}
	}
	for i, robot := range []string{"a", "b"} {
		made("PUT", "/organization/acme/robots/"+robot, "")
		made("PUT", "/user/robots/"+[]string{"x", "y"}[i], "")
		team := []string{"t1", "t2"}[i]
		made("PUT", "/organization/acme/team/"+team, `{"role":"member"}`)
		member, collaborator := []string{"alice", "bob"}[i], []string{"carol", "dave"}[i]
		r.AddAccount(t, member, false)
		r.AddAccount(t, collaborator, false)
		made("PUT", "/organization/acme/team/t1/members/"+member, "")
		made("PUT", "/organization/acme/permissions/user/"+member, `{"role":"read"}`)
		made("PUT", "/repository/acme/app/permissions/user/"+collaborator, `{"role":"read"}`)
		made("PUT", "/organization/acme/permissions/team/"+team, `{"role":"read"}`)
		made("PUT", "/repository/acme/app/permissions/team/"+team, `{"role":"read"}`)
		repository := []string{"app", "web"}[i]
		made("PUT", "/repository/acme/"+repository+"/permissions/user/acme+a", `{"role":"read"}`)
		made("PUT", "/repository/acme/"+repository+"/permissions/team/t1", `{"role":"read"}`)
		made("PUT", "/repository/root/"+[]string{"one", "two"}[i]+"/permissions/user/root+x", `{"role":"read"}`)
		made("PUT", "/organization/"+[]string{"acme", "other"}[i]+"/permissions/user/root", `{"role":"admin"}`)
		made("POST", "/user/apptoken", `{"title":"`+robot+`"}`)
		if _, err := r.Auth.Sessions().Create(t.Context(), r.account(t, "root").ID, "", robot); err != nil {
			t.Fatal(err)
		}
	}
}

// fillRules makes rules, policies that ask, quotas and webhooks. It returns the id of a webhook
// with two notices.
func (r *registry) fillRules(t *testing.T) string {
	t.Helper()
	var hook struct{ UUID string }
	for i, place := range []string{"acme", "other"} {
		for _, of := range []string{"", "/organization/acme", "/repository/acme/app"} {
			r.Manage(t, "POST", of+"/tagprotection", `{"pattern":"^v`+place+`"}`).WantStatus(t, 201)
		}
		r.Manage(t, "POST", "/organization/"+place+"/quota", `{"limit_bytes": 1000000000}`).WantStatus(t, 201)
		r.Manage(t, "POST", "/organization/acme/webhook", `{"url":"https://hooks.example.com/`+place+`","events":["push"]}`).Into(t, 201, &hook)
		var policy struct{ UUID string }
		r.Manage(t, "POST", "/organization/acme/autoprunepolicy", fmt.Sprintf(`{"method":"number_of_tags","numTags":%d,"maxDeleted":1}`, i+1)).Into(t, 201, &policy)
		r.Exec(t, `INSERT INTO autopruneasks (policy, namespace_id, version, tags, most, told)
			SELECT $1, id, 1, 2, 1, 2 FROM top_level_namespaces WHERE name = 'acme'`, policy.UUID)
		r.Exec(t, `INSERT INTO autopruneasks (policy, namespace_id, version, tags, most, told)
			SELECT $1, id, 1, 2, 1, 2 FROM top_level_namespaces WHERE name = 'other'`, uuid.NewString())
		r.Exec(t, `INSERT INTO autopruneexemptions (repository_id, tag_id, policy, version)
			SELECT repository_id, id, $1, 1 FROM tags WHERE repository_id = (SELECT id FROM repositories WHERE path = 'acme/app')`, policy.UUID)
	}
	for range 2 {
		r.Manage(t, "POST", "/organization/acme/webhook/"+hook.UUID+"/test", "").WantStatus(t, 202)
	}
	return hook.UUID
}
