package management_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/usage"
)

// TestUsage: operators alone see sums over namespaces, of the last pass that has ended, without what was
// deleted since.
func TestUsage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Manage(t, "GET", "/usage", "").Refused(t, 503, "unavailable", "haven't been measured")
	r.Exec(t, "INSERT INTO top_level_namespaces (name) VALUES ('usage1'), ('usage2')")
	r.Exec(t, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, name || '/' || x FROM top_level_namespaces, unnest(ARRAY['a', 'b']) x WHERE starts_with(name, 'usage')")
	r.Exec(t, `INSERT INTO blobs (digest, size, storage_key) VALUES ('\x01', 1000, 'u1'), ('\x02', 200, 'u2'), ('\x03', 7, 'u3')`)
	r.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) SELECT top_level_namespace_id, id, '\x01'::bytea FROM repositories WHERE path IN ('usage1/a', 'usage2/a', 'usage2/b')`)
	r.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest) SELECT top_level_namespace_id, id, '\x02'::bytea FROM repositories WHERE path = 'usage1/b'`)
	d := dbtest.Open(t, r.DSN)
	m, err := usage.New(usage.Options{DB: d})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = m.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var got api.RegistryUsage
	r.Manage(t, "GET", "/usage?limit=2", "").Into(t, 200, &got)
	if got.Bytes != 1207 || got.Unreferenced != 7 || got.Trash != 0 || got.At.Before(got.From) || len(got.Days) != 1 || got.Days[0].Bytes != 1207 {
		t.Errorf("the registry: %+v", got.RegistrySums)
	}
	if n := got.Namespaces; len(n) != 2 || n[0] != (usage.Sums{Name: "usage1", Blobs: 2, Bytes: 1200, Own: 200}) || n[1] != (usage.Sums{Name: "usage2", Blobs: 1, Bytes: 1000}) {
		t.Errorf("namespaces: %+v", n)
	}
	if list := got.Repositories; len(list) != 2 || list[0].Bytes != 1000 || list[0].Own != 0 || list[1].Name != "usage2/a" {
		t.Errorf("repositories: %+v", list)
	}
	r.Exec(t, "UPDATE top_level_namespaces SET deleted_at = now(), purge_after = now(), deleted_name = name, name = '#' || id WHERE name = 'usage1'")
	r.Manage(t, "GET", "/usage", "").Into(t, 200, &got)
	if len(got.Namespaces) != 1 || len(got.Repositories) != 2 {
		t.Errorf("after a namespace was deleted: %+v, %+v", got.Namespaces, got.Repositories)
	}
	r.Manage(t, "GET", "/usage?limit=1001", "").Refused(t, 400, "invalid_request", "limit")
	setup(t, denying).Manage(t, "GET", "/usage", "").Refused(t, 403, "insufficient_scope", "^operate of <>$")
}
