package db_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestMigrationGivesWayToRequests: during an upgrade, a request of the older version reads the
// tables repositories and top_level_namespaces, while a migration locks them in the opposite
// order. The request must succeed, and the migration after it.
func TestMigrationGivesWayToRequests(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	migrated, told := make(chan error, 1), make(chan string, 1)
	err = pgx.BeginFunc(t.Context(), conn, func(request pgx.Tx) error {
		if _, err := request.Exec(t.Context(), "SELECT FROM repositories"); err != nil {
			return err
		}
		go func() {
			migrated <- db.MigrateBy(t.Context(), dsn, `
				SET LOCAL lock_timeout = '500ms';
				LOCK TABLE top_level_namespaces, repositories IN ACCESS EXCLUSIVE MODE;`,
				db.MigrateOptions{Waits: func(what string) { told <- what }})
		}()
		if err := waitsForLock(t, dsn); err != nil {
			return err
		}
		// PostgreSQL looks for a deadlock after a second of waiting. A migration that waits for
		// longer has found none, so the request would be the one that finds it.
		time.Sleep(1200 * time.Millisecond)
		if what := <-told; !strings.Contains(what, "has locked a table") {
			t.Errorf("the migration waits for %s", what)
		}
		_, err := request.Exec(t.Context(), "SELECT FROM top_level_namespaces")
		return err
	})
	if err != nil {
		t.Errorf("the request: %v", err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("the migration: %v", err)
	}
}

// TestMigrationsTellWhatTheyWaitFor: a process that migrates, or that backs the database up, has the
// lock of migrations for as long as it takes. Whoever has nothing to migrate doesn't wait for it, and
// who has says so.
func TestMigrationsTellWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	migrations := map[string]func(context.Context, string, db.MigrateOptions) (int, error){"metadata": db.Migrate, "statistics": db.MigrateStats}
	for what, migrate := range migrations {
		for _, current := range []bool{true, false} {
			dsn := dbtest.EmptyDSN(t)
			if current {
				dsn = dbtest.DSN(t)
			}
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
			if err := db.LockSchema(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
			waits := 0
			n, err := migrate(t.Context(), dsn, db.MigrateOptions{Partitions: 1, Waits: func(what string) {
				waits++
				if !strings.HasPrefix(what, "another process") {
					t.Errorf("it waits for %s", what)
				}
				if err := db.UnlockSchema(t.Context(), conn); err != nil {
					t.Error(err)
				}
			}})
			if err != nil || (n > 0) == current || (waits == 1) == current || waits > 1 {
				t.Errorf("%s, current %v: %d migrations after %d waits: %v", what, current, n, waits, err)
			}
		}
	}
}

// TestMigrationsBoundTheirWaits: see migrationLockWait.
func TestMigrationsBoundTheirWaits(t *testing.T) {
	t.Parallel()
	list, err := db.WaitingMigrations()
	if err != nil || len(list) > 0 {
		t.Errorf("migrations without the lock_timeout of the others: %q (%v)", list, err)
	}
}

// TestTriesForLocks: a step of a migration that has tried often enough for its locks isn't tried again
// with the whole migration.
func TestTriesForLocks(t *testing.T) {
	t.Parallel()
	calls, waits := 0, 0
	wait := func(string) { waits++ }
	err := db.TryLocks(t.Context(), 3, wait, func() error {
		return db.TryLocks(t.Context(), 2, wait, func() error {
			calls++
			return &pgconn.PgError{Code: db.CodeLockNotAvailable}
		})
	})
	if calls != 2 || waits != 1 || db.Code(err) != db.CodeLockNotAvailable || !strings.Contains(err.Error(), "pg_stat_activity") {
		t.Errorf("%d calls, %d waits: %v", calls, waits, err)
	}
}

// waitsForLock waits until some connection to the database waits for a lock of a table.
func waitsForLock(t *testing.T, dsn string) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		return err
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var waiting bool
		err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND l.relation IS NOT NULL AND NOT l.granted)`).Scan(&waiting)
		if err != nil || waiting {
			return err
		}
	}
	return fmt.Errorf("the migration doesn't wait for a lock")
}
