package management_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestNameUsedAgain: a namespace is deleted, and somebody else makes one under its name. The new
// one's administrator is shown nothing of the old one, neither in the audit log nor among runs. Who
// operates the registry sees both.
func TestNameUsedAgain(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		var err error
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: pool, Catalog: o.Catalog, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		o.Access = &auth.Options{}
	})
	r.Listen(t)
	for _, name := range []string{"root", "admin", "stranger"} {
		r.AddAccount(t, name, name == "root")
	}
	root := r.as("root")
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	r.Grant(t, "acme", "admin", auth.Administrator)
	const run = "5c1a4a8e-7a1f-4a5b-9a57-0d4c7a3ab001"
	r.as("admin").Manage(t, "POST", "/repository/acme/app/changevisibility", `{"visibility":"public"}`).WantStatus(t, 200)
	r.Exec(t, `INSERT INTO autopruneruns (id, namespace_id, namespace, state)
		SELECT $1, id, name, 'success' FROM top_level_namespaces WHERE name = 'acme'`, run)
	old := func(name string) (seen []string) {
		t.Helper()
		for _, path := range []string{"/organization/acme/logs", "/repository/acme/app/logs", "/organization/acme/logs/export", "/autoprune/runs?namespace=acme"} {
			a := r.as(name).Manage(t, "GET", path, "").WantStatus(t, 200)
			if strings.Contains(string(a.Content), "visibility") || strings.Contains(string(a.Content), run) {
				seen = append(seen, path)
			}
		}
		if a := r.as(name).Manage(t, "GET", "/autoprune/runs/"+run, ""); a.StatusCode == 200 {
			seen = append(seen, "run")
		}
		return seen
	}
	if seen := old("admin"); len(seen) != 5 {
		t.Errorf("before, its administrator sees only %q", seen)
	}
	r.as("root").Manage(t, "DELETE", "/organization/acme", "").WantStatus(t, 204)
	r.as("root").Manage(t, "POST", "/organization/", `{"name":"acme"}`).WantStatus(t, 201)
	r.Grant(t, "acme", "stranger", auth.Administrator)
	r.Exec(t, "UPDATE top_level_namespaces SET purge_after = now() WHERE deleted_at IS NOT NULL")
	if _, err := r.Trash.PurgeExpired(t.Context()); err != nil { // its entries are later than the new namespace
		t.Fatal(err)
	}
	if seen := old("stranger"); len(seen) > 0 {
		t.Errorf("the new administrator sees the old namespace in %q", seen)
	}
	a := r.as("stranger").Manage(t, "GET", "/organization/acme/logs", "").WantStatus(t, 200)
	if text := string(a.Content); strings.Contains(text, "org_purge") || strings.Contains(text, "org_delete") || !strings.Contains(text, "org_create") {
		t.Errorf("the new namespace's log: %s", text)
	}
	if seen := old("root"); len(seen) != 5 {
		t.Errorf("who operates the registry sees only %q", seen)
	}
}
