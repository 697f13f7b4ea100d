// Package dbtest gives each test a migrated database of its own on a real
// PostgreSQL.
//
// A test process starts one server (the machine's PostgreSQL, or a fetched
// one), migrates one template per number of partitions, and clones it for each
// test that asks. The server trades durability for speed, lives in a temporary
// directory and stops with the process. A package that uses it has
//
//	func TestMain(m *testing.M) { dbtest.Main(m) }
package dbtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/db"
)

var (
	start   sync.Once
	server  *builtinpg.Server
	dir     string
	failed  error
	counter atomic.Int64

	templatesMu sync.Mutex
	templates   = map[int]string{}
)

// Main runs a package's tests and exits, stopping the server if one started.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a TestMain that has more to do: it returns the exit code.
func Run(m *testing.M) int {
	code := m.Run()
	if server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "dbtest: stopping PostgreSQL:", err)
		}
	}
	if dir != "" {
		os.RemoveAll(dir) //nolint:errcheck // a leftover temporary directory harms nobody
	}
	return code
}

// launch starts the server on first use. Where no PostgreSQL can be had the
// test is skipped with the reason, but fails in CI.
func launch(t testing.TB) {
	t.Helper()
	start.Do(func() {
		if dir, failed = os.MkdirTemp("", "purser-dbtest-"); failed != nil {
			return
		}
		if failed = os.Chmod(dir, 0o755); failed != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		server, failed = builtinpg.Start(ctx, builtinpg.Options{
			DataDir: filepath.Join(dir, "pg"),
			Log:     slog.New(slog.DiscardHandler),
			Settings: map[string]string{
				"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
				"max_connections": "300", "autovacuum": "off", "shared_buffers": "128MB",
			},
		})
	})
	if failed != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("starting PostgreSQL: %v", failed)
		}
		t.Skipf("needs PostgreSQL 15 or newer: %v", failed)
	}
}

// DSN creates a migrated database with the default number of partitions,
// dropped when the test ends, and returns how to connect to it.
func DSN(t testing.TB) string {
	t.Helper()
	return DSNPartitions(t, db.DefaultPartitions)
}

// DSNPartitions is DSN for a schema with n hash partitions.
func DSNPartitions(t testing.TB, n int) string {
	t.Helper()
	launch(t)
	return clone(t, template(t, n))
}

// EmptyDSN creates a database without a schema, dropped when the test ends.
func EmptyDSN(t testing.TB) string {
	t.Helper()
	launch(t)
	return clone(t, "template1")
}

// New opens a migrated database of the test's own, closed when the test ends.
func New(t testing.TB) *db.DB {
	t.Helper()
	return Open(t, DSN(t))
}

// Open opens a pool on dsn, closed when the test ends.
func Open(t testing.TB, dsn string) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("opening the test's database: %v", err)
	}
	t.Cleanup(d.Close)
	return d
}

func template(t testing.TB, partitions int) string {
	t.Helper()
	templatesMu.Lock()
	defer templatesMu.Unlock()
	if name, ok := templates[partitions]; ok {
		return name
	}
	name := fmt.Sprintf("template_%s_%d", db.Hash(), partitions)
	admin(t, "CREATE DATABASE "+name)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := db.Migrate(ctx, server.DSN(name), db.MigrateOptions{Partitions: partitions}); err != nil {
		t.Fatalf("migrating the template: %v", err)
	}
	templates[partitions] = name
	return name
}

func clone(t testing.TB, from string) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", counter.Add(1))
	templatesMu.Lock()
	admin(t, "CREATE DATABASE "+name+" TEMPLATE "+from+" STRATEGY file_copy")
	templatesMu.Unlock()
	t.Cleanup(func() { admin(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return server.DSN(name)
}

func admin(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatalf("connecting to the test server: %v", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is lost
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
