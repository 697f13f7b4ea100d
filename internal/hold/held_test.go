package hold_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/hold"
)

// fill makes the repository acme/app with n manifests, and gives every tenth of them an index of
// its own. It fires no triggers.
func (b *bundle) fill(t *testing.T, n int) (namespace, repository int64) {
	t.Helper()
	b.exec(t, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/app' FROM top_level_namespaces WHERE name = 'acme'")
	if err := b.d.Pool.QueryRow(t.Context(), "SELECT top_level_namespace_id, id FROM repositories").Scan(&namespace, &repository); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), b.d.Pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			"SET LOCAL session_replication_role = replica",
			`INSERT INTO manifests (top_level_namespace_id, repository_id, id, digest, media_type, payload, total_size)
				SELECT $1, $2, n, '\x01' || sha256(int8send(n)), 'x', '', 0 FROM generate_series(1, $3::bigint) n`,
			`INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
				SELECT $1, $2, n, n - 1 FROM generate_series(10, $3::bigint, 10) n`,
		} {
			args := []any{namespace, repository, int64(n)}
			if !strings.Contains(sql, "$1") {
				args = nil
			}
			if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return namespace, repository
}

// rowsRead is how many rows statements of this database have read from the tables that
// purser_held reads, by indexes and without.
func (b *bundle) rowsRead(t *testing.T, tx pgx.Tx) (n int64) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `
		SELECT sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))::bigint FROM pg_class c
		WHERE c.relname ~ '^(manifests|manifest_references|holds|holdreporters)'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPlanOfHeld: looking whether 1,000 manifests of a large repository are held reads a few rows
// for each, also with statistics of PostgreSQL from when the tables were nearly empty.
func TestPlanOfHeld(t *testing.T) {
	t.Parallel()
	manifests, digests := planned()
	for _, stale := range []bool{true, false} {
		b := setup(t)
		b.report(t, acme, hold.Report{Full: true, Items: items(0, 1, "")})
		b.exec(t, "ANALYZE")
		namespace, repository := b.fill(t, manifests)
		b.report(t, acme, hold.Report{Full: true, Items: items(1, digests+1, "pod")})
		if !stale {
			b.exec(t, "ANALYZE")
		}
		for name, first := range map[string]int64{"held": 1, "not held": int64(digests) + 1} {
			var ids []int64
			for i := range int64(1000) {
				ids = append(ids, first+i)
			}
			var read int64
			var took time.Duration
			var found map[int64][]hold.Holder
			err := pgx.BeginFunc(context.WithoutCancel(t.Context()), b.d.Pool, func(tx pgx.Tx) (err error) {
				for range 2 {
					before, began := b.rowsRead(t, tx), time.Now()
					found, err = hold.Of(t.Context(), tx, namespace, repository, ids)
					read, took = b.rowsRead(t, tx)-before, time.Since(began)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("stale %v, %s: %d manifests found, %d rows read, %s", stale, name, len(found), read, took)
			if read > 30_000 {
				t.Errorf("stale %v, %s: %d rows were read", stale, name, read)
			}
			if want := map[string]int{"held": 1000, "not held": 0}[name]; len(found) != want {
				t.Errorf("stale %v, %s: %d manifests are held, want %d", stale, name, len(found), want)
			}
		}
	}
}

// planned is how many manifests and holds TestPlanOfHeld makes.
func planned() (manifests, digests int) { return 30_000, 10_000 }
