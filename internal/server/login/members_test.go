package login_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/server/servertest"
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

// TestTeamsOfOneGroup: a log-in locks all teams that have a group of the person. So only some teams of a
// namespace may have the same group, however its name is spelled, and other namespaces have their own.
func TestTeamsOfOneGroup(t *testing.T) {
	t.Parallel()
	r := closed(t, nil)
	root := r.With(servertest.As("root"))
	root.Put(t, "other/app", "v1", root.Simple(t, "other/app", 2, nil))
	set := func(namespace string, n int, group string) error {
		t.Helper()
		team := fmt.Sprintf("team%d", n)
		if _, err := r.Auth.PutTeam(t.Context(), namespace, team, auth.Reader, nil); err != nil {
			t.Fatal(err)
		}
		return r.Auth.SetTeamGroups(t.Context(), namespace, team, []auth.TeamGroup{{Source: auth.SourceLDAP, Name: group}, {Source: auth.SourceOIDC, Name: fmt.Sprint(n)}})
	}
	for n := range 20 {
		if err := set("acme", n, []string{"all", "ALL"}[n%2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := set("acme", 19, "all"); err != nil {
		t.Errorf("setting the same group again: %v", err)
	}
	err := set("acme", 20, "All")
	if err == nil || !strings.Contains(err.Error(), "20 teams of namespace acme have the group all already") {
		t.Errorf("the 21st team has the group: %v", err)
	}
	if groups, err := r.Auth.TeamGroups(t.Context(), "acme", "team20"); err != nil || len(groups) != 0 {
		t.Errorf("the refused team has %v, %v", groups, err)
	}
	if err := set("other", 0, "all"); err != nil {
		t.Errorf("a team of another namespace: %v", err)
	}
	if err := r.Auth.DeleteTeam(t.Context(), "acme", "team3"); err != nil {
		t.Fatal(err)
	}
	if err := set("acme", 20, "all"); err != nil {
		t.Errorf("after the deletion of a team: %v", err)
	}
}

// TestGroupRemovedMeanwhile: a person logs in while somebody takes the person's group from a team. The
// person isn't a member afterwards, however the two are timed.
func TestGroupRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	r := closed(t, nil)
	if _, err := r.Auth.PutTeam(t.Context(), "acme", "devs", auth.Reader, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Auth.SetTeamGroups(t.Context(), "acme", "devs", []auth.TeamGroup{{Source: auth.SourceLDAP, Name: "devs"}}); err != nil {
		t.Fatal(err)
	}
	ann := identity.Identity{Source: auth.SourceLDAP, Subject: "uid=ann", Name: "ann"}
	if _, err := r.Auth.Provision(t.Context(), ann); err != nil { // the account is there
		t.Fatal(err)
	}
	ann.Groups = []string{"devs"}
	tx, err := r.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))                                                                            //nolint:errcheck // it is committed, or the test has failed
	for _, sql := range []string{"SELECT FROM teams FOR UPDATE", "DELETE FROM teammembers WHERE synced", "DELETE FROM teamgroups"} { // as SetTeamGroups
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := r.Auth.Provision(t.Context(), ann)
		done <- err
	}()
	servertest.Eventually(t, "the log-in waits for the team", func() (waits bool) {
		err := r.DB.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", tx.Conn().PgConn().PID()).Scan(&waits)
		return err == nil && waits
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	members, _, err := r.Auth.Members(t.Context(), "acme", "devs", "", 10)
	if err != nil || len(members) != 0 {
		t.Errorf("members: %+v, %v", members, err)
	}
}
