package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// newPool creates an empty database for the test, executes the SQL in `setup` there, and
// returns a pool for it.
func newPool(t testing.TB, setup ...string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.DSN(t))
	must(t, err)
	t.Cleanup(pool.Close)
	for _, sql := range setup {
		runSQL(t, pool, sql)
	}
	return pool
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func runSQL(t testing.TB, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t testing.TB, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	must(t, pool.QueryRow(t.Context(), sql).Scan(&n))
	return n
}

func parse(t testing.TB, text string) loosefk.Definitions {
	t.Helper()
	defs, err := loosefk.Parse("loose.yml", strings.NewReader(text))
	must(t, err)
	return defs
}

// oneApp is an application with one database.
func oneApp(t testing.TB, pool *pgxpool.Pool, definitions string) *App {
	t.Helper()
	return &App{
		Databases:   loosefk.Databases{{Name: "main", Pool: pool}},
		Definitions: parse(t, definitions),
		Options:     loosefk.Options{Log: slog.New(slog.DiscardHandler)},
	}
}

// command runs a command line and returns its exit code and the texts on stdout and stderr.
func command(t testing.TB, app *App, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := New(Env{Open: func(context.Context) (*App, error) { return app, nil }})
	root.SetArgs(args)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	code = Report(&stderr, "loosefk", root.ExecuteContext(t.Context()))
	return code, stdout.String(), stderr.String()
}

// ok runs a command line that must succeed, and returns its output.
func ok(t testing.TB, app *App, args ...string) string {
	t.Helper()
	code, out, errs := command(t, app, args...)
	if code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, errs)
	}
	return out
}

// decode runs a command with -o json, which must end with the given exit code, and returns
// its decoded output.
func decode[T any](t testing.TB, app *App, wantCode int, args ...string) (v T) {
	t.Helper()
	code, out, errs := command(t, app, append(args, "-o", "json")...)
	if code != wantCode {
		t.Fatalf("%q: exit code %d, want %d: %s", args, code, wantCode, errs)
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
	return v
}
