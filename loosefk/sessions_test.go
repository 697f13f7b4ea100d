package loosefk

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A prepared statement fails because of a connection pooler: it is missing, or its name
// belongs to another client's statement. Validate must not report this as a mistake in a
// definition.
func TestValidateTellsPoolersErrors(t *testing.T) {
	t.Parallel()
	pool := newPool(t, onlyParents+"; CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint, state int); CREATE INDEX ON builds (project_id)")
	cfg := pool.Config()
	cfg.MaxConns = 1
	broken, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(broken.Close)
	dbs := Databases{{Name: "main", Pool: broken}}
	defs := parse(t, "builds: [{table: projects, column: project_id, on_delete: update_column_to, target_column: state, target_value: 4}]")
	must(t, Validate(t.Context(), dbs, defs))
	exec(t, broken, "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol) // as if the pooler had given out another session
	err = Validate(t.Context(), dbs, defs)
	if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=cache_describe") {
		t.Errorf("Validate says %v", err)
	}
}
