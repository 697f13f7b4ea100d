// Package testdb has helpers by which the tests of loose foreign keys use a PostgreSQL
// database.
package testdb

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// NewPool creates an empty database for the test, executes the SQL in `setup` there, and
// returns a pool for it.
func NewPool(t testing.TB, setup ...string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(DSN(t))
	Must(t, err)
	cfg.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	Must(t, err)
	t.Cleanup(pool.Close)
	for _, sql := range setup {
		Exec(t, pool, sql)
	}
	return pool
}

// Must ends the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Exec runs SQL and returns the number of affected rows. Without arguments, sql may consist
// of several statements.
func Exec(t testing.TB, db pg.DB, sql string, args ...any) int64 {
	t.Helper()
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	tag, err := db.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// Query returns the values of a query's only column, one for each row.
func Query[T any](t testing.TB, db pg.DB, sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(context.WithoutCancel(t.Context()), sql, args...)
	Must(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// WantRows fails the test unless a query's only column has the values want.
func WantRows[T comparable](t testing.TB, db pg.DB, sql string, want ...T) {
	t.Helper()
	if got := Query[T](t, db, sql); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", sql, got, want)
	}
}

// Projects is SQL that creates four projects with pipelines, requests and packages.
const Projects = `
	CREATE TABLE projects (id bigint PRIMARY KEY);
	CREATE TABLE pipelines (id bigserial PRIMARY KEY, project_id int);
	CREATE INDEX ON pipelines (project_id);
	CREATE TABLE requests (id bigserial PRIMARY KEY, project_id bigint);
	CREATE INDEX ON requests (project_id);
	CREATE TABLE packages (project_id bigint, name text, status smallint, kind text);
	CREATE INDEX ON packages (project_id, status);
	INSERT INTO projects SELECT generate_series(1, 4);
	INSERT INTO pipelines (project_id) SELECT g % 4 + 1 FROM generate_series(1, 4000) g;
	INSERT INTO requests (project_id) SELECT g % 4 + 1 FROM generate_series(1, 40) g;
	INSERT INTO packages SELECT g % 4 + 1, 'p' || g, CASE WHEN g % 3 = 0 THEN NULL ELSE 1 END, CASE WHEN g % 2 = 0 THEN 'npm' ELSE 'go' END
	FROM generate_series(1, 400) g`

// ProjectsDefinitions is a YAML text of definitions for the tables of Projects.
const ProjectsDefinitions = `
pipelines:
  - table: projects
    column: project_id
    on_delete: async_delete
requests:
  - table: projects
    column: project_id
    on_delete: :async_nullify
packages:
  - table: projects
    column: project_id
    on_delete: update_column_to
    target_column: status
    target_value: 4
    conditions: [{column: kind, value: npm}]
`

// OlderVersion and NewerVersion are SQL that makes what is installed in the schema public look
// like an installation of another version.
const (
	OlderVersion = "CREATE OR REPLACE FUNCTION loose_foreign_keys_version() RETURNS integer LANGUAGE sql AS 'SELECT 0'"
	NewerVersion = "CREATE OR REPLACE FUNCTION loose_foreign_keys_version() RETURNS integer LANGUAGE sql AS 'SELECT 99'"
)
