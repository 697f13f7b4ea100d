package audit

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/loosefk"
)

func TestMain(m *testing.M) { dbtest.MainWithoutLeaks(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exec(t testing.TB, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t testing.TB, d *db.DB, sql string, args ...any) (n int) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// eventually calls `ok` every 2 ms until it returns true. After 2 min it fails the test.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// start runs `fn` in a goroutine until `stop` is called or the test ends. stop waits until
// fn has returned.
func start(t testing.TB, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

var quiet = slog.New(slog.DiscardHandler)

// drain runs the worker of loose foreign keys until it finds no deleted records any more.
func drain(t *testing.T, d *db.DB) {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), d.Pool.Config())
	must(t, err)
	defer pool.Close()
	o := loosefk.Options{Log: quiet}
	o.Databases, o.Definitions, err = db.LooseForeignKeys(t.Context(), pool, pool)
	must(t, err)
	must(t, loosefk.Validate(t.Context(), o.Databases, o.Definitions))
	w, err := loosefk.New(o)
	must(t, err)
	for range 100 {
		r, err := w.RunOnce(t.Context(), "main")
		must(t, err)
		if r.Records == 0 {
			return
		}
	}
	t.Fatal("there is always more to drain")
}
