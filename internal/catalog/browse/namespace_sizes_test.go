package browse_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestSizesOfNamespaces: a list shows of each namespace the size of what the viewer may read in it.
func TestSizesOfNamespaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for path, contents := range map[string][]string{
		"acme/app": {"shared", "of app"}, "acme/web": {"shared", "of the web"}, "acme/new": {"of the new one"},
		"else/app": {"shared"}, "gone/app": {"shared"},
	} {
		for _, content := range contents {
			b.Push(t, path, content)
		}
	}
	if err := b.CreateNamespace(t.Context(), "void"); err != nil {
		t.Fatal(err)
	}
	b.Exec(t, "UPDATE repositories SET is_public = (path = 'acme/app') WHERE path <> 'acme/new'")
	var acme, web int64
	err := b.DB.Pool.QueryRow(t.Context(), "SELECT top_level_namespace_id, id FROM repositories WHERE path = 'acme/web'").Scan(&acme, &web)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		v    browse.Viewer
		want string
	}{
		"all":                    {browse.Everyone, "acme 4 blobs 36 bytes, else 1 blobs 6 bytes, void 0 blobs 0 bytes, "},
		"all, by a pattern":      {browse.Viewer{All: true, Patterns: []string{"/app$"}}, "acme 2 blobs 12 bytes, else 1 blobs 6 bytes, void 0 blobs 0 bytes, "},
		"public":                 {browse.Viewer{Public: true}, "acme 2 blobs 12 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"public by default":      {browse.Viewer{Public: true, PublicByDefault: true}, "acme 3 blobs 26 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"public and a role":      {browse.Viewer{Public: true, Repositories: []int64{web}}, "acme 3 blobs 22 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"a role":                 {browse.Viewer{PublicByDefault: true, Repositories: []int64{web}}, "acme 2 blobs 16 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"a role, by a pattern":   {browse.Viewer{Repositories: []int64{web}, Patterns: []string{"/app$"}}, "acme 0 blobs 0 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"a role in a namespace":  {browse.Viewer{Namespaces: []int64{acme}}, "acme 4 blobs 36 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"both":                   {browse.Viewer{Namespaces: []int64{acme}, Repositories: []int64{web}, Public: true}, "acme 4 blobs 36 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"nothing":                {browse.Viewer{}, "acme 0 blobs 0 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
		"a pattern that is typo": {browse.Viewer{Namespaces: []int64{acme}, Patterns: []string{"^nothing$"}}, "acme 0 blobs 0 bytes, else 0 blobs 0 bytes, void 0 blobs 0 bytes, "},
	} {
		list := []browse.NamespaceInfo{{Name: "acme"}, {Name: "none"}, {Name: "else"}, {Name: "void"}}
		if err := b.AddSizes(t.Context(), c.v, list); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, n := range list {
			switch {
			case n.Size == nil && n.Name != "none":
				t.Errorf("%s: no size of %s", name, n.Name)
			case n.Size != nil:
				got += fmt.Sprintf("%s %d blobs %d bytes, ", n.Name, n.Size.Blobs, n.Size.Bytes)
				if !n.Size.Exact || n.Size.OwnBytes != nil {
					t.Errorf("%s: %s has %+v", name, n.Name, *n.Size)
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
}

// TestSizesOfNamespacesAreBounded: a page of 50 namespaces with 2,000 repositories each reads few of these,
// whoever asks and whether the repositories have anything. A sum that isn't whole isn't called exact.
func TestSizesOfNamespacesAreBounded(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // the database goes anyway
	for _, sql := range []string{
		`INSERT INTO top_level_namespaces (name) SELECT 'n' || i FROM generate_series(100, 149) i`,
		`INSERT INTO repositories (top_level_namespace_id, path)
			SELECT id, name || '/r' || i FROM top_level_namespaces, generate_series(1, 2000) i ORDER BY i, id`,
		`INSERT INTO blobs (digest, size, storage_key) SELECT '\x01'::bytea || sha256('b'), 1, 'b'`,
		`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT top_level_namespace_id, id, '\x01'::bytea || sha256('b') FROM repositories WHERE path LIKE 'n11%'`,
		`ANALYZE`, `SELECT pg_stat_force_next_flush()`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, v := range map[string]browse.Viewer{"anonymous": {Public: true, PublicByDefault: true}, "operator": browse.Everyone} {
		before := catalogtest.RowsRead(t, conn)
		t.Run(name, func(t *testing.T) { // its end closes the pools, and so publishes how many rows they read
			b := replica(t, dsn)
			list := make([]browse.NamespaceInfo, 50)
			for i := range list {
				list[i].Name = fmt.Sprintf("n%d", 100+i)
			}
			if err := b.AddSizes(t.Context(), v, list); err != nil {
				t.Fatal(err)
			}
			for i, want := range map[int]browse.Size{0: {}, 10: {Blobs: 1, Bytes: 1}} {
				if *list[i].Size != want {
					t.Errorf("%s has %+v, want %+v", list[i].Name, *list[i].Size, want)
				}
			}
		})
		catalogtest.Alone(t, conn)
		total := int64(0)
		for index, n := range catalogtest.RowsRead(t, conn) {
			total += n - before[index]
		}
		if total > 20_000 { // 201 repositories of each, and a link of each
			t.Errorf("%s: %d rows were read", name, total)
		}
	}
}
