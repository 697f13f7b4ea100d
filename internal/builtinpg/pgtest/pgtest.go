// Package pgtest gives tests databases on a real PostgreSQL.
//
// A test process starts one server (the machine's PostgreSQL, or a fetched
// one), on first use. It trades durability for speed, lives in a temporary
// directory, in memory on Linux, and stops with the process. A package that uses it has
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
package pgtest

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
)

var (
	start   sync.Once
	server  *builtinpg.Server
	dir     string
	failed  error
	cleaned bool // Run was called, and cleans up
	counter atomic.Int64
	// cloning: nobody may be connected to a database while it is cloned.
	cloning sync.Mutex
)

const dirPrefix = "purser-dbtest-"

// place is the directory for the server's: in memory where there is plenty, since a
// database is a thousand files that are made and removed again with each test.
func place() string {
	const memory, plenty = "/dev/shm", 4 << 30 // bytes
	if free, err := freeSpace(memory); err != nil || free < plenty {
		return ""
	}
	// No run takes as long: its process was killed before it could remove them.
	const abandoned = 6 * time.Hour
	old, _ := filepath.Glob(filepath.Join(memory, dirPrefix+"*"))
	for _, path := range old {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > abandoned {
			os.RemoveAll(path) //nolint:errcheck // it may be another user's
		}
	}
	return memory
}

// Main runs a package's tests and exits, stopping the server if one started.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a TestMain that has more to do: it returns the exit code.
func Run(m *testing.M) int {
	cleaned = true
	code := m.Run()
	if server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: stopping PostgreSQL:", err)
		}
	}
	if dir != "" {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: removing the database:", err)
		}
	}
	return code
}

// launch starts the server on first use. Where no PostgreSQL can be had the
// test is skipped with the reason, but fails in CI.
func launch(t testing.TB) {
	t.Helper()
	if !cleaned {
		t.Fatal("this package needs a TestMain that calls Main, or nobody removes its databases")
	}
	start.Do(func() {
		if dir, failed = os.MkdirTemp(place(), dirPrefix); failed != nil {
			return
		}
		if failed = os.Chmod(dir, 0o755); failed != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		server, failed = builtinpg.Start(ctx, builtinpg.Options{
			DataDir: filepath.Join(dir, "pg"),
			AnyRole: true, // tests attack as roles without rights
			Log:     slog.New(slog.DiscardHandler),
			Settings: map[string]string{
				"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
				"max_connections": "300", "autovacuum": "off", "shared_buffers": "128MB", "max_wal_size": "256MB",
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

// Empty creates an empty database, dropped when the test ends, and returns how
// to connect to it.
func Empty(t testing.TB) string {
	t.Helper()
	return Clone(t, "template1")
}

// Clone creates a copy of a database to which nobody is connected, dropped when
// the test ends.
func Clone(t testing.TB, from string) string {
	t.Helper()
	launch(t)
	name := fmt.Sprintf("test_%d", counter.Add(1))
	clone(t, from, name)
	t.Cleanup(func() { admin(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return server.DSN(name)
}

func clone(t testing.TB, from, to string) {
	t.Helper()
	cloning.Lock()
	defer cloning.Unlock() // also when the test ends here
	admin(t, "CREATE DATABASE "+to+" TEMPLATE "+from+" STRATEGY file_copy")
}

// Template creates an empty database that stays as long as the server, for
// Clone.
func Template(t testing.TB, name string) string {
	t.Helper()
	launch(t)
	cloning.Lock()
	defer cloning.Unlock()
	admin(t, "CREATE DATABASE "+name)
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
