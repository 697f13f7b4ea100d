package generate

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// generated is a Generator with a directory and a database of one test.
type generated struct {
	Generator
	pool *pgxpool.Pool
}

func newGenerated(t *testing.T, definitions string) *generated {
	t.Helper()
	pool := newPool(t, shop)
	dir := t.TempDir()
	g := &generated{Generator{
		Databases: loosefk.Databases{{Name: "main", Pool: pool}}, File: filepath.Join(dir, "loose.yml"),
		Migrations: filepath.Join(dir, "migrations"), Tests: filepath.Join(dir, "tests"),
		Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}, pool}
	must(t, os.WriteFile(g.File, []byte(definitions), 0o600))
	return g
}

// load reads the definitions and returns the foreign keys that match the filters.
func (g *generated) load(t *testing.T, filters ...string) []ForeignKey {
	t.Helper()
	var err error
	g.Definitions, err = loosefk.Load(g.File)
	must(t, err)
	keys, err := ForeignKeys(t.Context(), g.Databases, g.Definitions)
	must(t, err)
	f, err := ParseFilter(filters...)
	must(t, err)
	return slices.DeleteFunc(keys, func(k ForeignKey) bool { return !f.Match(k.From, k.To, k.Column) })
}

func (g *generated) convert(t *testing.T, filters ...string) *Plan {
	t.Helper()
	p, err := g.Convert(t.Context(), g.load(t, filters...))
	must(t, err)
	return p
}

func (g *generated) revert(t *testing.T, filters ...string) *Plan {
	t.Helper()
	g.load(t)
	f, err := ParseFilter(filters...)
	must(t, err)
	defs := slices.DeleteFunc(slices.Clone(g.Definitions), func(d loosefk.Definition) bool { return !f.Match(d.Child, d.Parent, d.Column) })
	p, err := g.Revert(t.Context(), defs)
	must(t, err)
	return p
}

// goose returns a provider that runs the migrations of g's directory with goose.
func (g *generated) goose(t *testing.T) *goose.Provider {
	t.Helper()
	db := stdlib.OpenDB(*g.pool.Config().ConnConfig)
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // the test's database is removed anyway
	p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(g.Migrations))
	must(t, err)
	return p
}

// work makes one run of a worker with the definitions of the file, and returns its result.
func (g *generated) work(t *testing.T) loosefk.Result {
	t.Helper()
	defs, err := loosefk.Load(g.File)
	must(t, err)
	return runOnce(t, newWorker(t, loosefk.Options{Definitions: defs}, g.Databases...), "main")
}

// base returns the names of files without their directory and version.
func base(names []string) []string {
	var list []string
	for _, n := range names {
		n = filepath.Base(n)
		if len(n) > 15 && n[14] == '_' {
			n = n[15:]
		}
		list = append(list, n)
	}
	return list
}

func paths(p *Plan) []string {
	var list []string
	for _, f := range p.Files {
		list = append(list, f.Path)
	}
	return list
}

const customerKeys = "SELECT conname::text || ' ' || convalidated FROM pg_constraint WHERE contype = 'f' AND conrelid IN ('orders'::regclass, 'visits'::regclass) ORDER BY 1"

// Convert turns two foreign keys into loose ones, and a worker cleans up children of
// deleted parents. Then Revert must restore the foreign keys.
func TestConvertAndRevert(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	fill := func() {
		exec(t, g.pool, "INSERT INTO customers (id) SELECT generate_series(1, 3)")
		exec(t, g.pool, "INSERT INTO orders (customer_id) SELECT g % 3 + 1 FROM generate_series(1, 3000) g")
		exec(t, g.pool, "INSERT INTO visits (customer_id) SELECT g % 3 + 1 FROM generate_series(1, 30) g")
	}
	fill()
	p := g.convert(t, "^(orders|visits)$")
	want := []string{"loose.yml", "install_loose_foreign_keys.sql", "track_deletions_from_customers.sql",
		"drop_fk_orders_customers_from_orders.sql", "drop_visits_customer_id_fkey_from_visits.sql",
		"loosefk_test.go", "customers_parent_loosefk_test.go", "orders_customer_id_loosefk_test.go", "visits_customer_id_loosefk_test.go"}
	if got := base(paths(p)); !slices.Equal(got, want) || len(p.Refused)+len(p.Skipped) != 0 {
		t.Fatalf("the plan is %q, want %q; refused %v, skipped %v", got, want, p.Refused, p.Skipped)
	}
	if !strings.Contains(p.Steps[0], "goose up-to 20260102030406 ") || !strings.Contains(p.Steps[1], "only then") {
		t.Errorf("the steps are %q", p.Steps)
	}
	must(t, p.Write())
	if err := p.Write(); err == nil {
		t.Error("a plan is written a second time")
	}
	run := g.goose(t)
	if _, err := run.ApplyVersion(t.Context(), 20260102030407, true); err == nil || !strings.Contains(err.Error(), "nothing records what is deleted from public.customers") {
		t.Errorf("dropping a key whose parent has no trigger: %v", err)
	}
	_, err := run.UpTo(t.Context(), 20260102030406)
	must(t, err)
	testdb.WantRows(t, g.pool, customerKeys, "fk_orders_customers true", "visits_customer_id_fkey true")
	_, err = run.Up(t.Context())
	must(t, err)
	testdb.WantRows[string](t, g.pool, customerKeys)

	exec(t, g.pool, "DELETE FROM customers WHERE id = 1")
	if q := g.revert(t, "^orders$"); len(q.Keys) != 0 || len(q.Refused) != 1 || !strings.Contains(q.Refused[0].Reason,
		"1000 rows of orders refer to rows of customers that are gone, and 1 deletions from it are pending: loosefk drain --table customers") {
		t.Errorf("with orphans the plan is %+v", q)
	}
	if r := g.work(t); r.Deletes != 1000 || r.Updates != 10 {
		t.Errorf("the worker says %+v", r)
	}
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM orders", int64(2000))

	// Revert the foreign key of orders. The loose foreign key of visits remains, so
	// customers must stay tracked.
	q := g.revert(t, "^orders$")
	if got := base(paths(q)); !slices.Equal(got, []string{"loose.yml", "restore_fk_orders_customers_of_orders.sql"}) {
		t.Fatalf("the plan of the way back is %q, refused %v", got, q.Refused)
	}
	must(t, q.Write())
	_, err = g.goose(t).Up(t.Context())
	must(t, err)
	testdb.WantRows(t, g.pool, customerKeys, "fk_orders_customers true")
	testdb.WantRows(t, g.pool, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'fk_orders_customers'",
		"FOREIGN KEY (customer_id) REFERENCES customers(id) ON UPDATE CASCADE ON DELETE CASCADE DEFERRABLE")

	// Revert the key of visits while a deleted record is pending. The deletion has left
	// orphans, which the migration must clean up before it adds the key.
	q = g.revert(t, "visits")
	if got := base(paths(q)); !slices.Equal(got, []string{"loose.yml", "restore_visits_customer_id_fkey_of_visits.sql", "untrack_deletions_from_customers.sql"}) {
		t.Fatalf("the plan of the way back is %q, refused %v", got, q.Refused)
	}
	if last := q.Steps[len(q.Steps)-1]; !strings.HasPrefix(last, "remove ") || !strings.Contains(last, "visits_customer_id_loosefk_test.go, ") ||
		!strings.HasSuffix(last, "customers_parent_loosefk_test.go") || strings.Contains(last, "orders") {
		t.Errorf("the last step is %q", last)
	}
	must(t, q.Write())
	exec(t, g.pool, "DELETE FROM customers WHERE id = 2")
	_, err = g.goose(t).Up(t.Context())
	must(t, err)
	testdb.WantRows(t, g.pool, customerKeys, "fk_orders_customers true", "visits_customer_id_fkey true")
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM visits WHERE customer_id IS NULL", int64(20))
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE status = 1", int64(0))
	testdb.WantRows[string](t, g.pool, "SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = 'customers'::regclass")
	if text, err := os.ReadFile(g.File); err != nil || len(text) != 0 {
		t.Errorf("the definitions are %q, %v; want none", text, err)
	}

	// Revert's migrations have dropped the parent's trigger. The next conversion must create
	// it again.
	g.Tests = ""
	r := g.convert(t, "^orders$")
	if got := base(paths(r)); !slices.Equal(got, []string{"loose.yml", "track_deletions_from_customers.sql", "drop_fk_orders_customers_from_orders.sql"}) {
		t.Errorf("the plan of the second conversion is %q", got)
	}
}

// The down part of each migration must restore the schema as it was before its up part.
func TestMigrationsDown(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	exec(t, g.pool, "INSERT INTO customers (id) SELECT generate_series(1, 3)")
	before := describeAll(t, g.pool)
	must(t, g.convert(t, "^(orders|visits)$").Write())
	must(t, g.convert(t, "^shelves$").Write())
	run := g.goose(t)
	_, err := run.Up(t.Context())
	must(t, err)
	exec(t, g.pool, "INSERT INTO orders (customer_id) SELECT g % 5 + 1 FROM generate_series(1, 2500) g")
	exec(t, g.pool, "INSERT INTO visits (customer_id) SELECT g % 5 + 1 FROM generate_series(1, 2500) g")
	exec(t, g.pool, "INSERT INTO shelves (store_id) SELECT generate_series(1, 1200)")
	_, err = run.DownTo(t.Context(), 0)
	must(t, err)
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM orders", int64(1500))
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM visits WHERE customer_id IS NULL", int64(1000))
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM shelves", int64(0))
	if after := describeAll(t, g.pool); !slices.Equal(before, after) {
		t.Errorf("up and down leave\n%s\nof\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	_, err = run.Up(t.Context())
	must(t, err)
}

// describeAll returns a text for each table, index, constraint, trigger and function.
func describeAll(t *testing.T, db loosefk.DB) []string {
	t.Helper()
	return testdb.Query[string](t, db, `
		SELECT relkind::text || ' ' || oid::regclass::text AS x FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose%'
		UNION ALL
		SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
		WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text NOT LIKE 'goose%'
		UNION ALL
		SELECT tgrelid::regclass || ' ' || tgname FROM pg_trigger WHERE NOT tgisinternal
		UNION ALL
		SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
		ORDER BY 1`)
}

// The migration for a partitioned parent must create triggers that record the parent's
// name, whichever partition a DELETE names.
func TestConvertPartitioned(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	must(t, g.convert(t, "shelves").Write())
	_, err := g.goose(t).Up(t.Context())
	must(t, err)
	exec(t, g.pool, "INSERT INTO stores SELECT generate_series(1, 10)")
	exec(t, g.pool, "INSERT INTO shelves (store_id) SELECT generate_series(1, 10)")
	exec(t, g.pool, "DELETE FROM stores_0; DELETE FROM stores")
	if r := g.work(t); r.Deletes != 10 {
		t.Errorf("the worker says %+v", r)
	}
	must(t, g.revert(t, "shelves").Write())
	_, err = g.goose(t).Up(t.Context())
	must(t, err)
	testdb.WantRows(t, g.pool, "SELECT conname::text FROM pg_constraint WHERE conrelid = 'shelves'::regclass AND contype = 'f' AND convalidated AND conparentid = 0", "shelves_store_id_fkey")
}

// psql can run plain migrations.
func TestConvertPlain(t *testing.T) {
	t.Parallel()
	psql, err := osexec.LookPath("psql")
	if err != nil {
		lacking(t, "psql")
	}
	g := newGenerated(t, "")
	g.Format, g.Tests = Plain, ""
	p := g.convert(t, "^orders$")
	must(t, p.Write())
	var up, down []string
	for _, f := range paths(p)[1:] {
		if strings.HasSuffix(f, ".up.sql") {
			up = append(up, f)
		} else {
			down = append([]string{f}, down...)
		}
	}
	if len(up) != 3 || len(down) != 3 || !slices.IsSorted(up) {
		t.Fatalf("the files are %q and %q", up, down)
	}
	exec(t, g.pool, "INSERT INTO customers (id) VALUES (1)")
	before := describeAll(t, g.pool)
	run := func(files []string) {
		for _, f := range files {
			cfg := g.pool.Config().ConnConfig
			cmd := osexec.CommandContext(t.Context(), psql, "-X", "-v", "ON_ERROR_STOP=1", "-q", "-f", f)
			cmd.Env = append(os.Environ(), "PGHOST="+cfg.Host, fmt.Sprintf("PGPORT=%d", cfg.Port), "PGUSER="+cfg.User,
				"PGPASSWORD="+cfg.Password, "PGDATABASE="+cfg.Database)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", f, err, out)
			}
		}
	}
	run(up)
	testdb.WantRows[string](t, g.pool, "SELECT conname::text FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype = 'f'")
	exec(t, g.pool, "INSERT INTO orders (customer_id) SELECT g % 2 + 1 FROM generate_series(1, 4000) g")
	run(down)
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM orders", int64(2000))
	if after := describeAll(t, g.pool); !slices.Equal(before, after) {
		t.Errorf("up and down leave\n%s\nof\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// A client keeps a table locked. The migration that drops a foreign key must wait only
// briefly, give up and try again, so that other clients don't queue behind it.
func TestDropGivesWay(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	must(t, g.convert(t, "^orders$").Write())
	run := g.goose(t)
	_, err := run.UpTo(t.Context(), 20260102030406)
	must(t, err)
	tx, err := g.pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "SELECT * FROM customers")
	done := make(chan error, 1)
	go func() {
		_, err := run.Up(context.WithoutCancel(t.Context()))
		done <- err
	}()
	waiting := "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%DROP CONSTRAINT%'"
	for testdb.Query[int64](t, g.pool, waiting)[0] == 0 {
		time.Sleep(time.Millisecond)
	}
	began := time.Now()
	exec(t, g.pool, "INSERT INTO customers (id) VALUES (7)") // queues behind the drop
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("an insert waited %v for a drop that waits", took)
	}
	must(t, tx.Rollback(t.Context()))
	must(t, <-done)
	testdb.WantRows[string](t, g.pool, "SELECT conname::text FROM pg_constraint WHERE conrelid = 'orders'::regclass AND contype = 'f'")
}

func TestConvertRefuses(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "# The shop's.\nletters:\n  - table: customers\n    column: customer_id\n    on_delete: async_delete\n")
	for _, tt := range []struct {
		filter   string
		onDelete loosefk.Action
		want     string // the expected refusal; "" if the key is converted
	}{
		{"^regions$", "", "it has 2 columns"},
		{"^cards$", "", "the parent's column number"},
		{"^flags$", "", "is NOT NULL: async_nullify can't clear it"},
		{"^billing.invoices$", "", "its ON DELETE is restrict, which has no loose form"},
		{"^notes$", "", "its ON DELETE is no action, which has no loose form"},
		{"^notes$", loosefk.AsyncNullify, ""},
		{"^billing.invoices$", loosefk.AsyncDelete, ""},
		{"^flags$", loosefk.AsyncDelete, "is NOT NULL: async_nullify"}, // the key's own ON DELETE SET NULL decides, not the option
		{"^orders$", "", ""},
		{"^folders$", "", ""},
	} {
		g.OnDelete = tt.onDelete
		p := g.convert(t, tt.filter)
		switch {
		case tt.want == "" && (len(p.Keys) != 1 || len(p.Refused) != 0):
			t.Errorf("%s: refused: %v", tt.filter, p.Refused)
		case tt.want != "" && (len(p.Keys)+len(p.Files) != 0 || len(p.Refused) != 1 || !strings.Contains(p.Refused[0].Error(), tt.want)):
			t.Errorf("%s: files %v, refused %v, want %q", tt.filter, paths(p), p.Refused, tt.want)
		}
	}
	g.OnDelete = ""
	if p := g.convert(t, "^letters$"); len(p.Refused) != 1 || !strings.Contains(p.Refused[0].Reason, "has no index") || len(p.Files) != 0 {
		t.Errorf("a key that has a definition, but no index: %+v", p)
	}
	must(t, os.WriteFile(g.File, nil, 0o600))
	p := g.convert(t, "^letters$")
	if len(p.Refused) != 1 {
		t.Fatalf("a key without an index: %+v", p)
	}
	// Convert refuses the foreign key of letters because an index is missing. After the
	// SQL in the refusal's reason was run, Convert must accept the key.
	create := regexp.MustCompile(`CREATE INDEX CONCURRENTLY .*`).FindString(p.Refused[0].Reason)
	exec(t, g.pool, create)
	if p := g.convert(t, "^letters$"); len(p.Keys) != 1 {
		t.Errorf("after %q: %v", create, p.Refused)
	}
}

// Convert and Revert must change neither the database nor a file before Write.
func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, shopDefinitions)
	before := describeAll(t, g.pool)
	p := g.convert(t, "orders|visits|shelves")
	if len(p.Files) < 5 {
		t.Fatalf("the plan has only %q", paths(p))
	}
	if q := g.revert(t, "letters"); len(q.Files) != 1 { // the foreign key still exists

		t.Errorf("the way back has %q", paths(q))
	}
	if after := describeAll(t, g.pool); !slices.Equal(before, after) {
		t.Errorf("planning changed the database to\n%s", strings.Join(after, "\n"))
	}
	entries, err := os.ReadDir(filepath.Dir(g.File))
	must(t, err)
	if text, err := os.ReadFile(g.File); len(entries) != 1 || err != nil || string(text) != shopDefinitions {
		t.Errorf("planning left %v, and %q", entries, text)
	}
	must(t, os.WriteFile(g.File, []byte("x: []\n"), 0o600))
	if err := p.Write(); err == nil || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("writing over somebody's change: %v", err)
	}
}

func TestRevertRefuses(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, `
orders:
  - table: customers
    column: customer_id
    on_delete: update_column_to
    target_column: id
    target_value: 1
`)
	exec(t, g.pool, "ALTER TABLE orders DROP CONSTRAINT fk_orders_customers")
	if p := g.revert(t, "orders"); len(p.Refused) != 1 || !strings.Contains(p.Refused[0].Reason, "--on-delete") {
		t.Errorf("a key of which nothing is known: %+v", p)
	}
	g.Restore = "restrict"
	p := g.revert(t, "orders")
	if len(p.Keys) != 1 || p.Keys[0].Constraint != "orders_customer_id_fkey" || p.Keys[0].OnDelete != "restrict" {
		t.Errorf("a key whose form is told: %+v", p)
	}
	must(t, p.Write())
	// A definition with update_column_to has left orphans, which were only marked. The
	// migration that restores the foreign key must fail instead of deleting them.
	exec(t, g.pool, "INSERT INTO orders (customer_id) VALUES (5), (6)")
	must(t, loosefk.DefaultSchema.Install(t.Context(), g.pool))
	if _, err := g.goose(t).Up(t.Context()); err == nil || !strings.Contains(err.Error(), "2 rows of public.orders refer to rows of public.customers that are gone") {
		t.Errorf("running it with orphans: %v", err)
	}
	testdb.WantRows(t, g.pool, "SELECT count(*) FROM orders", int64(2))

	// If the definition has conditions, the migration that restores the foreign key must
	// delete no orphans, since some may not meet the conditions.
	must(t, os.WriteFile(g.File, []byte("visits: [{table: customers, column: customer_id, on_delete: async_delete, conditions: [{column: id, value: 1}]}]\n"), 0o600))
	g.Restore = ""
	exec(t, g.pool, "ALTER TABLE visits DROP CONSTRAINT visits_customer_id_fkey")
	if q := g.revert(t, "visits"); len(q.Keys) != 1 || strings.Contains(q.Files[1].Content, "DELETE FROM") {
		t.Errorf("a definition with conditions: %+v", q)
	}

	other := newPool(t, "CREATE TABLE customers (id bigint PRIMARY KEY)")
	g.Databases = loosefk.Databases{{Name: "main", Pool: g.pool}, {Name: "other", Pool: other, Tables: []string{"customers"}}}
	must(t, os.WriteFile(g.File, []byte("orders: [{table: customers, column: customer_id, on_delete: async_delete}]\n"), 0o600))
	if p := g.revert(t, "orders"); len(p.Refused) != 1 || !strings.Contains(p.Refused[0].Reason, "can't cross") {
		t.Errorf("a key across databases: %+v", p)
	}
}

// Convert must not plan a second trigger if a migration that hasn't run yet creates one.
func TestConvertBeforeMigrations(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	g.Tests = ""
	must(t, g.convert(t, "^orders$").Write())
	p := g.convert(t, "^visits$")
	if got := paths(p); len(got) != 2 || filepath.Base(got[1]) != "20260102030408_drop_visits_customer_id_fkey_from_visits.sql" {
		t.Errorf("the second plan has %q", got)
	}
}

// lacking skips a test that needs a missing program; in CI it fails the test.
func lacking(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("there is no %s", program)
	}
	t.Skipf("needs %s", program)
}

// Convert turns a foreign key of a table to itself into a loose one. The down migrations
// restore it, and must remove orphans on several levels.
func TestConvertTree(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	must(t, g.convert(t, "^folders$").Write())
	_, err := g.goose(t).Up(t.Context())
	must(t, err)
	exec(t, g.pool, "INSERT INTO folders SELECT g, nullif(g - 1, 0) FROM generate_series(1, 30) g")
	exec(t, g.pool, "DELETE FROM folders WHERE id = 20")
	if r := g.work(t); r.Deletes != 10 {
		t.Errorf("the run says %+v", r)
	}
	exec(t, g.pool, "DELETE FROM folders WHERE id = 5") // no worker processes this deletion
	_, err = g.goose(t).Down(t.Context())
	must(t, err)
	testdb.WantRows(t, g.pool, "SELECT count(*)::int FROM folders", 4)
	testdb.WantRows(t, g.pool, "SELECT count(*)::int FROM pg_constraint WHERE conrelid = 'folders'::regclass AND contype = 'f' AND convalidated", 1)
}
