package loosefk

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

const threeGenerations = `
	CREATE TABLE projects (id bigint PRIMARY KEY);
	CREATE TABLE builds (id bigint PRIMARY KEY, project_id bigint);
	CREATE INDEX ON builds (project_id);
	CREATE TABLE traces (id bigint PRIMARY KEY, build_id bigint);
	CREATE INDEX ON traces (build_id)`

const threeDefinitions = `
builds:
  - table: projects
    column: project_id
    on_delete: async_delete
traces:
  - table: builds
    column: build_id
    on_delete: async_delete
`

// The role or the database imposes a session_replication_role with which no trigger fires, and
// another isolation. The worker must take both back: its deletions of children must be
// recorded, since these children are parents. If its role may not, it must delete nothing, and
// its error must name the setting.
func TestImposedSettings(t *testing.T) {
	t.Parallel()
	pool := newPool(t, threeGenerations)
	db := install(t, pool, "projects", "builds")
	exec(t, pool, "INSERT INTO projects VALUES (1), (2)")
	exec(t, pool, "INSERT INTO builds VALUES (1, 1), (2, 2)")
	exec(t, pool, "INSERT INTO traces VALUES (1, 1), (2, 2)")
	exec(t, pool, "DELETE FROM projects WHERE id = 1")
	role := "imposed_" + query[string](t, pool, "SELECT replace(current_database(), '-', '_')")[0]
	exec(t, pool, "CREATE ROLE "+role+" LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO "+role+`;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role+`;
		ALTER ROLE `+role+` SET session_replication_role = replica; ALTER ROLE `+role+` SET default_transaction_isolation = 'serializable'`)
	t.Cleanup(func() {
		pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol) //nolint:errcheck // the test's server is removed anyway
	})
	cfg := pool.Config()
	cfg.ConnConfig.User = role
	restricted, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(restricted.Close)
	db.Pool = restricted
	w := newWorker(t, Options{Definitions: parse(t, threeDefinitions)}, db)
	if r, err := w.RunOnce(t.Context(), "main"); !pg.IsState(err, pg.StateNoPrivilege) || r.Deletes != 0 {
		t.Errorf("a role that may not set it: %+v, %v", r, err)
	}
	wantRows(t, pool, "SELECT id FROM builds ORDER BY id", int64(1), int64(2))

	exec(t, pool, "GRANT SET ON PARAMETER session_replication_role TO "+role)
	if r := runOnce(t, w, "main"); r.Deletes != 2 {
		t.Errorf("the run says %+v, want a build and its trace", r)
	}
	wantRows(t, pool, "SELECT id FROM builds", int64(2))
	wantRows(t, pool, "SELECT id FROM traces", int64(2))
}
