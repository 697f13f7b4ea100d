package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// setting returns the value of a variable in a registry's environment.
func setting(r *registry, name string) string {
	for _, entry := range r.opt.env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	r.t.Fatalf("%s isn't set", name)
	return ""
}

// publish lets everybody pull from a repository. It uses the database directly.
func publish(t *testing.T, r *registry, repo string) {
	t.Helper()
	mustExec(t, openPool(t, setting(r, "PURSER_DATABASE_MAIN")), `UPDATE repositories SET is_public = true WHERE path = $1`, repo)
}

// TestClientsListRepositories: clients that know the administrator's password list all
// repositories, also those that send a password only when they are asked for it. Clients that know
// none list what is public, and a public repository's tags.
func TestClientsListRepositories(t *testing.T) {
	r, _ := startClosed(t)
	dir := writeImage(t, newImage(t, 1, 1<<10), "v1")
	const public, private = "open/app", "acme/app"
	first := craneAccess(t, r, dir)
	wants(t, "admin logs in", first.login("admin", accountPassword))
	wants(t, "admin pushes", first.push(public, "v1"))
	wants(t, "admin pushes", first.push(private, "v1"))
	publish(t, r, public)
	for name, start := range map[string]func(t *testing.T, r *registry, dir string) accessClient{
		"crane": craneAccess, "regctl": regctlAccess, "oras-go": orasAccess,
	} {
		t.Run(name, func(t *testing.T) {
			nobody := start(t, r, dir)
			eventually(t, 30*time.Second, func() error { return nobody.pull(public, "v1") })
			if got, err := nobody.catalog(); err != nil || !slices.Equal(got, []string{public}) {
				t.Errorf("without an account: %q (%v), want %s", got, err, public)
			}
			if got, err := nobody.tags(public); err != nil || !slices.Equal(got, []string{"v1"}) {
				t.Errorf("tags of %s without an account: %q (%v)", public, got, err)
			}
			admin := start(t, r, dir)
			wants(t, "admin logs in", admin.login("admin", accountPassword))
			if got, err := admin.catalog(); err != nil || !slices.Contains(got, public) || !slices.Contains(got, private) {
				t.Errorf("the administrator lists %q (%v), want %s and %s among them", got, err, public, private)
			}
		})
	}
}
