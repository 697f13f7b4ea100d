package loosefk

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newPool opens a pool on an empty database of the test's own.
func newPool(t testing.TB, setup ...string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgtest.Empty(t))
	must(t, err)
	cfg.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	for _, sql := range setup {
		exec(t, pool, sql)
	}
	return pool
}

// install makes a database with loose foreign keys installed, and triggers on
// the parents.
func install(t testing.TB, pool *pgxpool.Pool, parents ...string) Database {
	t.Helper()
	must(t, DefaultSchema.Install(t.Context(), pool))
	for _, p := range parents {
		must(t, DefaultSchema.TrackRecordDeletions(t.Context(), pool, p))
	}
	return Database{Name: "main", Pool: pool}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exec(t testing.TB, db DB, sql string, args ...any) int64 {
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

func query[T any](t testing.TB, db DB, sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(context.WithoutCancel(t.Context()), sql, args...)
	must(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

func wantRows[T comparable](t testing.TB, db DB, sql string, want ...T) {
	t.Helper()
	if got := query[T](t, db, sql); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", sql, got, want)
	}
}

func parse(t testing.TB, text string) Definitions {
	t.Helper()
	defs, err := Parse("loose.yml", strings.NewReader(text))
	must(t, err)
	return defs
}

// worker makes a worker for one database.
func newWorker(t testing.TB, o Options, dbs ...Database) *Worker {
	t.Helper()
	o.Databases = dbs
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w, err := New(o)
	must(t, err)
	must(t, Validate(t.Context(), o.Databases, o.Definitions))
	return w
}

func runOnce(t testing.TB, w *Worker, database string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := w.RunOnce(ctx, database)
	must(t, err)
	return r
}
