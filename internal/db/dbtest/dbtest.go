// Package dbtest gives each test a migrated database of its own on a real PostgreSQL server,
// which package pgtest starts.
//
// For each number of partitions, a test process migrates one template database, and clones it
// for every test that asks for a database. A package that uses dbtest has
//
//	func TestMain(m *testing.M) { dbtest.Main(m) }
package dbtest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
)

var (
	templatesMu sync.Mutex
	templates   = map[int]string{}
)

// Main runs a package's tests, stops the PostgreSQL server if a test has started one, and
// exits.
func Main(m *testing.M) { pgtest.Main(m) }

// MainWithoutLeaks is like Main, and fails if goroutines are still running after the tests.
func MainWithoutLeaks(m *testing.M) {
	code := Run(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Run is like Main, but returns the exit code instead of exiting, for a TestMain that has more
// to do.
func Run(m *testing.M) int { return pgtest.Run(m) }

// DSN creates a migrated database with the default number of partitions, drops it when the
// test ends, and returns its connection string.
func DSN(t testing.TB) string {
	t.Helper()
	return DSNPartitions(t, db.DefaultPartitions)
}

// DSNPartitions is like DSN, for a schema with n hash partitions.
func DSNPartitions(t testing.TB, n int) string {
	t.Helper()
	return pgtest.Clone(t, template(t, n))
}

// EmptyDSN creates a database without a schema, dropped when the test ends.
func EmptyDSN(t testing.TB) string {
	t.Helper()
	return pgtest.Empty(t)
}

// New creates a migrated database that belongs to the test, and opens a pool on it. The pool
// is closed and the database dropped when the test ends.
func New(t testing.TB) *db.DB {
	t.Helper()
	return Open(t, DSN(t))
}

// Open opens a pool on the database dsn, and closes the pool when the test ends.
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
	dsn := pgtest.Template(t, name)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := db.Migrate(ctx, dsn, db.MigrateOptions{Partitions: partitions}); err != nil {
		t.Fatalf("migrating the template: %v", err)
	}
	if _, err := db.MigrateStats(ctx, dsn, db.MigrateOptions{}); err != nil {
		t.Fatalf("migrating the template's statistics: %v", err)
	}
	templates[partitions] = name
	return name
}
