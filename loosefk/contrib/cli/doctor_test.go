package cli

import (
	"context"
	"fmt"

	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/doctor"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

const shop = `
	CREATE TABLE projects (id bigint PRIMARY KEY);
	CREATE TABLE pipelines (id bigint PRIMARY KEY, project_id int);
	CREATE INDEX pipelines_project_id ON pipelines (project_id);
	CREATE TABLE packages (project_id bigint, status smallint);
	CREATE INDEX packages_both ON packages (project_id, status);
	CREATE TABLE p_loads (id bigint, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
	CREATE TABLE p_loads_1 PARTITION OF p_loads FOR VALUES IN (1);
	CREATE TABLE p_loads_2 PARTITION OF p_loads FOR VALUES IN (2);
	CREATE TABLE steps (id bigint PRIMARY KEY, load_id bigint);
	CREATE INDEX steps_load_id ON steps (load_id);
	INSERT INTO projects SELECT generate_series(1, 3);
	INSERT INTO pipelines SELECT g, g FROM generate_series(1, 3) g;
	INSERT INTO p_loads SELECT g, g FROM generate_series(1, 2) g`

const shopDefinitions = `
pipelines:
  - {table: projects, column: project_id, on_delete: async_delete}
packages:
  - {table: projects, column: project_id, on_delete: update_column_to, target_column: status, target_value: 4}
steps:
  - {table: p_loads, column: load_id, on_delete: async_nullify}
`

// newShop makes an application in which doctor finds nothing wrong.
func newShop(t testing.TB) (*App, *pgxpool.Pool) {
	t.Helper()
	pool := newPool(t, shop)
	app := oneApp(t, pool, shopDefinitions)
	ok(t, app, "install")
	ok(t, app, "track")
	return app, pool
}

func TestDoctorAllIsWell(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	if out := ok(t, app, "doctor"); out != "all is well\n" {
		t.Errorf("doctor says %q", out)
	}
	runSQL(t, pool, "DELETE FROM projects WHERE id = 1")
	if out := ok(t, app, "doctor"); out != "all is well\n" {
		t.Errorf("with a record that is pending, doctor says %q", out)
	}
}

const records = "loose_foreign_keys_deleted_records"

// TestDoctor breaks one thing in each case, such as a trigger. doctor must report it, and must
// no longer report it after the test has applied the remedy that doctor names.
func TestDoctor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		breaks   string // SQL
		severity doctor.Severity
		want     string // regular expression for the text
		remedy   string // regular expression for the remedy
	}{
		{"no index on the child", "DROP INDEX pipelines_project_id", "error", "project_id of public.pipelines has no index", `^CREATE INDEX CONCURRENTLY`},
		{"no index for the update", "DROP INDEX packages_both", "error", "project_id of public.packages has no index", `\("project_id", "status"\)`},
		{"half an index for the update", "DROP INDEX packages_both; CREATE INDEX ON packages (project_id)", "warning", `begins with \(project_id, status\)`, `\("project_id", "status"\)`},
		{"no key on the parent", "ALTER TABLE projects DROP CONSTRAINT projects_pkey", "error", "projects has no unique index", `^CREATE UNIQUE INDEX CONCURRENTLY`},
		{"nothing installed", "DROP TABLE " + records + " CASCADE; DROP FUNCTION insert_into_loose_foreign_keys_deleted_records CASCADE; DROP FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table CASCADE; DROP TABLE detached_partitions", "error", "no table of deleted records", `^loosefk install main$`},
		{"no table of detached partitions", "DROP TABLE detached_partitions", "error", "detached partitions is missing", `^loosefk install main$`},
		{"no function", "DROP FUNCTION insert_into_loose_foreign_keys_deleted_records CASCADE", "error", "trigger function .* is missing", `^loosefk install main$`},
		{"no trigger", "DROP TRIGGER projects_loose_fk_trigger ON projects", "error", "projects has no trigger", `^loosefk track projects$`},
		{"trigger disabled", "ALTER TABLE projects DISABLE TRIGGER projects_loose_fk_trigger", "error", "is disabled", `^ALTER TABLE .* ENABLE TRIGGER`},
		{"trigger for replicas", "ALTER TABLE projects ENABLE REPLICA TRIGGER projects_loose_fk_trigger", "error", "is disabled", `^ALTER TABLE .* ENABLE TRIGGER`},
		{"a new partition", "CREATE TABLE p_loads_3 PARTITION OF p_loads FOR VALUES IN (3)", "error", "1 partitions of public.p_loads have no trigger.*p_loads_3", `^loosefk track p_loads$`},
		{"trigger of a partition disabled", "ALTER TABLE p_loads_1 DISABLE TRIGGER p_loads_1_loose_fk_trigger", "error", "is disabled.*p_loads_1", `ENABLE TRIGGER`},
		{"plain trigger on a partition", `DROP TRIGGER p_loads_1_loose_fk_trigger ON p_loads_1;
			CREATE TRIGGER p_loads_1_loose_fk_trigger AFTER DELETE ON p_loads_1 REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`, "error", "records the name public.p_loads_1, not public.p_loads", `^loosefk track p_loads$`},
		{"plain trigger on a partitioned table", `DROP TRIGGER p_loads_loose_fk_trigger ON p_loads;
			CREATE TRIGGER p_loads_loose_fk_trigger AFTER DELETE ON p_loads REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`, "warning", "on a partitioned table", `^loosefk track p_loads$`},
		{"another name is recorded", `DROP TRIGGER projects_loose_fk_trigger ON projects;
			CREATE TRIGGER mine AFTER DELETE ON projects REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('public.others')`, "error", "records the name public.others", `^DROP TRIGGER "mine"`},
		{"trigger on the wrong event", `DROP TRIGGER projects_loose_fk_trigger ON projects;
			CREATE TRIGGER projects_loose_fk_trigger AFTER UPDATE ON projects REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`, "error", "doesn't run once after each delete", `^loosefk track projects$`},
		{"two triggers", `CREATE TRIGGER another AFTER DELETE ON projects REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`, "warning", "twice", `^DROP TRIGGER "another"`},
		{"a trigger on no parent", `CREATE TABLE users (id int PRIMARY KEY); CREATE TRIGGER users_loose_fk_trigger AFTER DELETE ON users REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`, "warning", "deletions from public.users are recorded", `^loosefk untrack users$`},
		{"function without its owner's rights", "ALTER FUNCTION insert_into_loose_foreign_keys_deleted_records() SECURITY INVOKER", "error", "isn't SECURITY DEFINER", `^ALTER FUNCTION .* SECURITY DEFINER$`},
		{"function without a path", "ALTER FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table() RESET search_path", "error", "no search_path", `SET search_path = pg_catalog, pg_temp$`},
		{"an older version", testdb.OlderVersion, "error", "version 0 of loose foreign keys is installed, this is version 1", `^loosefk install main$`},
		{"no version", "DROP FUNCTION loose_foreign_keys_version()", "error", "version 0 of loose foreign keys is installed, this is version 1", `^loosefk install main$`},
		{"another function", "CREATE OR REPLACE FUNCTION loose_foreign_keys_guard_insert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS 'BEGIN RETURN NULL; END'", "error", "guard_insert.*isn't as version 1 installs it", `^loosefk install main$`},
		{"a function that everybody may execute", "GRANT EXECUTE ON FUNCTION loose_foreign_keys_guard_update() TO PUBLIC", "error", "everybody may execute the function .*guard_update", `^REVOKE ALL ON FUNCTION`},
		{"a function that somebody may execute", "CREATE ROLE $role; GRANT EXECUTE ON FUNCTION insert_into_loose_foreign_keys_deleted_records() TO $role", "warning", "owns no parent, may execute", `^REVOKE ALL ON FUNCTION`},
		{"records that everybody may write", "GRANT INSERT ON " + records + "_1 TO PUBLIC", "error", "everybody may write to public." + records + "_1", `^REVOKE ALL ON`},
		{"a trigger on the records", "CREATE TRIGGER mine BEFORE UPDATE ON " + records + " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", "warning", "there is a trigger mine ON", `^DROP TRIGGER mine ON`},
		{"keys that change", "DROP TRIGGER loose_fk_key_trigger ON projects", "warning", "keys of public.projects that an UPDATE changes aren't recorded", `^loosefk track projects$`},
		{"failed records", "INSERT INTO " + records + " (fully_qualified_table_name, primary_key_value, status) VALUES ('pg_temp_3.t4', 1, 3)", "warning", "1 records name no table", `^DELETE FROM`},
		{"function of somebody without rights", "CREATE ROLE $role; ALTER FUNCTION insert_into_loose_foreign_keys_deleted_records() OWNER TO $role", "error", "may not insert deleted records", `^GRANT INSERT`},
		{"no default partition", "DROP TABLE " + records + "_default", "warning", "no default partition", `^loosefk fix-default-partition main$`},
		{"wrong default", "ALTER TABLE " + records + " ALTER COLUMN partition SET DEFAULT 84", "error", "is 84, which no partition takes but", `^loosefk fix-default-partition main$`},
		{"wrong default and no partition for it", "ALTER TABLE " + records + " ALTER COLUMN partition SET DEFAULT 84; DROP TABLE " + records + "_default", "error", "is 84.* deletes from parents fail", `^loosefk fix-default-partition main$`},
		{"no default of the column", "ALTER TABLE " + records + " ALTER COLUMN partition DROP DEFAULT", "error", "partition has no default that is a number", `^loosefk fix-default-partition main$`},
		{"no number as default", "CREATE SEQUENCE s; ALTER TABLE " + records + " ALTER COLUMN partition SET DEFAULT nextval('s')", "error", "partition has no default that is a number", `^loosefk run main$|^loosefk fix-default-partition main$`},
		{"an old default", "CREATE TABLE " + records + "_2 PARTITION OF " + records + " FOR VALUES IN (2)", "warning", "is 1, and not 2, the newest partition", `^loosefk fix-default-partition main$`},
		{"no default of the time", "ALTER TABLE " + records + " ALTER COLUMN consume_after DROP DEFAULT", "error", "consume_after has no default: no worker processes", `^ALTER TABLE .* SET DEFAULT now\(\)$`},
		{"another default of the time", "ALTER TABLE " + records + " ALTER COLUMN consume_after SET DEFAULT 'infinity'", "error", "consume_after has the default 'infinity'", `^ALTER TABLE .* SET DEFAULT now\(\)$`},
		{"no default of the status", "ALTER TABLE " + records + " ALTER COLUMN status DROP DEFAULT", "error", "status has no default: deletes from parents fail", `^ALTER TABLE .* SET DEFAULT 1$`},
		{"another default of the status", "ALTER TABLE " + records + " ALTER COLUMN status SET DEFAULT 2", "error", "status has the default 2", `^ALTER TABLE .* SET DEFAULT 1$`},
		{"no default of the id", "ALTER TABLE " + records + " ALTER COLUMN id DROP DEFAULT", "error", "id has no default: deletes from parents fail", `^ALTER TABLE .* SET DEFAULT nextval`},
		{"no default of the creation", "ALTER TABLE " + records + " ALTER COLUMN created_at DROP DEFAULT", "error", "created_at has no default: deletes from parents fail", `^ALTER TABLE .* SET DEFAULT now\(\)$`},
		{"no default of the attempts", "ALTER TABLE " + records + " ALTER COLUMN cleanup_attempts DROP DEFAULT", "warning", "cleanup_attempts has no default", `^ALTER TABLE .* SET DEFAULT 0$`},
		{"records without a time", "DELETE FROM projects WHERE id = 1; UPDATE " + records + " SET consume_after = NULL", "error", "have no time in consume_after", `^UPDATE `},
		{"no partition at all", "DROP TABLE " + records + "_1; DROP TABLE " + records + "_default", "error", "deletes from parents fail", `^loosefk fix-default-partition main$`},
		{"rows in the default partition", "ALTER TABLE " + records + " ALTER COLUMN partition SET DEFAULT 2; DELETE FROM projects WHERE id = 1; ALTER TABLE " + records + " ALTER COLUMN partition SET DEFAULT 1", "warning", "default partition holds rows", `^loosefk fix-default-partition main$`},
		{"many partitions", strings.Join(func() (all []string) {
			for i := 2; i < 8; i++ {
				all = append(all, fmt.Sprintf("CREATE TABLE %s_%d PARTITION OF %[1]s FOR VALUES IN (%[2]d)", records, i))
			}
			return all
		}(), ";"), "warning", "7 partitions are attached", `^loosefk run main$`},
		{"an old partition", "DELETE FROM projects WHERE id = 1; UPDATE " + records + " SET created_at = now() - interval '3 days', status = 2", "warning", "newest partition has been in use for 7[12]h", `^loosefk run main$`},
		{"no index on the records", "DROP INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query", "error", "lost its index", `^loosefk install main$`},
		{"a detached partition is due", "CREATE TABLE " + records + "_0 (LIKE " + records + "); INSERT INTO detached_partitions (table_name, drop_after) VALUES ('public." + records + "_0', now() - interval '2 days')", "warning", "should have been dropped", `^loosefk run main$`},
		{"a detached partition with records", "CREATE TABLE " + records + "_0 (LIKE " + records + " INCLUDING ALL); INSERT INTO " + records + "_0 (fully_qualified_table_name, primary_key_value) VALUES ('public.projects', 7); INSERT INTO detached_partitions (table_name, drop_after) VALUES ('public." + records + "_0', now() - interval '2 days')", "error", "has pending records", `^WITH again`},
		{"pending for long", "DELETE FROM projects WHERE id = 1; UPDATE " + records + " SET created_at = now() - interval '1 day'", "warning", "pending for (23|24)h", `^loosefk drain --table projects$`},
		{"postponed", "DELETE FROM projects WHERE id = 1; UPDATE " + records + " SET consume_after = now() + interval '5 min'", "warning", "1 records of public.projects were postponed", `^loosefk drain --table projects$`},
		{"pending of no parent", "INSERT INTO " + records + " (fully_qualified_table_name, primary_key_value) VALUES ('public.gone', 1)", "warning", "1 records of public.gone are pending", `^loosefk untrack gone$`},
		{"a cascade underneath", "CREATE TABLE jobs (pipeline_id bigint REFERENCES pipelines ON DELETE CASCADE); CREATE INDEX ON jobs (pipeline_id)", "warning", "jobs are deleted by the foreign key", `^loosefk convert`},
		{"a key that blocks", "CREATE TABLE jobs (pipeline_id bigint REFERENCES pipelines DEFERRABLE); CREATE INDEX ON jobs (pipeline_id)", "error", "jobs_pipeline_id_fkey keeps rows of public.pipelines from being deleted", `^ALTER TABLE .* ON DELETE CASCADE$`},
		{"a restriction", "CREATE TABLE jobs (pipeline_id bigint REFERENCES pipelines ON DELETE RESTRICT); CREATE INDEX ON jobs (pipeline_id)", "error", "keeps rows of public.pipelines from being deleted", `^ALTER TABLE .* ON DELETE CASCADE$`},
		{"a key to itself", "ALTER TABLE pipelines ADD upstream_id bigint REFERENCES pipelines; CREATE INDEX ON pipelines (upstream_id)", "error", "keeps rows of public.pipelines from being deleted", `^ALTER TABLE`},
		{"a key without an index", "CREATE TABLE jobs (pipeline_id bigint REFERENCES pipelines ON DELETE CASCADE)", "warning", "has no index: for each row", `^CREATE INDEX CONCURRENTLY ON "public"."jobs"`},
		{"the hard key is still there", "ALTER TABLE pipelines ADD FOREIGN KEY (project_id) REFERENCES projects ON DELETE CASCADE", "info", "still there beside", `^ALTER TABLE .* DROP CONSTRAINT`},
		{"orphans", "INSERT INTO pipelines VALUES (77, 7), (78, 7), (79, 8)", "warning", "2 such parents.*project_id = 7", `^loosefk audit --repair pipelines$`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			app, pool := newShop(t)
			if strings.Contains(tt.breaks, "$role") {
				tt.breaks = strings.ReplaceAll(tt.breaks, "$role", "role_"+pool.Config().ConnConfig.Database)
			}
			runSQL(t, pool, tt.breaks)
			wantRemedied(t, app, pool, app, tt.severity, tt.want, tt.remedy)
		})
	}
}

// TestDoctorSession changes settings of a database or a role so that the worker can't work.
// doctor must find this.
func TestDoctorSession(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ set, want string }{
		{"ALTER DATABASE $database SET default_transaction_read_only = on", "^the worker's transactions are read-only"},
		{"ALTER ROLE CURRENT_USER IN DATABASE $database SET default_transaction_read_only = on", "^the worker's transactions are read-only"},
		{"ALTER ROLE CURRENT_USER IN DATABASE $database SET session_replication_role = replica", "no trigger fires .*session_replication_role is replica"},
	} {
		t.Run(tt.set, func(t *testing.T) {
			t.Parallel()
			app, pool := newShop(t)
			runSQL(t, pool, strings.ReplaceAll(tt.set, "$database", pool.Config().ConnConfig.Database))
			pool.Reset()
			list := findings(t, app)
			if len(list) == 0 || list[0].Severity != doctor.SeverityError || list[0].Database != "main" || !regexp.MustCompile(tt.want).MatchString(list[0].Text) {
				t.Fatalf("doctor says %+v, want %s", list, tt.want)
			}
			runSQL(t, pool, list[0].Remedy)
			pool.Reset()
			if out := ok(t, app, "doctor"); out != "all is well\n" {
				t.Errorf("after %q doctor says %q", list[0].Remedy, out)
			}
		})
	}
}

// TestDoctorPartitionAsParent runs doctor with a definition whose parent is a partition, once
// beside a definition whose parent is the partitioned table, and once alone. doctor must
// report the partition, without a remedy. Its other findings must vanish when the test
// applies their remedies.
func TestDoctorPartitionAsParent(t *testing.T) {
	t.Parallel()
	for _, definitions := range []string{
		shopDefinitions + "packages: [{table: p_loads_1, column: project_id, on_delete: async_delete}]",
		"packages: [{table: p_loads_1, column: project_id, on_delete: async_delete}]",
	} {
		app, pool := newShop(t)
		app.Definitions = parse(t, strings.Replace(definitions, "\npackages:\n", "\npublic.packages:\n", 1))
		runSQL(t, pool, "ALTER TABLE p_loads_1 ADD UNIQUE (id)")
		command(t, app, "track") // it may be refused
		const want = "p_loads_1 is a partition of public.p_loads and can't be a parent by itself"
		if _, out, _ := command(t, app, "validate"); !strings.Contains(out, want) {
			t.Errorf("validate says %s", out)
		}
		for range 4 {
			for _, f := range findings(t, app) {
				if f.Remedy != "" {
					applyRemedy(t, app, pool, f.Remedy)
				}
			}
		}
		list := findings(t, app)
		if len(list) != 1 || !strings.Contains(list[0].Text, want) || list[0].Remedy != "" {
			t.Errorf("at last doctor says %+v", list)
		}
	}
}

// findings returns the findings of the command doctor, run with the role of app's
// connections.
func findings(t *testing.T, app *App) []doctor.Finding {
	t.Helper()
	code, _, _ := command(t, app, "doctor")
	return decode[[]doctor.Finding](t, app, code, "doctor")
}

// wantRemedied tests that doctor reports a finding, and no longer reports it after the
// remedy was applied with the rights of admin.
func wantRemedied(t *testing.T, app *App, pool *pgxpool.Pool, admin *App, severity doctor.Severity, want, remedy string) {
	t.Helper()
	like := regexp.MustCompile(want)
	is := func(f doctor.Finding) bool { return like.MatchString(f.Text) }
	list := findings(t, app)
	i := slices.IndexFunc(list, is)
	if i < 0 {
		t.Fatalf("there is no finding %q among %+v", want, list)
	}
	f := list[i]
	if f.Severity != severity || !regexp.MustCompile(remedy).MatchString(f.Remedy) || f.Database != "main" || f.Table == "" {
		t.Fatalf("the finding is %+v, want %s with the remedy %s", f, severity, remedy)
	}
	if code, _, _ := command(t, app, "doctor"); (code == 3) != (severity != doctor.SeverityInfo) {
		t.Errorf("exit code %d", code)
	}
	applyRemedy(t, admin, pool, f.Remedy)
	if list := findings(t, app); slices.ContainsFunc(list, is) {
		t.Errorf("after %q there is still a finding %q: %+v", f.Remedy, want, list)
	}
}

func applyRemedy(t *testing.T, app *App, pool *pgxpool.Pool, remedy string) {
	t.Helper()
	args, isCommand := strings.CutPrefix(remedy, "loosefk ")
	switch {
	case strings.HasPrefix(args, "convert "):
		// The remedy is "loosefk convert", which only writes migrations, so run the
		// statement of the last migration.
		runSQL(t, pool, "ALTER TABLE jobs DROP CONSTRAINT jobs_pipeline_id_fkey")
	case isCommand:
		ok(t, app, strings.Fields(args)...)
	default:
		runSQL(t, pool, remedy)
	}
}

// TestDoctorDefinitions: doctor must report each definition that doesn't fit the database,
// and examine the others.
func TestDoctorDefinitions(t *testing.T) {
	t.Parallel()
	app, pool := newShop(t)
	app.Definitions = parse(t, shopDefinitions+`
nothing:
  - {table: projects, column: project_id, on_delete: async_delete}
projects:
  - {table: pipelines, column: id, on_delete: async_delete}
`)
	runSQL(t, pool, "DROP TRIGGER projects_loose_fk_trigger ON projects")
	ok(t, app, "track", "pipelines")
	list := findings(t, app)
	for _, want := range []string{
		"^loose.yml:10: there is no table public.nothing in database main$",
		"public.projects has no trigger",
	} {
		if !slices.ContainsFunc(list, func(f doctor.Finding) bool {
			return f.Severity == doctor.SeverityError && regexp.MustCompile(want).MatchString(f.Text)
		}) {
			t.Errorf("there is no error %q among %+v", want, list)
		}
	}
}

// TestDoctorRights runs doctor as a role that lacks one right in each case.
func TestDoctorRights(t *testing.T) {
	t.Parallel()
	const all = `
		GRANT postgres_owner_$role TO $role; GRANT CREATE, USAGE ON SCHEMA public TO $role;
		GRANT ALL ON ALL TABLES IN SCHEMA public TO $role; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO $role`
	for _, tt := range []struct{ name, breaks, want, remedy string }{
		{"no right to read parents", "REVOKE SELECT ON projects FROM $role", "lacks the right to SELECT on public.projects", "^GRANT SELECT ON"},
		{"no right to delete children", "REVOKE DELETE, UPDATE ON pipelines FROM $role", "lacks the right to UPDATE, DELETE on public.pipelines", "^GRANT UPDATE, DELETE ON"},
		{"no right to update records", "REVOKE UPDATE ON " + records + " FROM $role, postgres_owner_$role", "lacks the right to UPDATE on public." + records, "^GRANT UPDATE ON"},
		{"no right to use a schema", "CREATE SCHEMA apart; ALTER TABLE steps SET SCHEMA apart", "may not use schema apart", "^GRANT USAGE ON SCHEMA"},
		{"no right to create", "REVOKE CREATE ON SCHEMA public FROM $role", "may not create tables", "^GRANT CREATE ON SCHEMA"},
		{"not the owner", "REVOKE postgres_owner_$role FROM $role", "doesn't own public." + records, "^GRANT .*owner"},
		{"row security on a parent", "ALTER TABLE projects ENABLE ROW LEVEL SECURITY", "row security hides rows of public.projects", "BYPASSRLS$"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			admin, pool := newShop(t)
			role := "role_" + pool.Config().ConnConfig.Database
			with := strings.NewReplacer("$role", role).Replace
			runSQL(t, pool, with(`CREATE ROLE $role LOGIN; CREATE ROLE postgres_owner_$role;
				GRANT USAGE ON SCHEMA public TO postgres_owner_$role;
				ALTER TABLE `+records+` OWNER TO postgres_owner_$role; ALTER TABLE detached_partitions OWNER TO postgres_owner_$role;
				GRANT ALL ON `+records+`, detached_partitions TO CURRENT_USER;`)+with(all))
			app := oneApp(t, as(t, pool, role), shopDefinitions)
			if tt.name == "no right to use a schema" {
				app.Definitions = parse(t, strings.Replace(shopDefinitions, "steps:", "apart.steps:", 1))
			} else if list := findings(t, app); len(list) > 0 {
				t.Fatalf("with all rights doctor finds %+v", list)
			}
			runSQL(t, pool, with(tt.breaks))
			wantRemedied(t, app, pool, admin, doctor.SeverityError, tt.want, tt.remedy)
		})
	}
}

// as opens a pool for the same database whose connections use another role.
func as(t *testing.T, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET ROLE "+role)
		return err
	}
	other, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(other.Close)
	return other
}

// TestDoctorOrder adds a table with a foreign key to a child that the worker deletes.
// doctor must report the foreign key unless an earlier definition of the same parent cleans
// up the added table.
func TestDoctorOrder(t *testing.T) {
	t.Parallel()
	const jobs = "jobs:\n  - {table: projects, column: project_id, on_delete: async_delete}\n"
	limited := strings.Replace(shopDefinitions, "on_delete: async_delete", "on_delete: async_delete, delete_limit: 50", 1)
	conditional := strings.Replace(jobs, "async_delete", "async_delete, conditions: [{column: pipeline_id, value: 1}]", 1)
	for _, tt := range []struct{ name, action, definitions, want string }{
		{"blocked", "", shopDefinitions, "keeps rows of public.pipelines from being deleted"},
		{"cleaned up too late", "", shopDefinitions + jobs, "keeps rows of public.pipelines from being deleted"},
		{"cleaned up before", "", jobs + shopDefinitions, ""},
		{"some of them cleaned up before", "", conditional + shopDefinitions, "keeps rows of public.pipelines from being deleted"},
		{"cascade", "ON DELETE CASCADE", shopDefinitions, "jobs are deleted by the foreign key"},
		{"null", "ON DELETE SET NULL", shopDefinitions, "jobs are updated by the foreign key"},
		{"cascade cleaned up before", "ON DELETE CASCADE", jobs + shopDefinitions, ""},
		{"cascade with a limit", "ON DELETE CASCADE", limited, ""},
		{"blocked with a limit", "", limited, "keeps rows of public.pipelines from being deleted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			app, pool := newShop(t)
			runSQL(t, pool, `CREATE TABLE jobs (pipeline_id bigint REFERENCES pipelines `+tt.action+`, project_id bigint);
				CREATE INDEX ON jobs (pipeline_id); CREATE INDEX ON jobs (project_id)`)
			app.Definitions = parse(t, tt.definitions)
			list := findings(t, app)
			switch {
			case tt.want == "" && len(list) > 0:
				t.Errorf("doctor finds %+v, want nothing", list)
			case tt.want != "" && (len(list) != 1 || !strings.Contains(list[0].Text, tt.want)):
				t.Errorf("doctor finds %+v, want %q", list, tt.want)
			}
		})
	}
}

// TestSchema runs the commands on tables in another schema than public.
func TestSchema(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "CREATE SCHEMA app; SET search_path = app; "+shop+"; SET search_path = DEFAULT")
	app := oneApp(t, pool, shopDefinitions)
	app.Databases[0].Schema = "app"
	ok(t, app, "install")
	for _, want := range []string{"loosefk track projects", "loosefk track p_loads"} {
		if list := findings(t, app); !slices.ContainsFunc(list, func(f doctor.Finding) bool { return f.Remedy == want }) {
			t.Fatalf("doctor finds %+v, want the remedy %s", list, want)
		}
		ok(t, app, strings.Fields(want)[1:]...)
	}
	if out := ok(t, app, "doctor"); out != "all is well\n" {
		t.Fatal(out)
	}
	runSQL(t, pool, "INSERT INTO app.pipelines VALUES (77, 77); ALTER TABLE app."+records+" ALTER COLUMN partition SET DEFAULT 7; DELETE FROM app.projects")
	wantRemedied(t, app, pool, app, "error", "is 7, which no partition takes", "fix-default-partition")
	ok(t, app, "audit", "--repair")
	wantLines(t, ok(t, app, "run"), "database main: 4 of 4 records processed, 4 rows deleted, 0 updated")
	if n := count(t, pool, "SELECT count(*) FROM app.pipelines"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
