package integrationtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// A connection pooler that runs the transactions of one client connection in different
// PostgreSQL sessions breaks prepared statements. Validate must report a pgx pool that
// prepares statements behind such a pooler, whichever session the pooler gives out.
func TestValidateBehindPooler(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	newPool := func(dsn string) *pgxpool.Pool {
		t.Helper()
		pool, err := pgxpool.New(t.Context(), dsn)
		must(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	direct := newPool(dsn)
	testdb.Exec(t, direct, "CREATE TABLE projects (id bigint PRIMARY KEY);"+
		"CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint); CREATE INDEX ON builds (project_id)")
	must(t, loosefk.DefaultSchema.Install(t.Context(), direct))
	must(t, loosefk.DefaultSchema.TrackRecordDeletions(t.Context(), direct, "projects"))
	defs, err := loosefk.Parse("loose.yml", strings.NewReader("builds: [{table: projects, column: project_id, on_delete: async_delete}]"))
	must(t, err)
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
			dbs := loosefk.Databases{{Name: "main", Pool: newPool(pgtest.PgBouncer(t, dsn, tt.mode, tt.setting) + tt.more)}}
			for range 3 { // each time, not by chance
				err := loosefk.Validate(t.Context(), dbs, defs)
				if refused := err != nil && strings.Contains(err.Error(), "default_query_exec_mode=cache_describe") &&
					strings.Contains(err.Error(), "max_prepared_statements"); refused != tt.refused || !refused && err != nil {
					t.Fatalf("Validate says %v", err)
				}
			}
			if left := testdb.Query[string](t, direct, "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"); len(left) > 0 {
				t.Errorf("sessions are %q", left)
			}
			if tt.refused {
				return
			}
			w, err := loosefk.New(loosefk.Options{Databases: dbs, Definitions: defs})
			must(t, err)
			if _, err := w.Drain(t.Context(), "projects", nil); err != nil {
				t.Error(err)
			}
		})
	}
}
