package generate

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

var (
	newPool = testdb.NewPool
	must    = testdb.Must
	exec    = testdb.Exec
)

func parse(t testing.TB, text string) loosefk.Definitions {
	t.Helper()
	defs, err := loosefk.Parse("loose.yml", strings.NewReader(text))
	must(t, err)
	return defs
}

func newWorker(t testing.TB, o loosefk.Options, dbs ...loosefk.Database) *loosefk.Worker {
	t.Helper()
	o.Databases = dbs
	o.Log = slog.New(slog.DiscardHandler)
	w, err := loosefk.New(o)
	must(t, err)
	must(t, loosefk.Validate(t.Context(), o.Databases, o.Definitions))
	return w
}

func runOnce(t testing.TB, w *loosefk.Worker, database string) loosefk.Result {
	t.Helper()
	r, err := w.RunOnce(t.Context(), database)
	must(t, err)
	return r
}
