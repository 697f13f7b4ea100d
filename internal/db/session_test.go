package db_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// settings returns the values that the named settings have on a connection of the pool.
func settings(t *testing.T, d *db.DB, names ...string) map[string]string {
	t.Helper()
	got := map[string]string{}
	rows, err := d.Pool.Query(t.Context(), "SELECT w, current_setting(w) FROM unnest($1::text[]) w", names)
	if err != nil {
		t.Fatal(err)
	}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error { got[name] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// PgBouncer runs in the mode in which each client has a PostgreSQL session of its own. Purser
// must work without further configuration of PgBouncer: migrations must run, and each
// connection must have its settings.
func TestSessionPooling(t *testing.T) {
	t.Parallel()
	dsn := pgtest.PgBouncer(t, dbtest.EmptyDSN(t), "session", "default_pool_size = 5")
	if n, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{Partitions: 2}); err != nil || n == 0 {
		t.Fatalf("%d migrations, %v", n, err)
	}
	if _, err := db.MigrateStats(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	d, err := db.Open(t.Context(), db.Options{
		DSN: dsn + "&search_path=public,pg_catalog", Replica: "here", LockTimeout: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := map[string]string{
		"lock_timeout": "200ms", "statement_timeout": "30s", "enable_seqscan": "off", "plan_cache_mode": "force_generic_plan",
		"purser.replica": "here", "search_path": "public,pg_catalog", "application_name": "purser",
		"default_transaction_isolation": "read committed", "idle_in_transaction_session_timeout": "20s",
	}
	names := make([]string, 0, len(want))
	for name := range want {
		names = append(names, name)
	}
	if got := settings(t, d, names...); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the settings are %v, want %v", got, want)
	}
	listener, err := d.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Release()
	for _, sql := range []string{"LISTEN news", "SELECT pg_advisory_lock(1)"} {
		if _, err := listener.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var free bool
	if err := d.Pool.QueryRow(t.Context(), "SELECT pg_try_advisory_lock(1) FROM pg_notify('news', 'x')").Scan(&free); err != nil || free {
		t.Errorf("another connection has the lock too, or %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := listener.Conn().WaitForNotification(ctx); err != nil {
		t.Error(err)
	}
}

// PgBouncer runs in a mode in which clients share PostgreSQL sessions, so settings, LISTEN and
// locks would get lost or mixed up. Connecting must fail at once with ErrSharedSessions.
func TestSharedSessions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, mode, setting string }{
		{"transaction", "transaction", ""},
		{"one server connection", "transaction", "default_pool_size = 1"},
		{"in turn", "transaction", "server_round_robin = 1"},
		{"statement", "statement", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.PgBouncer(t, dbtest.EmptyDSN(t), tt.mode, tt.setting)
			_, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{})
			if !errors.Is(err, db.ErrSharedSessions) || !strings.Contains(err.Error(), "pool_mode = session") {
				t.Errorf("migrating: %v", err)
			}
			if db.Unavailable(err) {
				t.Error("it would be waited for")
			}
			d := dbtest.Open(t, dsn)
			if err := d.Ping(t.Context()); !errors.Is(err, db.ErrSharedSessions) {
				t.Errorf("opening: %v", err)
			}
		})
	}
}

// Many connections are opened at once through a pooler that gives them sessions in turn, so their
// checks see each other's order. None may be accepted.
func TestSharedSessionsManyAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.PgBouncer(t, dbtest.EmptyDSN(t), "transaction", "server_round_robin = 1")
	for range 20 {
		var group errgroup.Group
		for range 4 {
			group.Go(func() error {
				d, err := db.Open(t.Context(), db.Options{DSN: dsn, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					return err
				}
				defer d.Close()
				if err := d.Ping(t.Context()); !errors.Is(err, db.ErrSharedSessions) {
					return fmt.Errorf("a connection is accepted: %v", err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// The DSN has a setting that PgBouncer refuses. Connecting must fail without retries, with an
// error that tells the operator what to configure.
func TestRefusedParameter(t *testing.T) {
	t.Parallel()
	dsn := pgtest.PgBouncer(t, dbtest.EmptyDSN(t), "session")
	err := dbtest.Open(t, dsn+"&options=-c%20work_mem%3D8MB").Ping(t.Context())
	if err == nil || !strings.Contains(err.Error(), "ignore_startup_parameters") || db.Unavailable(err) {
		t.Errorf("it says %v", err)
	}
}
