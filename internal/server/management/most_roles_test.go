package management_test

import (
	"fmt"
	"testing"
)

// TestMostRolesOfNamespace: a namespace with all its repositories has a limit on roles, and so does
// an account or a team in it, so that neither lists of one account's rights nor those of a namespace grow
// with the number of repositories.
func TestMostRolesOfNamespace(t *testing.T) {
	t.Parallel()
	r := fewAllowed(t, 1)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/r' || i
		FROM top_level_namespaces, generate_series(1, 110) i WHERE name = 'acme'`)
	for i := range 2 {
		r.AddAccount(t, fmt.Sprintf("p%d", i), false)
	}
	r.Manage(t, "PUT", "/organization/acme/team/dev", `{"role":"member"}`).WantStatus(t, 200)
	give := func(who string, repository int) answer {
		return r.Manage(t, "PUT", fmt.Sprintf("/repository/acme/r%d/permissions/%s", repository, who), `{"role":"read"}`)
	}
	for i, who := range []string{"user/p0", "team/dev"} {
		for n := range 10 {
			give(who, 10*i+n+1).WantStatus(t, 200)
		}
		give(who, 30).Refused(t, 400, "invalid_request", "an account or a team.* may have 10 .*limits.permissions")
		give(who, 10*i+1).WantStatus(t, 200) // it is there already
	}
	// As many accounts as take up the rest of the namespace's places.
	r.Exec(t, `INSERT INTO accounts (name, kind, source) SELECT 'q' || i, 'user', 'local' FROM generate_series(1, 80) i`)
	r.Exec(t, `INSERT INTO grants (top_level_namespace_id, repository_id, account_id, role)
		SELECT r.top_level_namespace_id, r.id, a.id, 'reader' FROM generate_series(1, 80) i
		JOIN accounts a ON a.name = 'q' || i JOIN repositories r ON r.path = 'acme/r' || i + 20`)
	give("user/p1", 109).Refused(t, 400, "invalid_request", "with its repositories may have 100 .*limits.permissions")
	// The limit on roles in repositories is used up, and the namespace's administrators can still give
	// a role in the namespace itself.
	r.Manage(t, "PUT", "/organization/acme/permissions/user/p1", `{"role":"read"}`).WantStatus(t, 200)
	r.Manage(t, "DELETE", "/organization/acme/permissions/user/p1", "").WantStatus(t, 204)
	r.Manage(t, "DELETE", "/repository/acme/r1/permissions/user/p0", "").WantStatus(t, 204)
	give("user/p1", 109).WantStatus(t, 200)
}
