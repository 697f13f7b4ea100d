package browse_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestListsReadOnlyReadable lists repositories and namespaces of a large registry for clients
// who may read few of them. However many repositories are hidden, the statements must read few
// rows, with and without statistics about the tables.
func TestListsReadOnlyReadable(t *testing.T) {
	t.Parallel()
	for name, analyze := range map[string]bool{"never analyzed": false, "analyzed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := dbtest.DSN(t)
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // the database goes anyway
			exec := func(sql string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec(`INSERT INTO top_level_namespaces (name) SELECT 'n' || i FROM generate_series(100, 199) i`)
			exec(`INSERT INTO repositories (top_level_namespace_id, path, is_public)
				SELECT id, name || '/r' || i, CASE WHEN i = 7 THEN true WHEN i % 2 = 0 THEN false END
				FROM top_level_namespaces, generate_series(1, 200) i ORDER BY i, id`)
			exec(`INSERT INTO blobs (digest, size, storage_key) SELECT '\x01'::bytea || sha256('b'), 1, 'b'`)
			exec(`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
				SELECT top_level_namespace_id, id, '\x01'::bytea || sha256('b') FROM repositories WHERE id % 100 < 3`)
			if analyze {
				exec("ANALYZE")
			}
			var v browse.Viewer
			err = conn.QueryRow(t.Context(), `
				SELECT array_agg(DISTINCT r.top_level_namespace_id) FILTER (WHERE n.name IN ('n150', 'n170')), array_agg(r.id) FILTER (WHERE path = 'n110/r4')
				FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id`).Scan(&v.Namespaces, &v.Repositories)
			if err != nil {
				t.Fatal(err)
			}
			exec("SELECT pg_stat_force_next_flush()") // what this session has read doesn't count
			public, pattern := v, v
			public.Public = true
			pattern.Patterns = []string{"^n1[0-9]*/r1[^/]*$"}
			for _, c := range []struct {
				name string
				v    browse.Viewer
				all  int // repositories that the viewer may read
			}{{"roles", v, 401}, {"roles and public", public, 499}, {"pattern", pattern, 222}} {
				readableOperations(t, c.v, c.all, func(name string, limit int64, op func(b bundle) error) {
					t.Helper()
					before := catalogtest.RowsRead(t, conn)
					t.Run(c.name+"/"+name, func(t *testing.T) { // the subtest's end closes its pools, and so publishes how many rows they read
						b := replica(t, dsn)
						for range 7 { // from the sixth run on PostgreSQL may use a generic plan
							if err := op(b); err != nil {
								t.Fatal(err)
							}
						}
					})
					catalogtest.Alone(t, conn)
					total, most := int64(0), ""
					for index, n := range catalogtest.RowsRead(t, conn) {
						if n -= before[index]; n > 0 {
							total += n
							most += fmt.Sprintf(" %s: %d", index, n)
						}
					}
					if total > limit*7 {
						t.Errorf("%s: %s reads %d rows:%s", c.name, name, total/7, most)
					}
				})
			}
		})
	}
}

// readableOperations runs each list for the viewer, who may read `all` repositories.
func readableOperations(t *testing.T, v browse.Viewer, all int, run func(name string, limit int64, op func(b bundle) error)) {
	ctx := t.Context()
	run("all of the catalog", 15_000, func(b bundle) error {
		var list []string
		for more := true; more; {
			last := ""
			if len(list) > 0 {
				last = list[len(list)-1]
			}
			page, further, err := b.RepositoryPaths(ctx, v, last, 100)
			if err != nil {
				return err
			}
			list, more = append(list, page...), further
		}
		if len(list) != all || !slices.IsSorted(list) {
			return fmt.Errorf("%d repositories, want %d", len(list), all)
		}
		return nil
	})
	page := func(q browse.RepositoryQuery) func(bundle) error {
		return func(b bundle) error {
			q.Limit = 10
			list, next, err := b.Repositories(ctx, v, q)
			if err == nil && (len(list) != 10 || next == nil) {
				err = fmt.Errorf("%d repositories, next %v", len(list), next)
			}
			return err
		}
	}
	run("page by name", 1500, page(browse.RepositoryQuery{}))
	run("page by name, descending", 1500, page(browse.RepositoryQuery{Descending: true}))
	run("page by creation", 1500, page(browse.RepositoryQuery{ByCreation: true}))
	run("page of a namespace", 1500, page(browse.RepositoryQuery{Namespace: "n150"}))
	run("page of a namespace by creation", 1500, page(browse.RepositoryQuery{Namespace: "n150", ByCreation: true, Descending: true}))
	run("namespaces", 3000, func(b bundle) error { _, _, err := b.Namespaces(ctx, v, browse.NameFilter{}, "", 10); return err })
	run("namespace", 1500, func(b bundle) error { return second(b.DescribeNamespace(ctx, v, "n150", 0)) })
	run("search", 15_000, func(b bundle) error { return second(b.Find(ctx, v, browse.ParseWanted("abcdef12", ""), 10)) })
	run("sources of a blob", 3000, func(b bundle) error {
		return second(b.Sources(ctx, v, oci.Compute(oci.SHA256, []byte("b")), 10))
	})
}
