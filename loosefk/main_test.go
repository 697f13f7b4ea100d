package loosefk

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var (
	newPool = testdb.NewPool
	must    = testdb.Must
	exec    = testdb.Exec
)

func query[T any](t testing.TB, db DB, sql string, args ...any) []T {
	t.Helper()
	return testdb.Query[T](t, db, sql, args...)
}

func wantRows[T comparable](t testing.TB, db DB, sql string, want ...T) {
	t.Helper()
	testdb.WantRows(t, db, sql, want...)
}

// install installs loose foreign keys in a database and creates the triggers on the parent
// tables.
func install(t testing.TB, pool *pgxpool.Pool, parents ...string) Database {
	t.Helper()
	must(t, DefaultSchema.Install(t.Context(), pool))
	for _, p := range parents {
		must(t, DefaultSchema.TrackRecordDeletions(t.Context(), pool, p))
	}
	return Database{Name: "main", Pool: pool}
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
