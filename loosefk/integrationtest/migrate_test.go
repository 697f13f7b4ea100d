// Package integrationtest tests loosefk with what it doesn't depend on: its migrations with the libraries
// of goose and golang-migrate, its sessions behind PgBouncer and over a connection that is silent. It
// is a Go module of its own, so that neither loosefk nor the registry depends on golang-migrate.
package integrationtest

import (
	"context"
	"database/sql"
	"io/fs"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/generate"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tool runs migrations up and down with one of the libraries.
type tool struct {
	format   generate.Format
	migrator func(t *testing.T, db *sql.DB, files fs.FS) (up, down func(context.Context) error)
}

var tools = map[string]tool{
	"goose": {generate.Goose, func(t *testing.T, db *sql.DB, files fs.FS) (up, down func(context.Context) error) {
		store, err := database.NewStore(database.DialectPostgres, "loosefk_versions")
		must(t, err)
		p, err := goose.NewProvider("", db, files, goose.WithStore(store))
		must(t, err)
		up = func(ctx context.Context) error { _, err := p.Up(ctx); return err }
		return up, func(ctx context.Context) error { _, err := p.DownTo(ctx, 0); return err }
	}},
	"golang-migrate": {generate.Plain, func(t *testing.T, db *sql.DB, files fs.FS) (up, down func(context.Context) error) {
		driver, err := migratepgx.WithInstance(db, &migratepgx.Config{MigrationsTable: "loosefk_versions"})
		must(t, err)
		source, err := iofs.New(files, ".")
		must(t, err)
		m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
		must(t, err)
		return func(context.Context) error { return m.Up() }, func(context.Context) error { return m.Down() }
	}},
}

// With each library the migrations must install loose foreign keys, in the schema public or
// another one, so that deletions are recorded. The down migrations must remove everything.
func TestInstallMigrations(t *testing.T) {
	t.Parallel()
	for name, tool := range tools {
		for _, schema := range []loosefk.Schema{"", "app"} {
			t.Run(strings.TrimSpace(name+" "+string(schema)), func(t *testing.T) {
				t.Parallel()
				db, err := sql.Open("pgx", pgtest.Empty(t))
				must(t, err)
				t.Cleanup(func() { db.Close() }) //nolint:errcheck // the database goes
				exec := func(sql string) {
					t.Helper()
					_, err := db.ExecContext(t.Context(), sql)
					must(t, err)
				}
				in := schema
				if in == "" {
					in = loosefk.DefaultSchema
				}
				exec("CREATE SCHEMA app")
				exec("CREATE TABLE " + string(in) + ".projects (id bigint PRIMARY KEY)")
				exec("INSERT INTO " + string(in) + ".projects VALUES (1)")
				files, err := generate.InstallMigrations(tool.format, schema)
				must(t, err)
				up, down := tool.migrator(t, db, files)
				must(t, up(t.Context()))
				exec(schema.TrackRecordDeletionsSQL("projects"))
				exec("DELETE FROM " + string(in) + ".projects")
				count := func(sql string) (n int) {
					t.Helper()
					must(t, db.QueryRowContext(t.Context(), sql).Scan(&n))
					return n
				}
				if n := count("SELECT count(*) FROM " + string(in) + "." + loosefk.RecordsTable); n != 1 {
					t.Errorf("%d deletions were recorded, want 1", n)
				}
				exec(schema.UntrackRecordDeletionsSQL("projects"))
				must(t, down(t.Context()))
				if n := count("SELECT (SELECT count(*) FROM pg_class WHERE relname LIKE 'loose_foreign_keys%') + (SELECT count(*) FROM pg_proc WHERE proname LIKE '%loose_foreign_keys%')"); n != 0 {
					t.Errorf("%d objects are left after the way back", n)
				}
			})
		}
	}
}
