package loosefk

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
)

// A connection pooler that runs the transactions of one client connection in different
// PostgreSQL sessions breaks prepared statements. Validate must report a pgx pool that
// prepares statements behind such a pooler, whichever session the pooler gives out.
func TestValidateBehindPooler(t *testing.T) {
	t.Parallel()
	direct := newPool(t, onlyParents+"; CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint); CREATE INDEX ON builds (project_id)")
	install(t, direct, "projects")
	defs := parse(t, "builds: [{table: projects, column: project_id, on_delete: async_delete}]")
	dsn := direct.Config().ConnString()
	for _, tt := range []struct {
		name, mode, setting, more string
		refused                   bool
	}{
		{"transaction", "transaction", "", "", true},
		{"transaction, sessions in turn", "transaction", "server_round_robin = 1", "", true},
		{"transaction, no names", "transaction", "server_round_robin = 1", "&default_query_exec_mode=cache_describe", false},
		{"transaction, simple", "transaction", "", "&default_query_exec_mode=simple_protocol", false},
		{"session", "session", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pool, err := pgxpool.New(t.Context(), pgtest.PgBouncer(t, dsn, tt.mode, tt.setting)+tt.more)
			must(t, err)
			t.Cleanup(pool.Close)
			dbs := Databases{{Name: "main", Pool: pool}}
			for range 3 { // each time, not by chance
				err = Validate(t.Context(), dbs, defs)
				if refused := err != nil && strings.Contains(err.Error(), "default_query_exec_mode=cache_describe") &&
					strings.Contains(err.Error(), "max_prepared_statements"); refused != tt.refused || !refused && err != nil {
					t.Fatalf("Validate says %v", err)
				}
			}
			if left := query[string](t, direct, "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"); len(left) > 0 {
				t.Errorf("sessions are %q", left)
			}
			if tt.refused {
				return
			}
			w, err := New(Options{Databases: dbs, Definitions: defs})
			must(t, err)
			if _, err := w.Drain(t.Context(), "projects", nil); err != nil {
				t.Error(err)
			}
		})
	}
}

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
