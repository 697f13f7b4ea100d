package ui_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestTeamPage: the page of a team gives and takes roles in single repositories, and sets the groups that
// decide who is in the team. A page that was opened before somebody else changed the groups changes none.
func TestTeamPage(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	const teams, team = "/ui/namespaces/acme/-/teams", "/ui/namespaces/acme/-/teams/devs"
	ann.send(t, teams, url.Values{"do": {"create"}, "team": {"devs"}, "role": {"creator"}}, `href="`+team+`"`)
	ann.send(t, teams, url.Values{"do": {"add"}, "team": {"devs"}, "member": {"bob"}}, "bob is a member")
	content := ann.open(t, team, "the whole namespace", ">writer<", `href="`+teams+`?q=devs"`)
	lacks(t, content, `value="take"`, "End the synchronisation", `<option value="namespace"`)
	ann.send(t, team, url.Values{"do": {"give"}, "role": {"admin"}, "where": {"repository"}, "repository": {"acme/app"}}, "The team has the role", ">acme/app</a>", ">administrator<")
	if role, err := s.Auth.RoleIn(t.Context(), "bob", auth.OfRepository("acme/app")); err != nil || role != auth.Administrator {
		t.Errorf("bob has the role %v, %v", role, err)
	}
	ann.post(t, 400, team, url.Values{"do": {"give"}, "role": {"read"}, "where": {"repository"}, "repository": {"other/app"}}, "Name a repository of this namespace", `value="other/app"`)
	lacks(t, ann.send(t, team, url.Values{"do": {"take"}, "where": {"repository"}, "repository": {"acme/app"}}, "was taken away"), ">acme/app</a>")

	groups := func(want string) {
		t.Helper()
		var list api.MemberList
		ann.Manage(t, "GET", "/organization/acme/team/devs/members", "").Into(t, 200, &list)
		got := ""
		if list.Synced != nil {
			got = fmt.Sprint(list.Synced.Groups)
		}
		if got != want {
			t.Errorf("the groups are %q, want %q", got, want)
		}
	}
	form := func(more ...string) url.Values {
		return merge(merge(formAfter(t, ann.open(t, team), `id="groups"`), "do", "sync"), more...)
	}
	ann.post(t, 400, team, form("oidc", " \n"), "Name a group")
	stale := form("ldap", "cn=mine")
	ann.send(t, team, form("oidc", " devs <1>\r\n\r\nops\ndevs <1>", "ldap", ""), "The groups were saved", "devs &lt;1&gt;\nops</textarea>")
	groups("[{oidc devs <1>} {oidc ops}]")
	ann.open(t, teams, "by groups")
	ann.post(t, 409, team, stale, "changed meanwhile", "cn=mine</textarea>", "Now:")
	groups("[{oidc devs <1>} {oidc ops}]")
	ann.send(t, team, form("oidc", "", "ldap", "Admins"), "The groups were saved")
	groups("[{ldap admins}]")
	ann.post(t, 400, team, form("oidc", strings.Repeat("x\n", 1)+strings.Repeat("y", 1100)), `role="alert"`)
	many := ""
	for i := range 101 {
		many += fmt.Sprintln("group", i)
	}
	ann.post(t, 400, team, form("oidc", many), `role="alert"`)
	groups("[{ldap admins}]")
	lacks(t, ann.send(t, team, url.Values{"do": {"unsync"}}, "No group decides"), "End the synchronisation", ">admins")
	groups("")
	ann.post(t, 400, team, url.Values{"do": {"dance"}}, `role="alert"`)
	s.as("bob").post(t, 403, team, url.Values{"do": {"sync"}, "oidc": {"x"}})
	s.Do(t, "GET", team, "", servertest.As("bob")...).WantStatus(t, 403)
	ann.Do(t, "GET", teams+"/none", "").WantStatus(t, 404)
}
