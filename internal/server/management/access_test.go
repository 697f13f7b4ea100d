package management_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// closed starts a registry with access control. root administers it; reader, writer, maintainer
// and admin have that role in the namespace acme, which has the repository acme/app with the tag
// v1; stranger has none. The namespace other exists too.
func closed(t *testing.T) *registry {
	t.Helper()
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	root.Put(t, "other/app", "v1", root.Simple(t, "other/app", 1, nil))
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "writer": auth.Writer, "maintainer": auth.Maintainer, "admin": auth.Administrator} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	r.AddAccount(t, "stranger", false)
	return r
}

// as returns the registry, to which requests are sent by an account.
func (r *registry) as(name string) *registry { return r.with(servertest.As(name)) }

func (r *registry) with(headers []string) *registry { return &registry{r.With(headers)} }

// TestAccessOfRoutes: each role calls each operation on access. An operation must refuse all
// roles below the one that it needs, before it looks at anything else.
func TestAccessOfRoutes(t *testing.T) {
	t.Parallel()
	r := closed(t)
	administer := []string{"root", "admin"}
	operate := []string{"root"}
	for _, c := range []struct {
		method, path, body string
		allowed            []string
	}{
		{"GET", "/organization/acme/robots", "", administer},
		{"GET", "/organization/acme/robots/none", "", administer},
		{"PUT", "/organization/acme/robots/INVALID", "{}", administer},
		{"PATCH", "/organization/acme/robots/none", "{}", administer},
		{"DELETE", "/organization/acme/robots/none", "", administer},
		{"POST", "/organization/acme/robots/none/regenerate", "", administer},
		{"GET", "/organization/acme/robots/none/permissions", "", administer},
		{"GET", "/organization/acme/robots/none/federation", "", administer},
		{"POST", "/organization/acme/robots/none/federation", "[]", administer},
		{"DELETE", "/organization/acme/robots/none/federation", "", administer},
		{"PUT", "/organization/acme/team/INVALID", `{"role":"member"}`, administer},
		{"DELETE", "/organization/acme/team/none", "", administer},
		{"GET", "/organization/acme/team/none/members", "", administer},
		{"PUT", "/organization/acme/team/none/members/admin", "", administer},
		{"DELETE", "/organization/acme/team/none/members/admin", "", administer},
		{"GET", "/organization/acme/team/none/permissions", "", administer},
		{"POST", "/organization/acme/team/none/syncing", `{"group_dn":"cn=a,dc=b"}`, administer},
		{"DELETE", "/organization/acme/team/none/syncing", "", administer},
		{"GET", "/organization/acme/members", "", administer},
		{"GET", "/organization/acme/collaborators", "", administer},
		{"GET", "/repository/acme/app/permissions/user", "", administer},
		{"GET", "/repository/acme/app/permissions/user/none", "", administer},
		{"GET", "/repository/acme/app/permissions/user/none/transitive", "", administer},
		{"PUT", "/repository/acme/app/permissions/user/none", `{"role":"admin"}`, administer},
		{"DELETE", "/repository/acme/app/permissions/user/none", "", administer},
		{"GET", "/repository/acme/app/permissions/team", "", administer},
		{"GET", "/repository/acme/app/permissions/team/none", "", administer},
		{"PUT", "/repository/acme/app/permissions/team/none", `{"role":"admin"}`, administer},
		{"DELETE", "/repository/acme/app/permissions/team/none", "", administer},
		{"GET", "/organization/acme/permissions/user", "", administer},
		{"GET", "/organization/acme/permissions/user/none", "", administer},
		{"PUT", "/organization/acme/permissions/user/none", `{"role":"admin"}`, administer},
		{"DELETE", "/organization/acme/permissions/user/none", "", administer},
		{"GET", "/organization/acme/permissions/team", "", administer},
		{"PUT", "/organization/acme/permissions/team/none", `{"role":"admin"}`, administer},
		{"DELETE", "/organization/acme/permissions/team/none", "", administer},
		{"GET", "/superuser/users", "", operate},
		{"POST", "/superuser/users", `{"username":"INVALID"}`, operate},
		{"GET", "/superuser/users/reader", "", operate},
		{"PUT", "/superuser/users/none", `{"super_user":true}`, operate},
		{"DELETE", "/superuser/users/none", "", operate},
		{"POST", "/superuser/users/none/revoke", "", operate},
		{"POST", "/superuser/users/none/rebind", "", operate},
		{"POST", "/superuser/tokenkeys/rotate", "", operate},
	} {
		for _, name := range []string{"root", "admin", "maintainer", "writer", "reader", "stranger"} {
			a := r.as(name).Manage(t, c.method, c.path, c.body)
			refused := a.StatusCode == 403
			if want := !strings.Contains(strings.Join(c.allowed, " "), name); refused != want || a.StatusCode == 401 || a.StatusCode >= 500 {
				t.Errorf("%s %s by %s: %d %s", c.method, c.path, name, a.StatusCode, a.Content)
			}
		}
		r.Manage(t, c.method, c.path, c.body).Refused(t, 401, "invalid_token", "")
		r.with(servertest.Bearer("purser_pat_wrong")).Manage(t, c.method, c.path, c.body).Refused(t, 401, "invalid_token", "wrong")
	}
	for _, path := range []string{"/user/apptoken", "/user/sessions", "/user/robots"} {
		r.Manage(t, "GET", path, "").Refused(t, 401, "invalid_token", "")
	}
}

// TestRobots: an administrator of a namespace makes a robot, gives it a role, limits it, gives it
// a new secret and deletes it.
func TestRobots(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	const path, manifest = "/organization/acme/robots/ci", "/v2/acme/app/manifests/v1"
	var made, again, told api.RobotView
	a := admin.Manage(t, "PUT", path, `{"description":"builds","unstructured_metadata":{"a":1},"actions":["pull"]}`)
	if a.Into(t, 201, &made); made.Name != "acme+ci" || !strings.HasPrefix(made.Token, "purser_robot_") || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%+v %v", made, a.Header)
	}
	admin.Manage(t, "PUT", path, `{}`).Refused(t, 409, "invalid_request", "already")
	robot := func(secret string) []string { return servertest.Basic("acme+ci", secret) }
	r.Do(t, "GET", manifest, "", robot(made.Token)...).WantStatus(t, 403)
	admin.Manage(t, "PUT", "/repository/acme/app/permissions/user/acme+ci", `{"role":"write"}`).WantStatus(t, 200)
	r.Do(t, "GET", manifest, "", robot(made.Token)...).WantStatus(t, 200)
	r.Do(t, "PUT", "/v2/acme/app/manifests/v2", "{}", robot(made.Token)...).WantStatus(t, 403)

	admin.Manage(t, "PATCH", path, `{"repositories":["acme/other"]}`).Into(t, 200, &told)
	if told.Description != "builds" || len(told.Actions) != 1 || len(told.Repositories) != 1 || told.Token != "" || len(told.Secrets) != 1 {
		t.Errorf("%+v", told)
	}
	r.Do(t, "GET", manifest, "", robot(made.Token)...).WantStatus(t, 403)
	told = api.RobotView{}
	admin.Manage(t, "PATCH", path, `{"repositories":null,"actions":null}`).Into(t, 200, &told)
	if told.Repositories != nil || told.Actions != nil {
		t.Errorf("%+v", told)
	}
	r.Do(t, "GET", manifest, "", robot(made.Token)...).WantStatus(t, 200)
	admin.Manage(t, "PATCH", path, `{"enabled":false}`).WantStatus(t, 200)
	r.Do(t, "GET", manifest, "", robot(made.Token)...).WantStatus(t, 401)
	admin.Manage(t, "PATCH", path, `{"enabled":true}`).WantStatus(t, 200)
	admin.Manage(t, "PATCH", path, `{"actions":["fly"]}`).Refused(t, 400, "invalid_request", "fly")
	admin.Manage(t, "PUT", "/organization/acme/robots/b", `{"repositories":["ACME"]}`).Refused(t, 400, "invalid_request", "ACME")
	admin.Manage(t, "PUT", "/organization/acme/robots/b", `{"expires_at":"2001-01-01T00:00:00Z"}`).Refused(t, 400, "invalid_request", "future")
	admin.Manage(t, "PUT", "/organization/acme/robots/b", `{"expires":"2101-01-01T00:00:00Z"}`).Refused(t, 400, "invalid_request", "expires")

	admin.Manage(t, "POST", path+"/regenerate", `{"overlap":600}`).Into(t, 200, &again)
	for _, secret := range []string{made.Token, again.Token} {
		r.Do(t, "GET", manifest, "", robot(secret)...).WantStatus(t, 200)
	}
	admin.Manage(t, "POST", path+"/regenerate", "").Into(t, 200, &told)
	r.Do(t, "GET", manifest, "", robot(again.Token)...).WantStatus(t, 401)
	r.Do(t, "GET", manifest, "", robot(told.Token)...).WantStatus(t, 200)
	// The secret is told even if the others can't be read by then.
	r.Exec(t, "ALTER TABLE credentials RENAME last_used_at TO moved")
	admin.Manage(t, "POST", path+"/regenerate", "").Into(t, 200, &told)
	r.Exec(t, "ALTER TABLE credentials RENAME moved TO last_used_at")
	r.Do(t, "GET", manifest, "", robot(told.Token)...).WantStatus(t, 200)

	var roles api.Permissions
	admin.Manage(t, "GET", path+"/permissions", "").Into(t, 200, &roles)
	if len(roles.Permissions) != 1 || roles.Permissions[0].Repository.Name != "app" || roles.Permissions[0].Role != "write" || roles.NamespaceRole != "" {
		t.Errorf("%+v", roles)
	}
	var list struct{ Robots []api.RobotView }
	admin.Manage(t, "GET", "/organization/acme/robots?permissions=true&token=false", "").Into(t, 200, &list)
	if len(list.Robots) != 1 || list.Robots[0].Token != "" {
		t.Errorf("%+v", list)
	}
	admin.Manage(t, "DELETE", path, "").WantStatus(t, 204)
	r.Do(t, "GET", manifest, "", robot(told.Token)...).WantStatus(t, 401)
	admin.Manage(t, "GET", path, "").Refused(t, 404, "not_found", "acme\\+ci")
}

// TestOwnRobots: an account makes robots in the namespace with its own name.
func TestOwnRobots(t *testing.T) {
	t.Parallel()
	r := closed(t)
	r.as("admin").Manage(t, "GET", "/user/robots", "").Refused(t, 403, "insufficient_scope", "namespace admin")
	r.as("root").Manage(t, "POST", "/organization", `{"name":"admin"}`).WantStatus(t, 201)
	r.Grant(t, "admin", "admin", auth.Administrator)
	admin := r.as("admin")
	var made api.RobotView
	admin.Manage(t, "PUT", "/user/robots/mine", "").Into(t, 201, &made)
	if made.Name != "admin+mine" {
		t.Errorf("%+v", made)
	}
	admin.Manage(t, "GET", "/user/robots/mine", "").WantStatus(t, 200)
	admin.Manage(t, "POST", "/user/robots/mine/regenerate", "").WantStatus(t, 200)
	admin.Manage(t, "DELETE", "/user/robots/mine", "").WantStatus(t, 204)
}

// TestFederation: rules are checked and shown, and replace each other.
func TestFederation(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	const path = "/organization/acme/robots/ci/federation"
	admin.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	const github = `"issuer":"https://token.actions.githubusercontent.com"`
	admin.Manage(t, "POST", path, `[{`+github+`,"subject":"repo:acme/app:**"}]`).Refused(t, 400, "invalid_request", "audience")
	admin.Manage(t, "POST", path, `[{`+github+`,"subject":"repo:*/app:**","audience":"purser"}]`).Refused(t, 400, "invalid_request", "anybody")
	admin.Manage(t, "POST", path, `[{`+github+`,"subject":"a","claims":{"sub":"b"},"audience":"purser"}]`).Refused(t, 400, "invalid_request", "differ")
	var rules []api.FederationRule
	admin.Manage(t, "POST", path, `[{`+github+`,"subject":"repo:acme/app:**","audience":"purser","claims":{"ref":"refs/heads/main"}}]`).Into(t, 200, &rules)
	admin.Manage(t, "GET", path, "").Into(t, 200, &rules)
	if len(rules) != 1 || rules[0].Subject != "repo:acme/app:**" || len(rules[0].Claims) != 1 || rules[0].Audience != "purser" {
		t.Errorf("%+v", rules)
	}
	admin.Manage(t, "POST", path, encode(t, rules)).WantStatus(t, 200)
	admin.Manage(t, "DELETE", path, "").WantStatus(t, 204)
	admin.Manage(t, "GET", path, "").Into(t, 200, &rules)
	if len(rules) != 0 {
		t.Errorf("%+v", rules)
	}
}

// TestFederationReplaces: a client that names the rules it has seen replaces no others. Of two that change the
// same rules at once, one is refused.
func TestFederationReplaces(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	const path = "/organization/acme/robots/ci/federation"
	admin.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	rule := func(subject string) string {
		return `{"issuer":"https://gitlab.com","audience":"purser","subject":"project_path:acme/` + subject + `:**"}`
	}
	var rules api.FederationRules
	admin.Manage(t, "POST", path+"?replaces=", "["+rule("a")+"]").Into(t, 200, &rules)
	admin.Manage(t, "POST", path+"?replaces=", "["+rule("b")+"]").Refused(t, 409, "invalid_request", "meanwhile")
	seen := rules.Seen().Value
	admin.Manage(t, "POST", path+"?replaces="+seen, "["+rule("a")+","+rule("b")+"]").Into(t, 200, &rules)
	admin.Manage(t, "POST", path+"?replaces="+seen, "[]").Refused(t, 409, "invalid_request", "meanwhile")
	admin.Manage(t, "POST", path+"?replaces=x", "[]").Refused(t, 400, "invalid_request", "not a UUID")
	first, second, _ := strings.Cut(rules.Seen().Value, ",")
	admin.Manage(t, "POST", path+"?replaces="+first, "[]").Refused(t, 409, "invalid_request", "meanwhile")
	admin.Manage(t, "POST", path+"?replaces="+first+","+first, "[]").Refused(t, 409, "invalid_request", "meanwhile")

	var wait sync.WaitGroup
	var done atomic.Int64
	for range 8 {
		wait.Go(func() {
			answer := admin.Manage(t, "POST", path+"?replaces="+second+","+first, "["+rule("c")+"]")
			if answer.StatusCode == 200 {
				done.Add(1)
			}
		})
	}
	wait.Wait()
	if n := done.Load(); n != 1 {
		t.Errorf("%d of the requests at once were obeyed", n)
	}
	admin.Manage(t, "POST", path, "[]").WantStatus(t, 200) // without the parameter, whatever there is
}

// TestRobotPages: a list of robots has pages, also for clients that ask for no limit.
func TestRobotPages(t *testing.T) {
	t.Parallel()
	r := closed(t)
	for i := range 501 {
		if _, err := r.DB.Pool.Exec(t.Context(), `INSERT INTO accounts (name, kind, top_level_namespace_id, description)
			SELECT $1, 'robot', id, '' FROM top_level_namespaces WHERE name = 'acme'`, fmt.Sprintf("acme+r%03d", i)); err != nil {
			t.Fatal(err)
		}
	}
	admin := r.as("admin")
	for query, want := range map[string]struct{ pages, robots int }{
		"": {2, 501}, "limit=0": {2, 501}, "limit=10000": {2, 501}, "limit=200": {3, 501}, "contains=r49": {1, 10}, "contains=r49&limit=3": {4, 10},
	} {
		var names []string
		pages := 0
		for next := ""; pages == 0 || next != ""; pages++ {
			var out struct {
				Robots   []api.RobotView
				NextPage string `json:"next_page"`
			}
			admin.Manage(t, "GET", "/organization/acme/robots?"+query+"&next_page="+url.QueryEscape(next), "").Into(t, 200, &out)
			for _, robot := range out.Robots {
				names = append(names, robot.Name)
			}
			next = out.NextPage
		}
		if pages != want.pages || len(names) != want.robots || !slices.IsSorted(names) || len(slices.Compact(names)) != want.robots {
			t.Errorf("%q: %d robots in %d pages, want %+v", query, len(names), pages, want)
		}
	}
	admin.Manage(t, "GET", "/organization/acme/robots?next_page=x", "").Refused(t, 400, "invalid_request", "next_page")
}

// TestTokens: a person makes a token, uses it and revokes it. A token makes only tokens with no
// more rights and no longer time than its own.
func TestTokens(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	var made, child api.TokenAnswer
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	admin.Manage(t, "POST", "/user/apptoken", `{"title":"a","actions":["pull","admin"],"expires_at":"`+end.Format(time.RFC3339)+`"}`).Into(t, 200, &made)
	token := r.with(servertest.Bearer(made.Token.Code))
	token.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("admin", made.Token.Code)...).WantStatus(t, 200)
	token.Manage(t, "POST", "/user/apptoken", `{"title":"b"}`).Into(t, 200, &child)
	if len(child.Token.Actions) != 2 || child.Token.ExpiresAt == nil || !child.Token.ExpiresAt.Equal(end) {
		t.Errorf("%+v", child)
	}
	for body, problem := range map[string]string{
		`{"title":"b","actions":["push"]}`:                       "limits",
		`{"title":"b","actions":["pull","admin","operate"]}`:     "limits",
		`{"title":"b","expires_at":"2101-01-01T00:00:00Z"}`:      "ends at",
		`{"title":"b","repositories":["acme/app"],"actions":[]}`: "",
	} {
		a := token.Manage(t, "POST", "/user/apptoken", body)
		if problem == "" {
			a.WantStatus(t, 200)
		} else {
			a.Refused(t, 403, "insufficient_scope", problem)
		}
	}
	token.Manage(t, "PUT", "/organization/acme/robots/ci", "").Refused(t, 403, "insufficient_scope", "limits")
	token.Manage(t, "PUT", "/organization/acme/robots/ci", `{"actions":["pull"]}`).WantStatus(t, 201)
	token.Manage(t, "PATCH", "/organization/acme/robots/ci", `{"actions":null}`).Refused(t, 403, "insufficient_scope", "limits")

	var list struct{ Tokens []api.TokenView }
	admin.Manage(t, "GET", "/user/apptoken", "").Into(t, 200, &list)
	if len(list.Tokens) != 3 || list.Tokens[0].Code != "" {
		t.Errorf("%+v", list)
	}
	admin.Manage(t, "GET", "/user/apptoken/"+made.Token.UUID, "").WantStatus(t, 200)
	r.as("root").Manage(t, "GET", "/user/apptoken/"+made.Token.UUID, "").Refused(t, 404, "not_found", "no token")
	r.as("root").Manage(t, "DELETE", "/user/apptoken/"+made.Token.UUID, "").Refused(t, 404, "not_found", "no token")
	admin.Manage(t, "DELETE", "/user/apptoken/"+made.Token.UUID, "").WantStatus(t, 204)
	token.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")

	var pull api.TokenAnswer
	admin.Manage(t, "POST", "/user/apptoken", `{"title":"p","actions":["pull"]}`).Into(t, 200, &pull)
	r.with(servertest.Bearer(pull.Token.Code)).Manage(t, "POST", "/user/apptoken", `{"title":"b"}`).Refused(t, 403, "insufficient_scope", "")
	var robot api.RobotView
	admin.Manage(t, "PUT", "/organization/acme/robots/bot", "").Into(t, 201, &robot)
	r.with(servertest.Basic("acme+bot", robot.Token)).Manage(t, "POST", "/user/apptoken", `{"title":"b"}`).Refused(t, 403, "insufficient_scope", "robot")
}
