package hold_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// TestPagesOfLongRows: a page of each list ends when its rows have as many bytes as a page may have, and
// the pages together have every row once.
func TestPagesOfLongRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const reporters, manifests, usedBy = 60, 10, 2000
	b.exec(t, `INSERT INTO holdreporters (namespace_id, name, lease, expires_at, digests, unresolved, unresolved_first)
		SELECT n.id, 'r' || i, interval '1 day', now() + interval '1 day', 600, 20, array_fill(repeat('u', 2000), ARRAY[20])
		FROM top_level_namespaces n, generate_series(100, 99 + $1::int) i WHERE n.name = 'acme'`, reporters)
	b.exec(t, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/app' FROM top_level_namespaces WHERE name = 'acme'")
	for i := range manifests {
		b.exec(t, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
			SELECT top_level_namespace_id, id, $1::bytea, 'application/vnd.oci.image.manifest.v1+json', '{}', 2 FROM repositories`, digest(i).Bytes())
		b.exec(t, "INSERT INTO holds (digest, reporter_id, used_by) SELECT $1::bytea, id, repeat('u', $2::int) FROM holdreporters", digest(i).Bytes(), usedBy)
	}
	for i := manifests; i < 600; i++ { // the first reporter holds many more
		b.exec(t, "INSERT INTO holds (digest, reporter_id, used_by) SELECT $1::bytea, id, repeat('u', $2::int) FROM holdreporters WHERE name = 'r100'", digest(i).Bytes(), usedBy)
	}
	ends := func(what string, rows, row int) {
		t.Helper()
		if rows*row > db.PageBytes {
			t.Errorf("%s: a page has %d rows of %d bytes", what, rows, row)
		}
	}

	seen := map[string]bool{}
	for after := ""; ; {
		list, next, err := b.List(t.Context(), "acme", after, hold.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		ends("reporters", len(list), 20*2000)
		for _, r := range list {
			seen[r.Name] = true
		}
		if after = next; next == "" {
			break
		}
	}
	if len(seen) != reporters {
		t.Errorf("%d reporters are listed", len(seen))
	}

	digests := 0
	for after := (oci.Digest{}); ; {
		list, next, err := b.Digests(t.Context(), hold.Place{Namespace: "acme", Reporter: "r100"}, after, hold.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		ends("digests", len(list), usedBy)
		digests += len(list)
		if after = next; next.IsZero() {
			break
		}
	}
	if digests != 600 {
		t.Errorf("%d digests are listed", digests)
	}

	var namespace, repository int64
	if err := b.d.Pool.QueryRow(t.Context(), "SELECT top_level_namespace_id, id FROM repositories").Scan(&namespace, &repository); err != nil {
		t.Fatal(err)
	}
	holds := map[string]int{}
	for after := (oci.Digest{}); ; {
		list, next, err := b.Repository(t.Context(), namespace, repository, after, hold.MaxPage)
		if err != nil {
			t.Fatal(err)
		}
		ends("holds", len(list), usedBy)
		for _, h := range list {
			holds[h.Digest.String()]++
		}
		if after = next; next.IsZero() {
			break
		}
	}
	for i := range manifests {
		if n := holds[digest(i).String()]; n != reporters {
			t.Errorf("%d holds of manifest %d are listed, want %d", n, i, reporters)
		}
	}
}
