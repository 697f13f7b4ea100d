package management_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/usage"
)

// measure measures what the registry stores.
func measure(t *testing.T, r *registry) {
	t.Helper()
	m, err := usage.New(usage.Options{DB: dbtest.Open(t, r.DSN)})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = m.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

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
	measure(t, r)
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

// TestNamespaceUsage: maintainers see what their namespace stores, by repository, page by page, and by day. What is
// the namespace's own says what others have: only operators see it. A namespace that is younger than the last
// measurement isn't measured yet, and isn't empty.
func TestNamespaceUsage(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	c.maintainer.Manage(t, "GET", "/organization/acme/usage", "").Refused(t, 503, "unavailable", "haven't been measured")
	r := c.root
	r.Exec(t, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/u' || x FROM top_level_namespaces, generate_series(1, 5) x WHERE name = 'acme'")
	r.Exec(t, `INSERT INTO blobs (digest, size, storage_key) SELECT ('\x0' || x)::bytea, x * 1000, 'u' || x FROM generate_series(1, 5) x`)
	r.Exec(t, `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT top_level_namespace_id, id, ('\x0' || x)::bytea FROM repositories r JOIN generate_series(1, 5) x ON r.path = 'acme/u' || x OR r.path = 'acme/u5' AND x = 1`)
	measure(t, r)
	r.Exec(t, "UPDATE usage_days SET day = day - 3, bytes = 7")
	r.Exec(t, "INSERT INTO usage_days SELECT id, (now() AT TIME ZONE 'UTC')::date - 1, 9, 9 FROM top_level_namespaces WHERE name = 'acme'")

	r.Exec(t, "INSERT INTO autopruneruns (id, namespace_id, namespace, state, deleted, restored) SELECT gen_random_uuid(), id, name, 'success', 5, 2 FROM top_level_namespaces WHERE name = 'acme'")

	var names []string
	var got api.NamespaceUsage
	for next := ""; ; next = "&next_page=" + got.NextPage {
		got = api.NamespaceUsage{}
		c.maintainer.Manage(t, "GET", "/organization/acme/usage?limit=2&days=5"+next, "").Into(t, 200, &got)
		for _, s := range got.Repositories {
			names = append(names, fmt.Sprintf("%s %d %d", s.Name, s.Bytes, s.Own))
		}
		if got.Own != nil {
			t.Error("a maintainer sees what other namespaces share")
		}
		if got.NextPage == "" {
			break
		}
	}
	if want := []string{"acme/u5 6000 5000", "acme/u4 4000 4000", "acme/u3 3000 3000", "acme/u2 2000 2000", "acme/u1 1000 0"}; !slices.Equal(names[:5], want) {
		t.Errorf("repositories %v, want %v first", names, want)
	}
	var days []int64
	for _, d := range got.Days {
		days = append(days, d.Bytes)
	}
	if !slices.Equal(days, []int64{7, 7, 9, 9}) {
		t.Errorf("days %v, want 7, 7, 9, 9: one without a row is like the one before", days)
	}
	if p := got.Pruned; len(p) != 1 || p[0].Deleted != 5 || p[0].Restored != 2 {
		t.Errorf("by day, these were pruned: %+v", p)
	}
	c.root.Manage(t, "GET", "/organization/acme/usage?limit=1", "").Into(t, 200, &got)
	if got.Own == nil || got.Bytes < 15_000 {
		t.Errorf("an operator sees %+v", got.NamespaceSums)
	}
	c.root.Manage(t, "GET", "/organization/acme/usage?next_page="+got.NextPage[:8], "").Refused(t, 400, "invalid_request", "cursor")
	r.Exec(t, "INSERT INTO top_level_namespaces (name) VALUES ('young')")
	c.root.Manage(t, "GET", "/organization/young/usage", "").Refused(t, 503, "unavailable", "haven't been measured")
	c.root.Manage(t, "GET", "/organization/nowhere/usage", "").WantStatus(t, 404)
}
