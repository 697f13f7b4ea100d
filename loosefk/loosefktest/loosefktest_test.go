package loosefktest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
	"github.com/purser-registry/purser/loosefk/loosefktest"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const schema = `
	CREATE TYPE mood AS ENUM ('good', 'bad');
	CREATE TABLE owners (id uuid PRIMARY KEY, name varchar(8) NOT NULL UNIQUE);
	CREATE TABLE projects (id bigint PRIMARY KEY, owner_id uuid NOT NULL REFERENCES owners, mood mood NOT NULL,
		made timestamptz NOT NULL, tags text[] NOT NULL, doc jsonb NOT NULL, ok bool NOT NULL, hash bytea NOT NULL, note text);
	CREATE TABLE pipelines (id bigserial PRIMARY KEY, project_id int, owner_id uuid NOT NULL REFERENCES owners);
	CREATE INDEX ON pipelines (project_id);
	CREATE TABLE requests (id bigserial PRIMARY KEY, project_id bigint, size int2 NOT NULL);
	CREATE INDEX ON requests (project_id);
	CREATE TABLE packages (project_id bigint, status smallint, live bool NOT NULL);
	CREATE INDEX ON packages (project_id, status);
	CREATE TABLE p_loads (id bigint, part int NOT NULL, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
	CREATE TABLE p_loads_7 PARTITION OF p_loads FOR VALUES IN (7);
	CREATE TABLE steps (id bigserial PRIMARY KEY, load_id bigint);
	CREATE INDEX ON steps (load_id)`

const definitions = `
pipelines:
  - {table: projects, column: project_id, on_delete: async_delete}
requests:
  - {table: projects, column: project_id, on_delete: async_nullify}
packages:
  - {table: projects, column: project_id, on_delete: update_column_to, target_column: status, target_value: 4,
     conditions: [{column: live, value: yes}]}
steps:
  - {table: p_loads, column: load_id, on_delete: async_nullify}
`

// newApp creates a database in which loose foreign keys are installed and the parents are
// tracked.
func newApp(t *testing.T) (*pgxpool.Pool, loosefk.Definitions) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	runSQL(t, pool, schema)
	defs, err := loosefk.Parse("loose.yml", strings.NewReader(definitions))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		loosefk.DefaultSchema.Install(t.Context(), pool),
		loosefk.DefaultSchema.TrackRecordDeletions(t.Context(), pool, "projects"),
		loosefk.DefaultSchema.TrackRecordDeletionsOverrideTableName(t.Context(), pool, "p_loads"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return pool, defs
}

func runSQL(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

var children = []loosefktest.Child{
	{Table: "pipelines", Column: "project_id"},
	{Table: "requests", Column: "project_id"},
	{Table: "packages", Column: "project_id", Parent: "projects"},
	{Table: "steps", Column: "load_id"},
}

// TestPasses runs HasLooseForeignKeys and CleanedUp, with made-up rows, on a correct
// database. Both must pass.
func TestPasses(t *testing.T) {
	t.Parallel()
	pool, defs := newApp(t)
	t.Run("tests", func(t *testing.T) {
		loosefktest.HasLooseForeignKeys(t, pool, defs, "projects")
		loosefktest.HasLooseForeignKeys(t, pool, defs, "public.p_loads")
		for _, child := range children {
			loosefktest.CleanedUp(t, pool, defs, child)
		}
	})
	// CleanedUp must remove all rows that it inserted, except an updated row of a table
	// without a primary key, since it can't find that row again.
	for table, want := range map[string]int{"owners": 0, "projects": 0, "pipelines": 0, "requests": 0, "packages": 1, "p_loads": 0, "steps": 0} {
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != want {
			t.Errorf("%d rows of %s are left, want %d, %v", n, table, want, err)
		}
	}
}

func TestCallbacks(t *testing.T) {
	t.Parallel()
	pool, defs := newApp(t)
	runSQL(t, pool, `
		INSERT INTO owners VALUES ('00000000-0000-0000-0000-000000000001', 'a');
		ALTER TABLE projects ADD CHECK (note = 'mine'), ALTER note SET NOT NULL;
		ALTER TABLE requests ADD CHECK (size < 0)`)
	parent := loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (id int64, err error) {
		err = db.QueryRow(ctx, `INSERT INTO projects SELECT COALESCE(max(id), 0) + 1, '00000000-0000-0000-0000-000000000001', 'bad', now(), '{}', '{}', true, '', 'mine'
			FROM projects RETURNING id`).Scan(&id)
		return id, err
	})
	child := loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent int64) error {
		_, err := db.Exec(ctx, "INSERT INTO requests (project_id, size) VALUES ($1, -1), ($1, -2)", parent)
		return err
	})
	loosefktest.HasLooseForeignKeys(t, pool, defs, "projects", parent)
	loosefktest.CleanedUp(t, pool, defs, children[1], parent, child)
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM requests WHERE project_id IS NULL").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows of requests lost their reference, want 2, %v", n, err)
	}
}

// recorder implements testing.TB and records why a test failed.
type recorder struct {
	testing.TB
	ctx      context.Context
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Cleanup(fn func())        { r.cleanups = append(r.cleanups, fn) }
func (r *recorder) FailNow()                 { runtime.Goexit() }
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}

// record runs a test and returns the failures that it reported, or "" if it passed.
func record(t *testing.T, test func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t, ctx: t.Context()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(r.cleanups) - 1; i >= 0; i-- {
				r.cleanups[i]()
			}
		}()
		test(r)
	}()
	<-done
	return strings.Join(r.failures, "\n")
}

// TestFails breaks one thing in the database in each case. HasLooseForeignKeys or CleanedUp
// must fail, with a message that names the cause.
func TestFails(t *testing.T) {
	t.Parallel()
	has := func(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions) {
		loosefktest.HasLooseForeignKeys(t, pool, defs, "projects")
	}
	cleaned := func(child int, opts ...loosefktest.Option) func(testing.TB, *pgxpool.Pool, loosefk.Definitions) {
		return func(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions) {
			loosefktest.CleanedUp(t, pool, defs, children[child], opts...)
		}
	}
	for _, tt := range []struct {
		name, breaks string
		test         func(testing.TB, *pgxpool.Pool, loosefk.Definitions)
		want         []string
	}{
		{"no definition", "", func(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions) {
			loosefktest.HasLooseForeignKeys(t, pool, defs, "owners")
		}, []string{"owners", "no definition names it as a parent"}},
		{"not installed", "DROP TABLE loose_foreign_keys_deleted_records", has, []string{"no table of deleted records", "loosefk install"}},
		{"no trigger", "DROP TRIGGER projects_loose_fk_trigger ON projects", has, []string{"projects has no trigger", "loosefk track projects"}},
		{"trigger disabled", "ALTER TABLE projects DISABLE TRIGGER projects_loose_fk_trigger", has, []string{"is disabled", "ENABLE TRIGGER"}},
		{"a function that does nothing", `CREATE OR REPLACE FUNCTION insert_into_loose_foreign_keys_deleted_records() RETURNS trigger
			LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS 'BEGIN RETURN NULL; END'`, has, []string{"isn't as version 1 installs it"}},
		{"no table", "DROP TABLE requests", has, []string{"there is no table public.requests"}},
		{"a parent that can't be made up", "ALTER TABLE projects ADD CHECK (note = 'mine'), ALTER note SET NOT NULL", has, []string{"making a row of public.projects", "NewParent"}},
		{"no definition of the child", "", func(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions) {
			loosefktest.CleanedUp(t, pool, defs, loosefktest.Child{Table: "pipelines", Column: "owner_id"})
		}, []string{"pipelines.owner_id", "no definition", "project_id"}},
		{"the hard key is still there", "ALTER TABLE pipelines ADD CONSTRAINT fk_hard FOREIGN KEY (project_id) REFERENCES projects ON DELETE CASCADE",
			cleaned(0), []string{"1 of 1 children went with their parent", "drop fk_hard"}},
		{"the hard key blocks", "ALTER TABLE pipelines ADD CONSTRAINT fk_hard FOREIGN KEY (project_id) REFERENCES projects",
			cleaned(0), []string{"can't be deleted", "fk_hard"}},
		{"a trigger that deletes", `CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM requests WHERE id = NEW.id; RETURN NULL; END';
			CREATE TRIGGER gone AFTER UPDATE ON requests FOR EACH ROW EXECUTE FUNCTION gone()`,
			cleaned(1), []string{"1 of 1 children are gone instead of changed"}},
		{"not a child of the definition", "ALTER TABLE packages ALTER status SET DEFAULT 4", cleaned(2), []string{"no row with project_id", "status other than target_value", "NewChild"}},
		{"a trigger without effect", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER keep BEFORE DELETE ON projects FOR EACH ROW EXECUTE FUNCTION keep()`, has, []string{"there is no row with the id"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool, defs := newApp(t)
			if tt.breaks != "" {
				runSQL(t, pool, tt.breaks)
			}
			why := record(t, func(t testing.TB) { tt.test(t, pool, defs) })
			for _, want := range tt.want {
				if !strings.Contains(why, want) {
					t.Errorf("it failed with %q, want %q in it", why, want)
				}
			}
		})
	}
}

// TestKeys runs HasLooseForeignKeys and CleanedUp on parents with keys of each type and of
// any name.
func TestKeys(t *testing.T) {
	t.Parallel()
	type uuid [16]byte
	type slug string
	insert := func(ctx context.Context, db loosefk.DB, value any) error {
		_, err := db.Exec(ctx, "INSERT INTO c (ref) VALUES ($1)", value)
		return err
	}
	const insertParent = "INSERT INTO p VALUES ($1)"
	for _, tt := range []struct {
		name, column, typ string
		own               []loosefktest.Option
	}{
		{"smallint", "id", "smallint", []loosefktest.Option{
			loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (int16, error) {
				_, err := db.Exec(ctx, insertParent, int16(-7))
				return -7, err
			}),
			loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent int16) error { return insert(ctx, db, parent) })}},
		{"integer", "nr", "integer", []loosefktest.Option{
			loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent int) error { return insert(ctx, db, parent) })}},
		{"bigint", "The id", "bigint", []loosefktest.Option{
			loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent int64) error { return insert(ctx, db, parent) })}},
		{"uuid", "id", "uuid", []loosefktest.Option{
			loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (string, error) {
				_, err := db.Exec(ctx, insertParent, "A0000000-0000-0000-0000-00000000000B")
				return "A0000000-0000-0000-0000-00000000000B", err
			}),
			loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent string) error { return insert(ctx, db, parent) })}},
		{"uuid of bytes", "key", "uuid", []loosefktest.Option{
			loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (uuid, error) {
				_, err := db.Exec(ctx, insertParent, [16]byte{1, 2})
				return uuid{1, 2}, err
			}),
			loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent uuid) error { return insert(ctx, db, [16]byte(parent)) })}},
		{"text", "slug", "text", []loosefktest.Option{
			loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (slug, error) {
				_, err := db.Exec(ctx, insertParent, "it's")
				return "it's", err
			}),
			loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent slug) error { return insert(ctx, db, string(parent)) })}},
		{"varchar", "id", "varchar(12)", nil},
		{"domain over uuid", "id", "key_uuid", nil},
		{"domain over smallint", "id", "key_small", nil},
		{"domain over varchar", "id", "key_varchar", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			testKey(t, tt.column, tt.typ, tt.own)
		})
	}
	if why := record(t, func(t testing.TB) {
		pool, defs := newApp(t.(*recorder).TB.(*testing.T))
		loosefktest.CleanedUp(t, pool, defs, children[1],
			loosefktest.NewChild(func(context.Context, loosefk.DB, [16]byte) error { return nil }))
	}); !strings.Contains(why, "NewChild takes a uuid of 16 bytes, and the parent's key is") {
		t.Errorf("with a child of another type it fails with %q", why)
	}
}

func testKey(t *testing.T, name, typ string, own []loosefktest.Option) {
	pool, err := pgxpool.New(t.Context(), testdb.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	column := pgx.Identifier{name}.Sanitize()
	runSQL(t, pool, "CREATE DOMAIN key_uuid AS uuid; CREATE DOMAIN key_small AS smallint; CREATE DOMAIN key_varchar AS varchar(9);"+
		"CREATE TABLE p ("+column+" "+typ+" PRIMARY KEY); CREATE TABLE c (n serial PRIMARY KEY, ref "+typ+"); CREATE INDEX ON c (ref)")
	for _, err := range []error{loosefk.DefaultSchema.Install(t.Context(), pool), loosefk.DefaultSchema.TrackRecordDeletions(t.Context(), pool, "p")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defs, err := loosefk.Parse("loose.yml", strings.NewReader("c: [{table: p, column: ref, on_delete: async_nullify}]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]loosefktest.Option{nil, own} {
		loosefktest.HasLooseForeignKeys(t, pool, defs, "p", opts...)
		loosefktest.CleanedUp(t, pool, defs, loosefktest.Child{Table: "c", Column: "ref"}, opts...)
	}
	why := record(t, func(t testing.TB) {
		loosefktest.CleanedUp(t, pool, defs, loosefktest.Child{Table: "c", Column: "ref"},
			loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (string, error) {
				return "0", nil
			}))
	})
	if why == "" {
		t.Error("it passes with a parent that isn't there")
	}
}

// TestIn runs HasLooseForeignKeys and CleanedUp with parent and child in two databases, one
// of which has a schema other than public.
func TestIn(t *testing.T) {
	t.Parallel()
	open := func(sql string) *pgxpool.Pool {
		pool, err := pgxpool.New(t.Context(), testdb.DSN(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		runSQL(t, pool, sql)
		return pool
	}
	main := open("CREATE SCHEMA app; CREATE TABLE app.projects (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
	ci := open("CREATE TABLE ci_pipelines (id int PRIMARY KEY, project_id int, state text DEFAULT 'x'); CREATE INDEX ON ci_pipelines (project_id, state)")
	dbs := loosefk.Databases{{Name: "main", Pool: main, Schema: "app"}, {Name: "ci", Pool: ci, Tables: []string{"ci_*"}}}
	defs, err := loosefk.Parse("loose.yml", strings.NewReader(`
ci_pipelines:
  - {table: projects, column: project_id, on_delete: update_column_to, target_column: state, target_value: null}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := loosefk.Schema("app").Install(t.Context(), main); err != nil {
		t.Fatal(err)
	}
	child := loosefktest.Child{Table: "ci_pipelines", Column: "project_id"}
	why := record(t, func(t testing.TB) { loosefktest.CleanedUp(t, nil, defs, child) })
	if !strings.Contains(why, "pass a pool, or In(databases)") {
		t.Errorf("without a database it fails with %q", why)
	}
	why = record(t, func(t testing.TB) {
		loosefktest.HasLooseForeignKeys(t, nil, defs, "projects", loosefktest.In(dbs))
	})
	if !strings.Contains(why, "app.projects has no trigger") {
		t.Errorf("without a trigger it fails with %q", why)
	}
	if err := loosefk.Schema("app").TrackRecordDeletions(t.Context(), main, "projects"); err != nil {
		t.Fatal(err)
	}
	loosefktest.HasLooseForeignKeys(t, nil, defs, "projects", loosefktest.In(dbs))
	loosefktest.CleanedUp(t, nil, defs, child, loosefktest.In(dbs))
}
