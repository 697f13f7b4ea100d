package catalog_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestTablesAreNotReadWhole makes plans while the tables are empty, and then fills the tables
// without analyzing them. The plans must not read whole tables then. The review queues come
// into this state again and again, since they are filled and emptied between two runs of
// ANALYZE.
func TestTablesAreNotReadWhole(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // the database goes anyway
	if _, err := conn.Exec(t.Context(), "VACUUM (ANALYZE)"); err != nil {
		t.Fatal(err)
	}
	before := readWhole(t, conn)
	t.Run("work", func(t *testing.T) { // the subtest's end closes its pools, and so publishes how many rows they read
		b := replica(t, dsn)
		ctx := t.Context()
		for i := range 10 {
			path := fmt.Sprintf("acme/app%d", i)
			img := b.Fill(t, path)
			for _, err := range []error{
				second(b.ManifestByTag(ctx, path, "image")),
				second(b.ManifestByDigest(ctx, path, img)),
				second(b.PromiseManifestExists(ctx, path, img)),
				second(b.PromiseBlobExists(ctx, path, oci.Compute(oci.SHA256, []byte("config")))),
				b.DeleteTag(ctx, path, "index"),
				b.DeleteTag(ctx, path, "also"),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := b.Tags(ctx, path, "", 10); err != nil {
				t.Fatal(err)
			}
		}
		b.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now() WHERE review_after > now() AND set_aside_at IS NULL")
		if n, err := b.TryReview(ctx, "manifest", 100); err != nil || n == 0 {
			t.Fatalf("%d manifests were reviewed, %v", n, err)
		}
	})
	catalogtest.Eventually(t, "all others have gone", func() bool {
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	for table, rows := range readWhole(t, conn) {
		if rows > before[table] {
			t.Errorf("%d rows of %s were read without an index", rows-before[table], table)
		}
	}
}

// readWhole returns, for each table, how many of its rows were read without an index.
func readWhole(t *testing.T, conn *pgx.Conn) map[string]int64 {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT relname, seq_tup_read FROM pg_stat_user_tables
		WHERE relname ~ '^(tags|manifest|layers|blobs|repositor|uploads|gc_|top_level)' AND NOT relname ~ 'defaults$' `)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int64)
	var table string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error { found[table] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return found
}

func second[T any](_ T, err error) error { return err }
