package loosefk

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// newRole creates a role that may connect and create temporary tables. It returns the
// role's name, and a pool with one connection of that role.
func newRole(t *testing.T, pool *pgxpool.Pool, name, more string) (string, *pgxpool.Pool) {
	t.Helper()
	role := name + "_" + strings.ReplaceAll(pool.Config().ConnConfig.Database, "-", "_")
	exec(t, pool, strings.ReplaceAll("CREATE ROLE $role LOGIN;"+more, "$role", role))
	cfg := pool.Config()
	cfg.ConnConfig.User = role
	cfg.MaxConns, cfg.MinIdleConns = 1, 0 // the single connection keeps its temporary tables
	own, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	must(t, own.Ping(t.Context()))
	t.Cleanup(func() {
		own.Close()
		pool.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol) //nolint:errcheck // the test's server is removed anyway
	})
	return role, own
}

// loot prepares an attack. It creates a role, the attacker, that may connect and create
// temporary tables and that owns a schema; a table called loot, to which the attacker may
// not write; and a function of the attacker that writes to this table if another role with
// more rights executes it.
func loot(t *testing.T, pool *pgxpool.Pool) (role string, attacker *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, "CREATE TABLE loot (who text)")
	role, attacker = newRole(t, pool, "attacker", "CREATE SCHEMA AUTHORIZATION $role")
	exec(t, attacker, fmt.Sprintf(`
		CREATE FUNCTION %[1]s.pwn() RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO public.loot VALUES (current_user); RETURN 1; EXCEPTION WHEN insufficient_privilege THEN RETURN 1; END $$;
		CREATE TABLE %[1]s.mine (id bigint PRIMARY KEY);
		CREATE TABLE %[1]s.child (project_id bigint);
		CREATE TEMP TABLE temp_projects (id bigint);
		INSERT INTO temp_projects VALUES (1);
		INSERT INTO %[1]s.mine VALUES (1)`, role))
	return role, attacker
}

// `forgeries` are statements by which the attacker tries to attach the trigger functions to
// tables; $s stands for the attacker's schema.
var forgeries = map[string]string{
	"temporary table": `CREATE TRIGGER forged AFTER DELETE ON temp_projects REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records()`,
	"temporary table in the name of a parent": `CREATE TRIGGER forged AFTER DELETE ON temp_projects REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records_override_table('public.projects')`,
	"own table": `CREATE TRIGGER forged AFTER DELETE ON $s.mine REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records()`,
	"own table in the name of a parent": `CREATE TRIGGER forged AFTER DELETE ON $s.mine REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records_override_table('public.projects')`,
	"inserted rows": `CREATE TRIGGER forged AFTER INSERT ON $s.mine REFERENCING NEW TABLE AS old_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records_override_table('public.projects')`,
	"a view in the place of the deleted rows": `CREATE TEMP VIEW old_table AS SELECT $s.pwn() AS id;
		CREATE TRIGGER forged AFTER DELETE ON $s.mine FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records()`,
	"a key with a cast": `CREATE TYPE $s.evil AS (n int);
		CREATE FUNCTION $s.cast(e $s.evil) RETURNS bigint LANGUAGE sql AS 'SELECT $s.pwn()';
		CREATE CAST ($s.evil AS bigint) WITH FUNCTION $s.cast($s.evil) AS IMPLICIT;
		DROP TABLE $s.mine; CREATE TABLE $s.mine (id $s.evil); INSERT INTO $s.mine VALUES (ROW(1));
		CREATE TRIGGER forged AFTER DELETE ON $s.mine REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.insert_into_loose_foreign_keys_deleted_records()`,
	"a query in the place of a parent": `CREATE TRIGGER forged AFTER INSERT ON $s.child REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('project_id', '(SELECT 1::bigint AS id FROM (SELECT $s.pwn()) q)')`,
	"a query in the place of a parent, for updates": `CREATE TRIGGER forged AFTER UPDATE ON $s.child
		FOR EACH ROW EXECUTE FUNCTION public.loose_foreign_keys_guard_update('project_id', '(SELECT 1::bigint AS id FROM (SELECT $s.pwn()) q)')`,
	"a view in the place of a parent": `CREATE VIEW $s.looks_like AS SELECT $s.pwn() AS id;
		CREATE TRIGGER forged AFTER INSERT ON $s.child REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('project_id', '$s.looks_like')`,
	"a parent with a policy": `CREATE POLICY evil ON $s.mine USING ($s.pwn() = 1); ALTER TABLE $s.mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
		CREATE TRIGGER forged AFTER INSERT ON $s.child REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('project_id', '$s.mine')`,
	"a parent with code in its index": `CREATE FUNCTION $s.immutable(n int) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM $s.pwn(); RETURN true; END';
		CREATE INDEX ON $s.mine (id) WHERE $s.immutable(1);
		CREATE TRIGGER forged AFTER INSERT ON $s.child REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('project_id', '$s.mine')`,
	"a look at what is hidden": `CREATE TRIGGER forged AFTER INSERT ON $s.child REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('project_id', 'public.projects')`,
	"a guard on a temporary table": `CREATE TRIGGER forged AFTER INSERT ON temp_projects REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('id', 'public.projects')`,
	"a temporary parent": `CREATE TRIGGER forged AFTER INSERT ON $s.child REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT
		EXECUTE FUNCTION public.loose_foreign_keys_guard_insert('project_id', 'pg_temp.temp_projects')`,
	"changed keys": `CREATE TRIGGER forged AFTER UPDATE ON $s.mine FOR EACH ROW
		EXECUTE FUNCTION public.loose_foreign_keys_record_key_change('public.projects', 'id')`,
}

// `uses` are statements of the attacker that fire the triggers in `forgeries`. They may
// fail.
var uses = []string{
	"DELETE FROM temp_projects", "DELETE FROM $s.mine WHERE id IS NOT NULL", "INSERT INTO $s.mine VALUES (2)", "UPDATE $s.mine SET id = 3",
	"INSERT INTO temp_projects VALUES (1)", "INSERT INTO $s.child VALUES (1)", "UPDATE $s.child SET project_id = 1", "DELETE FROM $s.mine",
}

// wantNothing executes the statements in `uses` as the attacker, and tests that the attack
// fails: no code of the attacker ran with another role's rights, no deletion was recorded,
// and no guard read a table for the attacker.
func wantNothing(t *testing.T, pool, attacker *pgxpool.Pool, role string) {
	t.Helper()
	for _, sql := range uses {
		_, err := attacker.Exec(t.Context(), strings.ReplaceAll(sql, "$s", role), pgx.QueryExecModeSimpleProtocol)
		if pg.IsState(err, "23503") || pg.IsState(err, "XX000") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	wantRows[string](t, pool, "SELECT DISTINCT who FROM loot")
	wantRows[string](t, pool, "SELECT fully_qualified_table_name || primary_key_value FROM loose_foreign_keys_deleted_records")
}

// A role without rights must be able neither to create triggers with the trigger functions
// nor to call the functions.
func TestStrangerAttachesNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `
		ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO PUBLIC;
		ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
		ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC`)
	install(t, pool)
	must(t, DefaultSchema.Install(t.Context(), pool)) // again, over the existing functions
	role, attacker := loot(t, pool)
	exec(t, pool, "REVOKE ALL ON loot, projects, builds FROM PUBLIC")
	for name, sql := range forgeries {
		_, err := attacker.Exec(t.Context(), strings.ReplaceAll(sql, "$s", role), pgx.QueryExecModeSimpleProtocol)
		if !pg.IsState(err, pg.StateNoPrivilege) {
			t.Errorf("%s: %v, want no right to execute the function", name, err)
		}
	}
	for _, sql := range []string{
		"SELECT public.loose_foreign_keys_version()",
		"SELECT public.loose_foreign_keys_track('temp_projects', false)",
		"SELECT public.loose_foreign_keys_key_type('public.projects', 'id')",
		"SELECT public.loose_foreign_keys_recorded_name('public.projects', NULL)",
		"SELECT public.insert_into_loose_foreign_keys_deleted_records()",
		"INSERT INTO public.loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.projects', 1)",
		"INSERT INTO public.loose_foreign_keys_deleted_records_1 (fully_qualified_table_name, primary_key_value) VALUES ('public.projects', 1)",
		"INSERT INTO public.detached_partitions (table_name, drop_after) VALUES ('public.projects', now())",
		"SELECT nextval('public.loose_foreign_keys_deleted_records_id_seq')",
		"CREATE TRIGGER evil BEFORE INSERT ON public.loose_foreign_keys_deleted_records FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
	} {
		if _, err := attacker.Exec(t.Context(), sql); !pg.IsState(err, pg.StateNoPrivilege) {
			t.Errorf("%s: %v, want no right", sql, err)
		}
	}
	wantNothing(t, pool, attacker, role)
}

// Everybody may execute the functions for a time, and an attacker creates triggers that call
// them. Install must revoke the right, and these triggers must be of no use to the attacker.
func TestStrangerAttachedBefore(t *testing.T) {
	t.Parallel()
	for name, sql := range forgeries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, oneChild)
			install(t, pool)
			role, attacker := loot(t, pool)
			exec(t, pool, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC")
			exec(t, attacker, strings.ReplaceAll(sql, "$s", role))
			must(t, DefaultSchema.Install(t.Context(), pool))
			wantNothing(t, pool, attacker, role)
		})
	}
}

// The owner of a tracked table may create triggers that call the trigger functions. With such
// triggers the owner must be able to record deletions from the owner's own tables, and to do
// nothing else.
func TestOwnerOfParent(t *testing.T) {
	t.Parallel()
	for name, sql := range forgeries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, oneChild)
			install(t, pool)
			role, attacker := loot(t, pool)
			exec(t, pool, "CREATE TABLE "+role+".legal (id bigint PRIMARY KEY); ALTER TABLE "+role+".legal OWNER TO "+role)
			must(t, DefaultSchema.TrackRecordDeletions(t.Context(), pool, role+".legal"))
			_, err := attacker.Exec(t.Context(), strings.ReplaceAll(sql, "$s", role), pgx.QueryExecModeSimpleProtocol)
			if err != nil && !pg.IsState(err, pg.StateNoPrivilege) {
				t.Fatal(err)
			}
			for _, sql := range uses {
				attacker.Exec(t.Context(), strings.ReplaceAll(sql, "$s", role), pgx.QueryExecModeSimpleProtocol) //nolint:errcheck // it may fail
			}
			wantRows[string](t, pool, "SELECT DISTINCT who FROM loot")
			wantRows[string](t, pool, `SELECT DISTINCT fully_qualified_table_name FROM loose_foreign_keys_deleted_records
				WHERE fully_qualified_table_name <> '`+role+`.mine'`)
			exec(t, attacker, "INSERT INTO "+role+".legal VALUES (7); DELETE FROM "+role+".legal")
			wantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = '"+role+".legal'", int64(7))
		})
	}
}

// An attacker has created a table, a function or another object under a name that Install
// uses. Install must fail.
func TestInstallMeetsTraps(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"function": "CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"guard":    "CREATE FUNCTION loose_foreign_keys_guard_insert() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"overload": "CREATE FUNCTION loose_foreign_keys_key_type(r regclass, t name) RETURNS text LANGUAGE sql AS 'SELECT 1'",
		"version":  "CREATE FUNCTION loose_foreign_keys_version() RETURNS integer LANGUAGE sql AS 'SELECT 99'",
		"records":  "CREATE TABLE loose_foreign_keys_deleted_records (partition bigint) PARTITION BY LIST (partition)",
		"detached": "CREATE TABLE detached_partitions (table_name text)",
		"sequence": "CREATE SEQUENCE loose_foreign_keys_deleted_records_id_seq",
		"index":    "CREATE TABLE other (n int); CREATE INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query ON other (n)",
		"first":    "CREATE TABLE loose_foreign_keys_deleted_records_1 (n int)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, oneChild)
			role, attacker := newRole(t, pool, "attacker", "GRANT CREATE ON SCHEMA public TO $role")
			exec(t, attacker, sql)
			err := DefaultSchema.Install(t.Context(), pool)
			if !pg.IsState(err, pg.StateNoPrivilege) || !strings.Contains(err.Error(), role) {
				t.Errorf("the installation ends with %v", err)
			}
			wantRows(t, pool, "SELECT count(*)::int FROM pg_trigger WHERE NOT tgisinternal", 0)
			exec(t, pool, "REASSIGN OWNED BY "+role+" TO CURRENT_USER") // the error's remedy, if the attacker owns an object
		})
	}
}

// Deleted records contain names of missing tables. They must make neither a run nor
// Database.Pending fail, and the run must mark them as failed.
func TestUnknownRecords(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	db := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, db)
	conn, err := pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	exec(t, conn, "CREATE TEMP TABLE t4 (id bigint)")
	exec(t, pool, "CREATE TABLE others (id bigint)")
	temp := query[string](t, conn, "SELECT nspname || '.t4' FROM pg_namespace WHERE oid = pg_my_temp_schema()")[0]
	for _, name := range []string{temp, "", ".", "nothing", "public.gone", `public."x`, "a.b.c.d", `'; DROP TABLE projects; --`, "public.others", "pg_temp.t4"} {
		exec(t, pool, "INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) SELECT $1, g FROM generate_series(1, 3) g", name)
	}
	exec(t, pool, "INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value) VALUES (77, 'public.gone', 1)")
	if _, err := db.Pending(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := Tools.Examine(t.Context(), w); err != nil {
		t.Error(err)
	}
	family(t, pool, 1, 3)
	if r := runOnce(t, w, "main"); r.Processed != 1 || r.Deletes != 3 || r.Failed != 28 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT fully_qualified_table_name FROM loose_foreign_keys_deleted_records WHERE status = 1", "public.others")
}

// A role that may delete from a parent must need no other right for its deletions to be
// recorded.
func TestOrdinaryDeleter(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	install(t, pool, "projects")
	_, user := newRole(t, pool, "user", "GRANT SELECT, INSERT, UPDATE, DELETE ON projects, builds TO $role; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO $role")
	must(t, DefaultSchema.GuardInserts(t.Context(), pool, "builds", "project_id", "projects"))
	exec(t, user, "INSERT INTO projects VALUES (1), (2)")
	exec(t, user, "INSERT INTO builds (project_id) VALUES (1)")
	if _, err := user.Exec(t.Context(), "INSERT INTO builds (project_id) VALUES (9)"); !pg.IsState(err, "23503") {
		t.Errorf("an orphan: %v", err)
	}
	exec(t, user, "DELETE FROM projects WHERE id = 1")
	exec(t, user, "UPDATE projects SET id = 5 WHERE id = 2")
	exec(t, user, "UPDATE projects SET id = 5")
	wantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records ORDER BY 1", int64(1), int64(2))
}

// Install must replace the functions of an older version. It must keep tables tracked, also
// one of another owner in another schema, and must keep the deleted records. It must leave
// a newer version as it is.
func TestInstallOverAnotherVersion(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, "CREATE SCHEMA apart; CREATE TABLE apart.things (id int PRIMARY KEY)")
	role, owner := newRole(t, pool, "owner", "GRANT USAGE ON SCHEMA apart TO $role; ALTER TABLE apart.things OWNER TO $role; ALTER TABLE projects OWNER TO $role")
	install(t, pool, "projects", "apart.things")
	exec(t, owner, "INSERT INTO apart.things VALUES (1), (2); DELETE FROM apart.things WHERE id = 1")
	const replaced = "CREATE OR REPLACE FUNCTION insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
	exec(t, pool, testdb.OlderVersion+";"+replaced)
	must(t, DefaultSchema.Install(t.Context(), pool))
	wantRows(t, pool, "SELECT loose_foreign_keys_version()", int32(SchemaVersion))
	exec(t, owner, "DELETE FROM apart.things; INSERT INTO public.projects VALUES (8); DELETE FROM public.projects")
	const recorded = "SELECT primary_key_value FROM loose_foreign_keys_deleted_records WHERE status = 1 ORDER BY id"
	wantRows(t, pool, recorded, int64(1), int64(2), int64(8))
	wantRows(t, pool, "SELECT has_function_privilege('"+role+"', 'loose_foreign_keys_guard_insert()', 'EXECUTE')", false)

	exec(t, pool, testdb.NewerVersion+";"+replaced)
	must(t, DefaultSchema.Install(t.Context(), pool))
	wantRows(t, pool, "SELECT loose_foreign_keys_version()", int32(99))
	exec(t, owner, "INSERT INTO public.projects VALUES (9); DELETE FROM public.projects")
	wantRows(t, pool, recorded, int64(1), int64(2), int64(8))
}

// The database's default privileges grant rights on new tables to PUBLIC. New partitions of
// the table of deleted records must not have these rights.
func TestPartitionsStayClosed(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC")
	db := install(t, pool, "projects")
	family(t, pool, 1, 1)
	aged(t, db, "25 hours")
	rotate(t, db)
	exec(t, pool, "DROP TABLE loose_foreign_keys_deleted_records_default")
	if _, err := db.RepairDefault(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRows(t, pool, `SELECT count(*)::int FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid, aclexplode(c.relacl) a
		WHERE i.inhparent = 'loose_foreign_keys_deleted_records'::regclass AND a.grantee = 0`, 0)
	wantRows(t, pool, "SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'loose_foreign_keys_deleted_records'::regclass", 3)
}
