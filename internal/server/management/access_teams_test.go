package management_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestTeamsAreLimited: a namespace or a team that is full takes no more teams or members, and
// those that it has can still be changed.
func TestTeamsAreLimited(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	if _, err := r.DB.Pool.Exec(t.Context(), `
		INSERT INTO teams (top_level_namespace_id, name, description)
		SELECT id, 't' || n, '' FROM top_level_namespaces, generate_series(1, 999) n WHERE name = 'acme'`); err != nil {
		t.Fatal(err)
	}
	admin.Manage(t, "PUT", "/organization/acme/team/last", `{"role":"reader"}`).WantStatus(t, 200)
	admin.Manage(t, "PUT", "/organization/acme/team/onemore", `{"role":"reader"}`).Refused(t, 400, "invalid_request", "1000 teams")
	admin.Manage(t, "PUT", "/organization/acme/team/last", `{"role":"writer"}`).WantStatus(t, 200)

	if _, err := r.DB.Pool.Exec(t.Context(), `
		WITH people AS (
			INSERT INTO accounts (name, kind, source) SELECT 'p' || n, 'user', 'local' FROM generate_series(1, 10000) n RETURNING id
		)
		INSERT INTO teammembers (team_id, account_id) SELECT t.id, p.id FROM teams t, people p WHERE t.name = 'last'`); err != nil {
		t.Fatal(err)
	}
	admin.Manage(t, "PUT", "/organization/acme/team/last/members/stranger", "").Refused(t, 400, "invalid_request", "10000 members")
	admin.Manage(t, "PUT", "/organization/acme/team/last/members/p7", "").WantStatus(t, 200)
}

// TestAdministratorKeepsItsRole: an administrator of a namespace must not lock itself out. Others
// may take its role away.
func TestAdministratorKeepsItsRole(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin, root := r.as("admin"), r.as("root")
	const own = "/organization/acme/permissions/user/admin"
	admin.Manage(t, "PUT", own, `{"role":"reader"}`).Refused(t, 409, "invalid_request", "another administrator")
	admin.Manage(t, "DELETE", own, "").Refused(t, 409, "invalid_request", "another administrator")
	admin.Manage(t, "PUT", own, `{"role":"admin"}`).WantStatus(t, 200)
	root.Manage(t, "PUT", own, `{"role":"writer"}`).WantStatus(t, 200)
	root.Manage(t, "PUT", "/organization/acme/permissions/user/root", `{"role":"admin"}`).WantStatus(t, 200)
	root.Manage(t, "DELETE", "/organization/acme/permissions/user/root", "").WantStatus(t, 204)
}

// TestForeignRobots: an answer must not tell whether another namespace has a robot of a name, nor
// who administers the registry.
func TestForeignRobots(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin, root := r.as("admin"), r.as("root")
	root.Manage(t, "PUT", "/organization/other/robots/ci", "").WantStatus(t, 201)
	var told []string
	for _, robot := range []string{"other+ci", "other+no"} {
		a := admin.Manage(t, "PUT", "/organization/acme/permissions/user/"+robot, `{"role":"reader"}`)
		a.Refused(t, 400, "invalid_request", "namespace other")
		told = append(told, strings.ReplaceAll(string(a.Content), robot, "ROBOT"))
	}
	if told[0] != told[1] {
		t.Errorf("%q", told)
	}
	admin.Manage(t, "GET", "/repository/acme/app/permissions/user/root/transitive", "").Refused(t, 404, "not_found", "no role")
}

// TestTextsForPeople: titles and descriptions are shown in terminals, so they have no characters
// that move the cursor or turn the direction of the text.
func TestTextsForPeople(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	for _, text := range []string{"\u001b[2J", "\u0000", "\u202egnp.exe", "a\rb"} {
		body := encode(t, map[string]string{"description": text})
		admin.Manage(t, "PUT", "/organization/acme/robots/ci", body).Refused(t, 400, "invalid_request", "description")
		admin.Manage(t, "PUT", "/organization/acme/team/devs", encode(t, map[string]string{"description": text, "role": "reader"})).Refused(t, 400, "invalid_request", "description")
		admin.Manage(t, "POST", "/user/apptoken", encode(t, map[string]string{"title": text})).Refused(t, 400, "invalid_request", "title")
	}
	admin.Manage(t, "PUT", "/organization/acme/robots/ci", encode(t, map[string]string{"description": "For \u202a?\n\tno: déjà vu 🚢"})).WantStatus(t, 400)
	admin.Manage(t, "PUT", "/organization/acme/robots/ci", encode(t, map[string]string{"description": "First line\n\tdéjà vu 🚢"})).WantStatus(t, 201)
}

// TestTeams: an administrator of a namespace makes a team, whose members get its role in the
// namespace and lose it with the team.
func TestTeams(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	const path, manifest = "/organization/acme/team/devs", "/v2/acme/app/manifests/v1"
	var team api.TeamView
	admin.Manage(t, "PUT", path, `{"role":"member","description":"people"}`).Into(t, 200, &team)
	if !team.NewTeam || team.Role != "member" || team.Description != "people" || team.MemberCount != 0 {
		t.Errorf("%+v", team)
	}
	admin.Manage(t, "PUT", path+"/members/stranger", "").WantStatus(t, 200)
	r.as("stranger").Do(t, "GET", manifest, "").WantStatus(t, 403)
	for given, told := range map[string]string{"reader": "reader", "writer": "creator", "creator": "creator", "maintainer": "maintainer", "administrator": "admin"} {
		admin.Manage(t, "PUT", path, `{"role":"`+given+`"}`).Into(t, 200, &team)
		if team.NewTeam || team.Role != told || team.Description != "people" || team.MemberCount != 1 {
			t.Errorf("%s: %+v", given, team)
		}
		admin.Manage(t, "PUT", path, encode(t, team)).WantStatus(t, 200)
		r.as("stranger").Do(t, "GET", manifest, "").WantStatus(t, 200)
	}
	admin.Manage(t, "PUT", path, `{"role":"admin"}`).WantStatus(t, 200)
	r.as("stranger").Manage(t, "GET", path+"/members", "").WantStatus(t, 200)
	admin.Manage(t, "PUT", path, `{"role":"owner"}`).Refused(t, 400, "invalid_request", "role")
	admin.Manage(t, "PUT", path, `{"role":"reader"}`).WantStatus(t, 200)

	admin.Manage(t, "PUT", path+"/members/nobody", "").Refused(t, 404, "not_found", "nobody")
	r.as("root").Manage(t, "PUT", "/organization/other/robots/ci", "").WantStatus(t, 201)
	admin.Manage(t, "PUT", path+"/members/other+ci", "").Refused(t, 400, "invalid_request", "namespace other")
	admin.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	admin.Manage(t, "PUT", path+"/members/acme+ci", "").WantStatus(t, 200)
	var members struct {
		Members []api.MemberView
		CanEdit bool `json:"can_edit"`
	}
	admin.Manage(t, "GET", path+"/members?includePending=true", "").Into(t, 200, &members)
	if len(members.Members) != 2 || !members.Members[0].IsRobot || members.Members[1].Name != "stranger" || !members.CanEdit {
		t.Errorf("%+v", members)
	}
	admin.Manage(t, "PUT", "/repository/acme/app/permissions/team/devs", `{"role":"write"}`).WantStatus(t, 200)
	var roles api.Permissions
	admin.Manage(t, "GET", path+"/permissions", "").Into(t, 200, &roles)
	if len(roles.Permissions) != 1 || roles.Permissions[0].Role != "write" || roles.NamespaceRole != "read" {
		t.Errorf("%+v", roles)
	}
	var namespace struct {
		Teams   map[string]api.TeamView
		Ordered []string `json:"ordered_teams"`
		IsAdmin bool     `json:"is_admin"`
	}
	admin.Manage(t, "GET", "/organization/acme", "").Into(t, 200, &namespace)
	if !namespace.IsAdmin || namespace.Teams["devs"].MemberCount != 2 || len(namespace.Ordered) != 1 {
		t.Errorf("%+v", namespace)
	}
	if a := r.as("reader").Manage(t, "GET", "/organization/acme", "").WantStatus(t, 200); strings.Contains(string(a.Content), "devs") {
		t.Errorf("a reader is told of teams: %s", a.Content)
	}
	admin.Manage(t, "DELETE", path+"/members/acme+ci", "").WantStatus(t, 204)
	admin.Manage(t, "DELETE", path, "").WantStatus(t, 204)
	r.as("stranger").Do(t, "GET", manifest, "").WantStatus(t, 403)
	admin.Manage(t, "GET", path+"/members", "").Refused(t, 404, "not_found", "devs")
}

// TestTeamSync: groups are set, in Purser's form and in Quay's, and taken away.
func TestTeamSync(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	const path = "/organization/acme/team/devs"
	admin.Manage(t, "POST", path+"/syncing", `{"group_name":"a"}`).Refused(t, 404, "not_found", "devs")
	admin.Manage(t, "PUT", path, `{"role":"reader"}`).WantStatus(t, 200)
	var team api.TeamView
	admin.Manage(t, "POST", path+"/syncing", `{"groups":[{"source":"oidc","name":"x"},{"source":"ldap","name":"y"}]}`).Into(t, 200, &team)
	if !team.IsSynced || len(team.Groups) != 2 {
		t.Errorf("%+v", team)
	}
	for body, want := range map[string]api.TeamGroup{
		`{"group_dn":"CN=Developers, ou=groups,dc=example,dc=com"}`: {Source: "ldap", Name: "cn=developers,ou=groups,dc=example,dc=com"},
		`{"groups":[{"source":"ldap","name":"Developers"}]}`:        {Source: "ldap", Name: "developers"},
		`{"group_name":"developers"}`:                               {Source: "oidc", Name: "developers"},
	} {
		team = api.TeamView{}
		if admin.Manage(t, "POST", path+"/syncing", body).Into(t, 200, &team); len(team.Groups) != 1 || team.Groups[0] != want {
			t.Errorf("%s: %+v", body, team)
		}
	}
	for body, problem := range map[string]string{
		`{}`: "at least one", `{"group_dn":"=x,y="}`: "group_dn", `{"groups":[{"source":"local","name":"x"}]}`: "source",
	} {
		admin.Manage(t, "POST", path+"/syncing", body).Refused(t, 400, "invalid_request", problem)
	}
	team = api.TeamView{}
	admin.Manage(t, "DELETE", path+"/syncing", "").Into(t, 200, &team)
	if team.IsSynced || len(team.Groups) != 0 {
		t.Errorf("%+v", team)
	}
}

// TestPermissions: roles are given, listed and taken away, in a repository and a namespace, for
// accounts and teams.
func TestPermissions(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	admin.Manage(t, "PUT", "/organization/acme/team/devs", `{"role":"member"}`).WantStatus(t, 200)
	for _, base := range []string{"/repository/acme/app/permissions", "/organization/acme/permissions"} {
		for _, who := range []string{"/user/stranger", "/team/devs"} {
			var one api.PermissionView
			for given, told := range map[string]string{"read": "read", "writer": "write", "maintain": "maintain", "administrator": "admin"} {
				admin.Manage(t, "PUT", base+who, `{"role":"`+given+`"}`).Into(t, 200, &one)
				if one.Role != told || one.Name != who[6:] {
					t.Errorf("%s %s: %+v", base, given, one)
				}
			}
			admin.Manage(t, "PUT", base+who, `{"role":"read"}`).WantStatus(t, 200)
			admin.Manage(t, "GET", base+who, "").Into(t, 200, &one)
			var all struct {
				Permissions map[string]api.PermissionView
			}
			admin.Manage(t, "GET", base+who[:5], "").Into(t, 200, &all)
			if all.Permissions[who[6:]].Role != "read" || one.Role != "read" || (one.IsRobot == nil) != (who == "/team/devs") {
				t.Errorf("%s%s: %+v %+v", base, who, one, all)
			}
			admin.Manage(t, "DELETE", base+who, "").WantStatus(t, 204)
			admin.Manage(t, "DELETE", base+who, "").Refused(t, 404, "not_found", "no role")
			admin.Manage(t, "GET", base+who, "").Refused(t, 404, "not_found", "no role")
			admin.Manage(t, "PUT", base+who, `{"role":"owner"}`).Refused(t, 400, "invalid_request", "role")
			admin.Manage(t, "PUT", base+who+"x", `{"role":"read"}`).Refused(t, 404, "not_found", who[6:]+"x")
		}
	}
	var role struct{ Permissions []struct{ Role string } }
	const transitive = "/repository/acme/app/permissions/user/%/transitive"
	for name, want := range map[string]string{"reader": "read", "maintainer": "maintain"} {
		admin.Manage(t, "GET", strings.ReplaceAll(transitive, "%", name), "").Into(t, 200, &role)
		if len(role.Permissions) != 1 || role.Permissions[0].Role != want {
			t.Errorf("%s: %+v", name, role)
		}
	}
	for _, name := range []string{"stranger", "nobody"} {
		admin.Manage(t, "GET", strings.ReplaceAll(transitive, "%", name), "").Refused(t, 404, "not_found", name)
	}
	r.as("root").Manage(t, "PUT", "/repository/acme%2Fnone/permissions/user/reader", `{"role":"read"}`).Refused(t, 404, "not_found", "acme/none")
	r.as("root").Manage(t, "GET", "/organization/none/permissions/user", "").Refused(t, 404, "not_found", "none")
}

// TestNamespaceMembers: members are people with a team or a role in the whole namespace, and
// collaborators those with roles in single repositories only.
func TestNamespaceMembers(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	r.Grant(t, "acme/app", "stranger", auth.Reader)
	r.Grant(t, "acme/app", "writer", auth.Administrator)
	admin.Manage(t, "PUT", "/organization/acme/team/devs", `{"role":"member"}`).WantStatus(t, 200)
	admin.Manage(t, "PUT", "/organization/acme/team/devs/members/reader", "").WantStatus(t, 200)
	var members struct{ Members []api.NamespaceMember }
	admin.Manage(t, "GET", "/organization/acme/members", "").Into(t, 200, &members)
	var told []string
	for _, m := range members.Members {
		told = append(told, m.Name+":"+m.Role+":"+strings.Join(m.Repositories, "+"))
		if m.Name == "reader" != (len(m.Teams) == 1) {
			t.Errorf("%+v", m)
		}
	}
	if got := strings.Join(told, " "); got != "admin:admin: maintainer:maintain: reader:read: writer:write:app" {
		t.Error(got)
	}
	var others struct{ Collaborators []api.Collaborator }
	admin.Manage(t, "GET", "/organization/acme/collaborators", "").Into(t, 200, &others)
	if len(others.Collaborators) != 1 || others.Collaborators[0].Name != "stranger" || others.Collaborators[0].Repositories[0] != "app" {
		t.Errorf("%+v", others)
	}
}

// TestEscalation: an administrator of a namespace tries to get rights beyond it.
func TestEscalation(t *testing.T) {
	t.Parallel()
	r := closed(t)
	admin := r.as("admin")
	r.as("root").Manage(t, "PUT", "/organization/other/robots/ci", "").WantStatus(t, 201)
	for _, c := range [][3]string{
		{"PUT", "/superuser/users/admin", `{"super_user":true}`},
		{"POST", "/superuser/users", `{"username":"eve","super_user":true}`},
		{"PUT", "/organization/other/permissions/user/admin", `{"role":"read"}`},
		{"PUT", "/repository/other/app/permissions/user/admin", `{"role":"read"}`},
		{"PUT", "/organization/none/permissions/user/admin", `{"role":"read"}`},
		{"PUT", "/organization/other/robots/mine", ``},
		{"POST", "/organization/other/robots/ci/regenerate", ``},
		{"PUT", "/organization/other/team/devs", `{"role":"admin"}`},
		{"POST", "/organization/other/robots/ci/federation", `[]`},
		{"GET", "/organization/other/members", ``},
	} {
		admin.Manage(t, c[0], c[1], c[2]).Refused(t, 403, "insufficient_scope", "")
	}
	for _, path := range []string{"/repository/acme/app/permissions/user/other+ci", "/organization/acme/permissions/user/other+ci"} {
		admin.Manage(t, "PUT", path, `{"role":"read"}`).Refused(t, 400, "invalid_request", "namespace other")
	}
	admin.Manage(t, "PUT", "/user", `{"super_user":true,"username":"root","email":"a@example.com"}`).WantStatus(t, 200)
	if a, err := r.Auth.Account(t.Context(), "admin"); err != nil || a.Superuser || a.Email != "a@example.com" {
		t.Errorf("%+v %v", a, err)
	}
	// An administrator of a repository gives rights there, and nowhere else.
	r.Grant(t, "acme/app", "stranger", auth.Administrator)
	stranger := r.as("stranger")
	stranger.Manage(t, "PUT", "/repository/acme/app/permissions/user/reader", `{"role":"admin"}`).WantStatus(t, 200)
	stranger.Manage(t, "PUT", "/organization/acme/permissions/user/stranger", `{"role":"read"}`).Refused(t, 403, "insufficient_scope", "")
	stranger.Manage(t, "PUT", "/organization/acme/robots/x", "").Refused(t, 403, "insufficient_scope", "")
	// A robot that administers the namespace doesn't get beyond its limits by another robot.
	var robot api.RobotView
	admin.Manage(t, "PUT", "/organization/acme/robots/boss", `{"actions":["pull","admin"]}`).Into(t, 201, &robot)
	admin.Manage(t, "PUT", "/organization/acme/permissions/user/acme+boss", `{"role":"admin"}`).WantStatus(t, 200)
	admin.Manage(t, "PUT", "/organization/acme/robots/wide", "").WantStatus(t, 201)
	boss := r.with(servertest.Basic("acme+boss", robot.Token))
	boss.Manage(t, "PATCH", "/organization/acme/robots/boss", `{"actions":null}`).Refused(t, 403, "insufficient_scope", "limits")
	boss.Manage(t, "PUT", "/organization/acme/robots/new", "").Refused(t, 403, "insufficient_scope", "limits")
	boss.Manage(t, "POST", "/organization/acme/robots/wide/regenerate", "").Refused(t, 403, "insufficient_scope", "limits")
	boss.Manage(t, "POST", "/organization/acme/robots/wide/federation", "[]").Refused(t, 403, "insufficient_scope", "limits")
	boss.Manage(t, "PUT", "/organization/acme/robots/new", `{"actions":["pull"]}`).WantStatus(t, 201)
}
