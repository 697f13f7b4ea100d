package ui_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOverviewShowsOwnUse: whoever doesn't operate the registry sees the pulls of the namespaces and
// repositories in which the account has a role, each pull once, and the pushes to the namespaces that
// the account maintains. The account's own namespace doesn't exist here, and says nothing.
func TestOverviewShowsOwnUse(t *testing.T) {
	t.Parallel()
	s, stats := counted(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	s.AddAccount(t, "root", true)
	root := s.as("root")
	for i, repository := range []string{"acme/app", "tools/app", "other/app", "open/app"} {
		s.pulls(t, stats, repository, root.Put(t, repository, "v1", root.Simple(t, repository, i+1, nil)))
	}
	root.Manage(t, "POST", "/repository/open/app/changevisibility", `{"visibility": "public"}`).WantStatus(t, 200)
	for _, name := range []string{"ann", "max", "rob", "eve"} {
		s.AddAccount(t, name, false)
	}
	s.Grant(t, "acme", "ann", auth.Administrator)
	s.Grant(t, "acme/app", "ann", auth.Writer) // nothing is counted twice
	s.Grant(t, "tools", "ann", auth.Maintainer)
	s.Grant(t, "acme", "max", auth.Maintainer)
	s.Grant(t, "other/app", "rob", auth.Reader)
	s.as("ann").open(t, "/ui/", "3,446 pulls in 30 days", "Pushes to acme, tools<", "2 pushes in 30 days")
	s.as("max").open(t, "/ui/", "1,723 pulls in 30 days", "Pushes to acme<", "1 push in 30 days")
	lacks(t, s.as("rob").open(t, "/ui/", "1,723 pulls in 30 days"), "Pushes")
	lacks(t, s.as("eve").open(t, "/ui/", "0 pulls in 30 days"), "Pushes")
	root.open(t, "/ui/", "6,892 pulls in 30 days")
	s.Do(t, "GET", "/api/v1/user/pull_statistics/history", "").WantStatus(t, 401)
}
