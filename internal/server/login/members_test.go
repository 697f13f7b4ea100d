package login_test

import (
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
)

// TestMembersByGroupsAreRecorded: a person logs in with other groups than before. The audit log
// must have each membership that begins or ends by that, and nothing of those that stay.
func TestMembersByGroupsAreRecorded(t *testing.T) {
	t.Parallel()
	r := closed(t, nil)
	for _, team := range []string{"devs", "ops"} {
		if _, err := r.Auth.PutTeam(t.Context(), "acme", team, auth.Reader, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Auth.SetTeamGroups(t.Context(), "acme", team, []auth.TeamGroup{{Source: auth.SourceLDAP, Name: team}}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(kind string) string {
		t.Helper()
		var text string
		err := r.DB.Pool.QueryRow(t.Context(), `
			SELECT COALESCE(string_agg(namespace || ' ' || detail::text, '; ' ORDER BY id), '') FROM auditlog WHERE kind = $1`, kind).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	entry := func(team string) string {
		return fmt.Sprintf(`acme {"team": %q, "member": "ann", "source": "ldap"}`, team)
	}
	for n, step := range []struct {
		groups       []string
		added, ended string
	}{
		{nil, "", ""},
		{[]string{"devs", "others"}, entry("devs"), ""},
		{[]string{"devs"}, entry("devs"), ""},
		{[]string{"ops"}, entry("devs") + "; " + entry("ops"), entry("devs")},
		{nil, entry("devs") + "; " + entry("ops"), entry("devs") + "; " + entry("ops")},
	} {
		if _, err := r.Auth.Provision(t.Context(), identity.Identity{Source: auth.SourceLDAP, Subject: "uid=ann", Name: "ann", Groups: step.groups}); err != nil {
			t.Fatal(err)
		}
		if added, ended := read("org_add_team_member"), read("org_remove_team_member"); added != step.added || ended != step.ended {
			t.Errorf("log-in %d: begun %s, ended %s; want %s, %s", n, added, ended, step.added, step.ended)
		}
	}
}
