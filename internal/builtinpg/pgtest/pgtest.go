// Package pgtest gives tests databases on a real PostgreSQL server.
//
// Each test process starts one PostgreSQL server when a test first needs it, with the machine's
// PostgreSQL or a downloaded one. The server is fast but not durable, has its files in a
// temporary directory (in memory on Linux), and stops with the process. A package whose tests
// use pgtest needs this function:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
package pgtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
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
	cleaned bool // Run was called, and will clean up
	counter atomic.Int64
	// cloning is locked while a database is cloned, since nobody may be connected to the
	// database meanwhile.
	cloning sync.Mutex
)

const dirPrefix = "purser-dbtest-"

// Place returns the directory in which tests create temporary directories for databases: one
// in memory if there are 4 GiB free, since each test creates and removes a thousand files;
// else "", which means the system's directory for temporary files.
func Place() string {
	const memory, plenty = "/dev/shm", 4 << 30 // bytes
	if free, err := freeSpace(memory); err != nil || free < plenty {
		return ""
	}
	// No test run takes six hours, so older directories belong to processes that were killed
	// before they could remove them.
	const abandoned = 6 * time.Hour
	old, _ := filepath.Glob(filepath.Join(memory, "purser-*"))
	for _, path := range old {
		if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > abandoned {
			os.RemoveAll(path) //nolint:errcheck // may belong to another user
		}
	}
	return memory
}

// TempDir makes a directory in Place, and removes it when the test ends. Stores of blobs are
// quick there: each of them makes hundreds of directories, and syncs each file.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(Place(), "purser-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing a directory: %v", err)
		}
	})
	return dir
}

// Main runs a package's tests, stops the server if one was started, and exits.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run does the same as Main, but returns the exit code instead of exiting, for a TestMain that
// has more to do afterwards.
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

// launch starts the server if no test has started it yet. If no PostgreSQL is available, it
// skips the test, or fails it in CI.
func launch(t testing.TB) {
	t.Helper()
	if !cleaned {
		t.Fatal("this package needs a TestMain that calls Main, or nobody removes its databases")
	}
	start.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		server, dir, failed = Start(ctx)
	})
	if failed != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("starting PostgreSQL: %v", failed)
		}
		t.Skipf("needs PostgreSQL 15 or newer: %v", failed)
	}
}

// Start starts a server for tests in a temporary directory `dir`, which the caller removes after it has
// stopped the server, or failed to start it.
func Start(ctx context.Context) (server *builtinpg.Server, dir string, err error) {
	if dir, err = os.MkdirTemp(Place(), dirPrefix); err != nil {
		return nil, "", err
	}
	if err = os.Chmod(dir, 0o755); err != nil {
		return nil, dir, err
	}
	server, err = builtinpg.Start(ctx, builtinpg.Options{
		DataDir: filepath.Join(dir, "pg"),
		AnyRole: true, // some tests connect as roles without rights
		Log:     slog.New(slog.DiscardHandler),
		Settings: map[string]string{
			"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off",
			// Each of the eight tests that run at once may have a few pools, or two servers with 40
			// connections each.
			"max_connections": strconv.Itoa(max(700, 200*runtime.GOMAXPROCS(0))), "autovacuum": "off", "shared_buffers": "128MB", "max_wal_size": "256MB",
		},
	})
	return server, dir, err
}

// Empty creates an empty database and returns its DSN. The database is dropped when the
// test ends.
func Empty(t testing.TB) string {
	t.Helper()
	return Clone(t, "template1")
}

// Clone creates a copy of the database with the name `from`, to which nobody may be connected,
// and returns the copy's DSN. The copy is dropped when the test ends.
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
	defer cloning.Unlock() // also if the test fails here
	admin(t, "CREATE DATABASE "+to+" TEMPLATE "+from+" STRATEGY file_copy")
}

// Template creates an empty database, which tests fill and then copy with Clone, and returns
// its DSN. The database exists as long as the server.
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
