package catalog_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
)

// TestQuotaRowIsLockedFirst has two transactions that link, and then unlink, the same blob in two
// repositories of a namespace, without the locks that package catalog takes. The second must wait
// before it looks for links, or the blob would be counted twice, and then not be taken away.
func TestQuotaRowIsLockedFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/one", "x")
	b.Push(t, "acme/two", "x")
	b.Push(t, "other/app", "shared")
	b.limit(t, "acme", catalog.Usage{Bytes: 1000})
	first, second := b.Session(t), b.Session(t)
	for _, change := range []string{
		`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT r.top_level_namespace_id, r.id, b.digest FROM repositories r, blobs b WHERE b.size = 6 AND r.path = `,
		`DELETE FROM repository_blobs l USING repositories r, blobs b
			WHERE l.repository_id = r.id AND l.blob_digest = b.digest AND b.size = 6 AND r.path = `,
	} {
		first.Exec(t, "BEGIN")
		first.Exec(t, change+"'acme/one'")
		done := catalogtest.Later(func() error { _, err := second.Conn.Exec(t.Context(), change+"'acme/two'"); return err })
		catalogtest.Eventually(t, "the second transaction waits", func() bool { return b.Waiting(t) > 0 })
		first.Exec(t, "COMMIT")
		if err := catalogtest.Soon(t, "the second transaction", done); err != nil {
			t.Fatal(err)
		}
		b.exact(t)
	}
	if q := b.quota(t, "acme"); q.Used.Bytes != 1 {
		t.Errorf("%d bytes are left, want 1", q.Used.Bytes)
	}
}
