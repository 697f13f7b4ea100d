package loosefk

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// A table that rotation needs is missing, so a run can't rotate the partitions of the table
// of deleted records. The run must return an error, and still process deleted records.
func TestRunGoesOnWithoutRotation(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	db := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, db)
	family(t, pool, 1, 3)
	aged(t, db, "25 hours")
	exec(t, pool, "DROP TABLE detached_partitions")
	r, err := w.RunOnce(t.Context(), "main")
	if err == nil || !strings.Contains(err.Error(), "detached_partitions") {
		t.Errorf("the run doesn't say what is in the way: %v", err)
	}
	if r.Processed != 1 || r.Deletes != 3 {
		t.Errorf("the run says %+v", r)
	}
}

// If row security hides parents or children from the worker, a run must fail: otherwise the
// worker would take hidden parents for deleted ones.
func TestRowSecurity(t *testing.T) {
	t.Parallel()
	for name, hidden := range map[string]string{"child": "builds", "parent": "projects"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, oneChild)
			db := install(t, pool, "projects")
			family(t, pool, 1, 3)
			exec(t, pool, "INSERT INTO projects VALUES (5)")
			exec(t, pool, "INSERT INTO builds (project_id) VALUES (5)")
			role := "worker_" + query[string](t, pool, "SELECT replace(current_database(), '-', '_')")[0]
			exec(t, pool, "CREATE ROLE "+role+`; GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role+`;
				GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+role+"; ALTER TABLE "+hidden+" ENABLE ROW LEVEL SECURITY")
			t.Cleanup(func() {
				pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol) //nolint:errcheck // the test's server is removed anyway
			})
			cfg := pool.Config()
			cfg.ConnConfig.RuntimeParams["role"] = role
			restricted, err := pgxpool.NewWithConfig(t.Context(), cfg)
			must(t, err)
			t.Cleanup(restricted.Close)
			db.Pool = restricted
			w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, db)
			if _, err := Tools.Repair(t.Context(), w); !pg.IsState(err, pg.StateNoPrivilege) {
				t.Errorf("the audit ends with %v", err)
			}
			r, err := w.RunOnce(t.Context(), "main")
			if !pg.IsState(err, pg.StateNoPrivilege) || r.Processed != 0 || r.Deletes != 0 {
				t.Errorf("the run says %+v, %v", r, err)
			}
			wantRows(t, pool, "SELECT count(*)::int FROM builds", 4)
			wantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records WHERE status = 1", int64(1))
		})
	}
}

// An update moves a child to another partition, and to a parent that doesn't exist. The
// triggers of GuardInserts must refuse the update, although an update that moves a row to
// another partition fires no AFTER UPDATE trigger.
func TestGuardRowMovement(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE TABLE builds (project_id bigint, state int) PARTITION BY LIST (state);
		CREATE TABLE builds_1 PARTITION OF builds FOR VALUES IN (1);
		CREATE TABLE builds_2 PARTITION OF builds FOR VALUES IN (2);
		CREATE INDEX ON builds (project_id)`)
	install(t, pool, "projects")
	must(t, DefaultSchema.GuardInserts(t.Context(), pool, "builds", "project_id", "projects"))
	exec(t, pool, "INSERT INTO projects VALUES (1)")
	exec(t, pool, "INSERT INTO builds VALUES (1, 1)")
	for _, sql := range []string{
		"UPDATE builds SET project_id = 9",
		"UPDATE builds SET project_id = 9, state = 2",
		"UPDATE builds_1 SET project_id = 9",
		"UPDATE builds SET project_id = 9, state = state",
	} {
		if _, err := pool.Exec(t.Context(), sql); !pg.IsState(err, "23503") {
			t.Errorf("%s: %v, want it refused", sql, err)
		}
	}
	exec(t, pool, "UPDATE builds SET state = 2")
	exec(t, pool, "DELETE FROM projects")
	exec(t, pool, "UPDATE builds SET state = 1") // a child of a deleted parent may change until it is cleaned up
	must(t, DefaultSchema.UnguardInserts(t.Context(), pool, "builds", "project_id"))
	exec(t, pool, "UPDATE builds SET project_id = 9, state = 2")
}

// Validate must report target columns that can't be set to the target value, and columns
// whose values can't be compared.
func TestValidateTargets(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE DOMAIN short AS varchar(3);
		CREATE TYPE mood AS ENUM ('sad', 'ok');
		CREATE TABLE builds (project_id bigint, double bigint GENERATED ALWAYS AS (project_id * 2) STORED,
			always bigint GENERATED ALWAYS AS IDENTITY, doc json, docb jsonb, s short, m mood, gone timestamptz);
		CREATE INDEX ON builds (project_id);
		CREATE INDEX ON builds (double)`)
	dbs := Databases{{Name: "main", Pool: pool}}
	for text, want := range map[string]string{
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: doc, target_value: '{}'}":          "json",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: docb, target_value: '{}'}":         "",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: double, target_value: 1}":          "can only be updated to DEFAULT",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: always, target_value: 1}":          "can only be updated to DEFAULT",
		"{table: projects, column: double, on_delete: async_nullify}":                                                         "can only be updated to DEFAULT",
		"{table: projects, column: double, on_delete: async_delete}":                                                          "",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: s, target_value: abcdef}":          "",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: m, target_value: ok}":              "",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: m, target_value: glad}":            "invalid input value for enum mood",
		"{table: projects, column: project_id, on_delete: async_delete, conditions: [{column: m, value: [sad, glad]}]}":       "invalid input value for enum mood",
		"{table: projects, column: project_id, on_delete: async_delete, conditions: [{column: doc, value: '{}'}]}":            "json",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: gone, target_value: now}":          "now",
		"{table: projects, column: project_id, on_delete: update_column_to, target_column: gone, target_value: '2020-01-01'}": "",
	} {
		defs, err := Parse("l.yml", strings.NewReader("builds: ["+text+"]"))
		must(t, err)
		err = Validate(t.Context(), dbs, defs)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// While the worker waits for locked children of one definition, a client inserts the parent
// again. The worker must not delete the parent's children of another definition, in another
// database.
func TestRemoteParentReturns(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	other := newPool(t, "CREATE TABLE pulls (project_id bigint)", "CREATE INDEX ON pulls (project_id)")
	main := install(t, pool, "projects")
	w := newWorker(t, Options{LockTimeout: 10 * time.Second, Definitions: parse(t, oneDefinition+
		"\npulls: [{table: projects, column: project_id, on_delete: async_delete}]")},
		main, Database{Name: "other", Pool: other, Tables: []string{"pulls"}})
	family(t, pool, 1, 2)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "SELECT FROM builds FOR UPDATE")
	done := make(chan error, 1)
	go func() {
		_, err := w.RunOnce(context.WithoutCancel(t.Context()), "main")
		done <- err
	}()
	waitBlocked(t, pool, tx.Conn())
	exec(t, pool, "INSERT INTO projects VALUES (1)")
	exec(t, other, "INSERT INTO pulls VALUES (1)")
	must(t, tx.Commit(t.Context()))
	must(t, <-done)
	wantRows(t, other, "SELECT project_id FROM pulls", int64(1))
}

// The worker must work with each of pgx's ways to send statements, because some connection
// poolers allow only some of them.
func TestExecModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeCacheDescribe,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, testdb.Projects)
			db := install(t, pool, "projects")
			cfg := pool.Config()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
			cfg.ConnConfig.RuntimeParams["timezone"] = "Pacific/Auckland"
			var err error
			db.Pool, err = pgxpool.NewWithConfig(t.Context(), cfg)
			must(t, err)
			t.Cleanup(db.Pool.Close)
			w := newWorker(t, Options{Definitions: parse(t, testdb.ProjectsDefinitions)}, db)
			exec(t, pool, "DELETE FROM projects WHERE id IN (1, 3)")
			aged(t, db, "25 hours")
			r := runOnce(t, w, "main")
			if r.Processed != 2 || r.Deletes != 2000 || r.Updates != 20+200 || r.Rotation.Added == "" {
				t.Errorf("the run says %+v", r)
			}
			exec(t, pool, "DELETE FROM projects WHERE id = 2")
			if n, err := db.Expedite(t.Context(), "projects"); err != nil || n != 1 {
				t.Errorf("%d records were expedited: %v", n, err)
			}
			if r := runOnce(t, w, "main"); len(r.Rotation.Detached) != 1 || r.Processed != 1 {
				t.Errorf("the second run says %+v", r)
			}
			exec(t, pool, "INSERT INTO pipelines (project_id) VALUES (77)")
			found, err := Tools.Repair(t.Context(), w)
			must(t, err)
			if want := []string{"public.pipelines 0/0 1/1 [77][] 1", "public.requests 0/0 0/0 [][] 0", "public.packages 0/0 0/0 [][] 0"}; !slices.Equal(found, want) {
				t.Errorf("the audit says %q, want %q", found, want)
			}
			if r, err := w.Drain(t.Context(), "projects", nil); err != nil || r.Deletes != 1 {
				t.Errorf("draining says %+v, %v", r, err)
			}
			exec(t, pool, "UPDATE detached_partitions SET drop_after = now()")
			if r := runOnce(t, w, "main"); len(r.Rotation.Dropped) != 1 {
				t.Errorf("the last run says %+v", r)
			}
		})
	}
}

// The worker must delete the right children although names need quotes, tables are in
// several schemas, and rows in nested partitions have the same ctid.
func TestNamesAndLevels(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `CREATE SCHEMA "My Parts"; CREATE SCHEMA "Shop"`, `
		CREATE TABLE "Shop"."Order" (id smallint PRIMARY KEY);
		CREATE TABLE "Shop"."Line-Item" (id bigserial, "Order ID" int, kind text, area int) PARTITION BY HASH (area);
		CREATE TABLE "My Parts".l0 PARTITION OF "Shop"."Line-Item" FOR VALUES WITH (MODULUS 2, REMAINDER 0) PARTITION BY LIST (kind);
		CREATE TABLE "My Parts".l1 PARTITION OF "Shop"."Line-Item" FOR VALUES WITH (MODULUS 2, REMAINDER 1) PARTITION BY LIST (kind);
		CREATE TABLE "My Parts".l0a PARTITION OF "My Parts".l0 FOR VALUES IN ('a');
		CREATE TABLE "My Parts".l0d PARTITION OF "My Parts".l0 DEFAULT;
		CREATE TABLE "My Parts".l1a PARTITION OF "My Parts".l1 FOR VALUES IN ('a');
		CREATE TABLE "My Parts".l1d PARTITION OF "My Parts".l1 DEFAULT;
		CREATE INDEX ON "Shop"."Line-Item" ("Order ID");
		INSERT INTO "Shop"."Order" VALUES (-3), (1), (2);
		INSERT INTO "Shop"."Line-Item" ("Order ID", kind, area)
		SELECT (ARRAY[-3, 1, 2])[1 + g % 3], (ARRAY['a', 'b', NULL])[1 + g / 3 % 3], g FROM generate_series(1, 900) g`)
	shop := Schema("Shop")
	must(t, shop.Install(t.Context(), pool))
	must(t, shop.TrackRecordDeletions(t.Context(), pool, "Order"))
	must(t, shop.GuardInserts(t.Context(), pool, "Line-Item", "Order ID", "Order"))
	db := Database{Name: "main", Pool: pool, Schema: "Shop"}
	w := newWorker(t, Options{DeleteLimit: 7, Definitions: parse(t, `Line-Item: [{table: Order, column: Order ID, on_delete: async_delete, conditions: [{column: kind, value: [a, null]}]}]`)}, db)
	exec(t, pool, `DELETE FROM "Shop"."Order" WHERE id IN (-3, 2)`)
	aged2 := `UPDATE "Shop".loose_foreign_keys_deleted_records SET created_at = created_at - interval '2 days'`
	exec(t, pool, aged2)
	if r := runOnce(t, w, "main"); r.Processed != 2 || r.Deletes != 400 || r.Rotation.Added == "" {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, `SELECT "Order ID" || COALESCE(kind, '-') || count(*) FROM "Shop"."Line-Item" GROUP BY "Order ID", kind ORDER BY 1`,
		"-3b100", "1-100", "1a100", "1b100", "2b100")
	if _, err := pool.Exec(t.Context(), `INSERT INTO "My Parts".l1a SELECT * FROM "My Parts".l1a WHERE false`); err != nil {
		t.Error(err)
	}
	p, err := db.Pending(t.Context())
	if err != nil || len(p) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

// A rotation moves records out of the default partition while a run marks them as
// processed. The run must not fail.
func TestMarkedWhileMoved(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	db := install(t, pool, "projects")
	exec(t, pool, "ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 4")
	family(t, pool, 1, 2)
	recs, err := db.load(t.Context(), pg.Table{Schema: "public", Name: "projects"}, laneDue, 10, nil)
	must(t, err)
	if len(recs) != 1 {
		t.Fatalf("%d records", len(recs))
	}
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "UPDATE loose_foreign_keys_deleted_records SET partition = 1")
	done := make(chan error, 1)
	go func() { done <- db.processed(context.WithoutCancel(t.Context()), recs) }()
	waitBlocked(t, pool, tx.Conn())
	must(t, tx.Commit(t.Context()))
	must(t, <-done)
}

// A table's name is so long that the name of its trigger exceeds PostgreSQL's 63 bytes. The
// trigger's name must be cut between two characters, not inside one of several bytes.
func TestLongNames(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("a", 46) + strings.Repeat("ü", 8) // 62 bytes
	pool := newPool(t, `CREATE TABLE "`+name+`" (id bigint PRIMARY KEY)`)
	must(t, DefaultSchema.Install(t.Context(), pool))
	must(t, DefaultSchema.TrackRecordDeletions(t.Context(), pool, name))
}

// Two columns of a child have long names that begin alike. GuardInserts must create triggers
// for each column, although PostgreSQL cuts long trigger names.
func TestGuardNames(t *testing.T) {
	t.Parallel()
	first, second := strings.Repeat("a", 50)+"1", strings.Repeat("a", 50)+"2"
	letters := strings.Repeat("ü", 30) // 60 bytes
	pool := newPool(t, `CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE TABLE builds ("`+first+`" bigint, "`+second+`" bigint, "`+letters+`" bigint)`)
	must(t, DefaultSchema.Install(t.Context(), pool))
	for _, column := range []string{first, second, letters} {
		must(t, DefaultSchema.GuardInserts(t.Context(), pool, "builds", column, "projects"))
	}
	for _, column := range []string{first, second, letters} {
		if _, err := pool.Exec(t.Context(), `INSERT INTO builds ("`+column+`") VALUES (9)`); !pg.IsState(err, "23503") {
			t.Errorf("an orphan by %s: %v", column, err)
		}
	}
}

// A foreign key forbids the worker to delete two children. Only the deleted records of
// their parents may stay pending: the same run must process all other deleted records.
func TestUndeletableChildCostsItsParent(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `CREATE TABLE hard (build_id bigint REFERENCES builds (id))`)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), Batch: 4}, install(t, pool, "projects"))
	exec(t, pool, "INSERT INTO projects SELECT generate_series(1, 20)")
	exec(t, pool, "INSERT INTO builds (project_id) SELECT g % 20 + 1 FROM generate_series(1, 60) g")
	exec(t, pool, "INSERT INTO hard SELECT min(id) FROM builds WHERE project_id IN (3, 7) GROUP BY project_id")
	exec(t, pool, "DELETE FROM projects")
	r, err := w.RunOnce(t.Context(), "main")
	if !pg.IsState(err, "23503") || strings.Count(err.Error(), "23503") != 1 {
		t.Errorf("the run ends with %v", err)
	}
	if r.Processed != 18 || r.Deletes != 54 || r.Incremented != 2 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT project_id || ':' || count(*) FROM builds GROUP BY project_id ORDER BY project_id", "3:3", "7:3")
	if _, err := w.Drain(t.Context(), "projects", nil); !pg.IsState(err, "23503") {
		t.Errorf("draining ends with %v", err)
	}
	exec(t, pool, "DROP TABLE hard")
	if r, err := w.Drain(t.Context(), "projects", nil); err != nil || r.Deletes != 6 {
		t.Errorf("draining says %+v, %v", r, err)
	}
}

// A client locks the children of a deleted parent, and inserts the parent again in the same
// transaction. The worker's query doesn't see the uncommitted parent and waits for the
// locked children; after the commit it must not delete them.
func TestParentReturnsWithItsChildren(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, "CREATE TABLE logs (build_id bigint REFERENCES builds (id) ON DELETE CASCADE)")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), LockTimeout: 10 * time.Second}, install(t, pool, "projects"))
	family(t, pool, 1, 2)
	family(t, pool, 2, 2)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "INSERT INTO projects VALUES (1)")
	exec(t, tx, "INSERT INTO logs SELECT id FROM builds WHERE project_id = 1") // locks them
	type ended struct {
		Result
		error
	}
	done := make(chan ended, 1)
	go func() {
		r, err := w.RunOnce(context.WithoutCancel(t.Context()), "main")
		done <- ended{r, err}
	}()
	waitBlocked(t, pool, tx.Conn())
	must(t, tx.Commit(t.Context()))
	r := <-done
	must(t, r.error)
	if r.Processed != 2 || r.Deletes != 2 {
		t.Errorf("the run says %+v", r.Result)
	}
	wantRows(t, pool, "SELECT project_id FROM builds", int64(1), 1)
}

// Rotation searches a partition for pending records while all clients that delete parents
// wait. The query must use an index, whatever PostgreSQL's statistics of the table say.
func TestDetachReadsTheIndex(t *testing.T) {
	t.Parallel()
	pool := newPool(t, onlyParents)
	db := install(t, pool, "projects")
	exec(t, pool, "ALTER TABLE loose_foreign_keys_deleted_records_1 SET (autovacuum_enabled = off)")
	exec(t, pool, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, created_at)
		SELECT 'public.projects', g, now() - interval '2 days' FROM generate_series(1, 20000) g`)
	exec(t, pool, "ANALYZE loose_foreign_keys_deleted_records_1")
	rotate(t, db)
	exec(t, pool, "UPDATE loose_foreign_keys_deleted_records SET status = 2")
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test changes nothing
	list, _, err := db.in().Partitions(t.Context(), db.catalog())
	must(t, err)
	before := query[int64](t, tx, "SELECT pg_stat_get_xact_numscans('loose_foreign_keys_deleted_records_1'::regclass)")[0]
	must(t, db.detach(t.Context(), tx, list[0], quick))
	if n := query[int64](t, tx, "SELECT pg_stat_get_xact_numscans('loose_foreign_keys_deleted_records_1'::regclass)")[0] - before; n != 0 {
		t.Errorf("the partition was read whole %d times", n)
	}
}

// One parent table has more records than a run may process. The next runs must process
// records of other parent tables too.
func TestParentsTakeTurnsAcrossRuns(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `
		CREATE TABLE users (id bigint PRIMARY KEY);
		CREATE TABLE keys (id bigserial PRIMARY KEY, user_id bigint);
		CREATE INDEX ON keys (user_id)`)
	w := newWorker(t, Options{MaxDeletes: 40, DeleteLimit: 10, Definitions: parse(t,
		oneDefinition+"\nkeys: [{table: users, column: user_id, on_delete: async_delete}]")}, install(t, pool, "projects", "users"))
	exec(t, pool, "INSERT INTO projects SELECT generate_series(1, 100)")
	exec(t, pool, "INSERT INTO builds (project_id) SELECT g % 100 + 1 FROM generate_series(1, 1000) g")
	exec(t, pool, "INSERT INTO users VALUES (7)")
	exec(t, pool, "INSERT INTO keys (user_id) VALUES (7)")
	exec(t, pool, "DELETE FROM projects")
	exec(t, pool, "DELETE FROM users")
	for range 2 {
		if r := runOnce(t, w, "main"); r.OverLimit != "deletes" {
			t.Errorf("the run says %+v", r)
		}
	}
	wantRows(t, pool, "SELECT count(*)::int FROM keys", 0)
}

// New must refuse a connection pool with room for one connection only: a worker needs two,
// and would wait for the second one for ever.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	cfg := pool.Config()
	cfg.MaxConns, cfg.MinIdleConns = 1, 0
	one, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(one.Close)
	if _, err := New(Options{Databases: Databases{{Name: "main", Pool: one}}}); err == nil {
		t.Error("it is taken")
	}
}
