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
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func number(t *testing.T, d *db.DB, sql string) int {
	t.Helper()
	var n int
	if err := d.Pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// Four processes start at once on an empty database. Each migration must be applied once.
func TestMigrateTogether(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	var group errgroup.Group
	applied := make([]int, 4)
	for i := range applied {
		group.Go(func() (err error) {
			applied[i], err = db.Migrate(t.Context(), dsn, db.MigrateOptions{Partitions: 2})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	status, err := db.Status(t.Context(), dsn)
	if err != nil || len(status) == 0 {
		t.Fatal(status, err)
	}
	sum := 0
	for _, n := range applied {
		sum += n
	}
	if sum != len(status) {
		t.Errorf("%v migrations were applied, want %d by one process", applied, len(status))
	}
	for _, s := range status {
		if s.Applied.IsZero() {
			t.Errorf("%s is pending", s.Name)
		}
	}
}

// The number of partitions is set by the first migration. A later Migrate with another number
// must not change it.
func TestPartitions(t *testing.T) {
	t.Parallel()
	const sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'blobs'::regclass"
	for _, n := range []int{1, 64} {
		dsn := dbtest.DSNPartitions(t, n)
		d := dbtest.Open(t, dsn)
		if got := number(t, d, sql); got != n {
			t.Errorf("%d partitions, want %d", got, n)
		}
		if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{Partitions: 7}); err != nil {
			t.Fatal(err)
		}
		if got := number(t, d, sql); got != n {
			t.Errorf("%d partitions after another start, want %d", got, n)
		}
		if got := number(t, d, "SELECT value::int FROM settings WHERE name = 'partitions'"); got != n {
			t.Errorf("settings say %d partitions, want %d", got, n)
		}
	}
	for _, n := range []int{-1, 1025} {
		if _, err := db.Migrate(t.Context(), dbtest.EmptyDSN(t), db.MigrateOptions{Partitions: n}); err == nil ||
			!strings.Contains(err.Error(), "1024") {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	for _, sql := range []string{
		"INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)",
		"UPDATE settings SET value = 'of a newer version' WHERE name = 'schema_hash'",
	} {
		if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); !errors.Is(err, db.ErrNewerSchema) {
		t.Errorf("got %v", err)
	}
}

// A function in the database differs from the function of that name in routines/, and the
// stored hash of the routines is that of another version. Migrate must replace the function,
// and make no trigger twice.
func TestRoutinesAreReapplied(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	const triggers = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"
	before := number(t, d, triggers)
	for _, sql := range []string{
		"CREATE OR REPLACE FUNCTION purser_others_listen() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true'",
		"UPDATE settings SET value = 'of another version' WHERE name = 'schema_hash'",
	} {
		if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := number(t, d, "SELECT purser_others_listen()::int"); n != 0 {
		t.Error("the function is still the other version's")
	}
	if after := number(t, d, triggers); before == 0 || after != before {
		t.Errorf("%d triggers became %d", before, after)
	}
}

// A process of an older version starts during an upgrade. It must not replace the functions of
// the newer version.
func TestNewerRoutinesStay(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	for _, sql := range []string{
		"CREATE OR REPLACE FUNCTION purser_others_listen() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT true'",
		"UPDATE settings SET value = 'of a newer version' WHERE name = 'schema_hash'",
		fmt.Sprintf("UPDATE settings SET value = '%d' WHERE name = 'routines_version'", db.RoutinesVersion+1),
	} {
		if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := number(t, d, "SELECT purser_others_listen()::int"); n != 1 {
		t.Error("the newer function was replaced")
	}
}

// Every connection must be READ COMMITTED, even if the database's default is another isolation
// level: each statement must see what was committed before it.
func TestIsolation(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	admin := dbtest.Open(t, dsn)
	if _, err := admin.Pool.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET default_transaction_isolation = 'serializable'",
		pgx.Identifier{admin.Pool.Config().ConnConfig.Database}.Sanitize())); err != nil {
		t.Fatal(err)
	}
	d := dbtest.Open(t, dsn)
	var level string
	if err := d.Pool.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil || level != "read committed" {
		t.Errorf("isolation is %q, %v", level, err)
	}
}

func TestTxRunsAgain(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	for code, again := range map[string]bool{
		db.CodeDeadlockDetected: true, db.CodeSerializationFailure: true, db.CodeForeignKeyViolation: true,
		db.CodeUniqueViolation: false, db.CodeLockNotAvailable: false,
	} {
		runs := 0
		err := d.Tx(t.Context(), func(tx pgx.Tx) error {
			if runs++; runs < 3 {
				_, err := tx.Exec(t.Context(), "SELECT purser_require(false, $1)", code)
				return err
			}
			return nil
		})
		if again && (err != nil || runs != 3) {
			t.Errorf("%s: %d runs, %v; want a third that succeeds", code, runs, err)
		}
		if !again && (db.Code(err) != code || runs != 1) {
			t.Errorf("%s: %d runs, %v; want one", code, runs, err)
		}
	}
}

// Two transactions deadlock, and PostgreSQL ends one of them. Tx must run that transaction
// again, so that both succeed and no caller gets an error.
func TestTxSurvivesDeadlock(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	if _, err := d.Pool.Exec(t.Context(), "INSERT INTO settings VALUES ('a', '0'), ('b', '0')"); err != nil {
		t.Fatal(err)
	}
	met := make(chan struct{}, 2)
	var group errgroup.Group
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		first := true
		group.Go(func() error {
			return d.Tx(t.Context(), func(tx pgx.Tx) error {
				for i, name := range order {
					if i == 1 && first {
						first = false
						met <- struct{}{}
						for len(met) < 2 { // both hold their first row
							if err := t.Context().Err(); err != nil {
								return err
							}
							time.Sleep(time.Millisecond)
						}
					}
					if _, err := tx.Exec(t.Context(), "UPDATE settings SET value = value::int + 1 WHERE name = $1", name); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := number(t, d, "SELECT sum(value::int) FROM settings WHERE name IN ('a', 'b')"); n != 4 {
		t.Errorf("sum is %d, want 4", n)
	}
}

func TestRetryGivesUp(t *testing.T) {
	t.Parallel()
	runs := 0
	err := db.Retry(t.Context(), func() error {
		runs++
		return &pgconn.PgError{Code: db.CodeDeadlockDetected}
	})
	if db.Code(err) != db.CodeDeadlockDetected || runs != 10 {
		t.Errorf("%d runs, %v", runs, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = db.Retry(ctx, func() error {
		cancel()
		return &pgconn.PgError{Code: db.CodeDeadlockDetected}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a retry went on after its context ended: %v", err)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	closed := dbtest.New(t)
	closed.Close()
	nowhere, err := db.Open(t.Context(), db.Options{DSN: "postgres://127.0.0.1:1/none", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	lost, err := pgx.Connect(t.Context(), dbtest.EmptyDSN(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = lost.Exec(t.Context(), "SELECT 1")
	for what, err := range map[string]error{
		"closed connection": fmt.Errorf("failed to deallocate cached statement(s): %w", err),
		"closed pool":       closed.Ping(t.Context()), "refused connection": nowhere.Ping(t.Context()),
		"shutting down": &pgconn.PgError{Code: "57P01"}, "too many connections": &pgconn.PgError{Code: "53300"},
		"took too long": &pgconn.PgError{Code: "57014"},
	} {
		if !db.Unavailable(err) {
			t.Errorf("%s isn't told as unavailable: %v", what, err)
		}
	}
	for _, err := range []error{nil, errors.New("x"), &pgconn.PgError{Code: db.CodeUniqueViolation}, pgx.ErrNoRows} {
		if db.Unavailable(err) {
			t.Errorf("%v is told as unavailable", err)
		}
	}
}

func TestCounter(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	ctx, n := db.WithCounter(t.Context())
	if _, err := d.Pool.Exec(ctx, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	b := new(pgx.Batch)
	b.Queue("SELECT 1")
	b.Queue("SELECT 2")
	if err := d.Pool.SendBatch(ctx, b).Close(); err != nil {
		t.Fatal(err)
	}
	if n.Count() != 2 {
		t.Errorf("%d round trips, want 2: a batch is one", n.Count())
	}
}
