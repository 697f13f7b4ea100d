package loosefk

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// TestRecordsAreNotReadWhole lets PostgreSQL cache plans while the table of deleted records
// is empty; such plans read the whole table. When a million records are inserted, the
// worker's statements must not use these plans.
func TestRecordsAreNotReadWhole(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testdb.Projects)
	install(t, pool, "projects")
	exec(t, pool, "VACUUM (ANALYZE)")
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = "worker"
	own, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	defer own.Close()
	d := Database{Name: "main", Pool: own}
	w := newWorker(t, Options{Definitions: parse(t, testdb.ProjectsDefinitions)}, d)
	for range 10 { // PostgreSQL keeps a plan from the sixth time on
		runOnce(t, w, "main")
	}
	exec(t, pool, "INSERT INTO projects SELECT generate_series(1000, 2999)")
	exec(t, pool, "DELETE FROM projects WHERE id >= 1000")
	if r := runOnce(t, w, "main"); r.Processed < 1000 {
		t.Errorf("the run says %+v", r)
	}
	own.Close() // PostgreSQL counts what a connection has read when it ends
	for query[int64](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker'")[0] > 0 {
		must(t, t.Context().Err())
	}
	wantRows[string](t, pool, `SELECT relname || ': ' || seq_tup_read FROM pg_stat_user_tables
		WHERE relname LIKE 'loose_foreign_keys_deleted_records%' AND seq_tup_read > 0`)
}
