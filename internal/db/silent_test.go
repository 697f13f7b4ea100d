package db_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/pgsession"
)

func openWith(t *testing.T, o db.Options) *db.DB {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	d, err := db.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// within returns a context that ends after d, so that a step of the test fails if it takes
// longer.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A process has locked a row and then vanishes without closing its connection. Its transaction
// must be ended, and the lock released, after the idle timeout.
func TestSilentClientGivesItsLocksUp(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	proxy := dbtest.NewProxy(t, dsn)
	defer proxy.Stop()
	silent := openWith(t, db.Options{DSN: proxy.DSN, IdleTimeout: 500 * time.Millisecond})
	tx, err := silent.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "UPDATE settings SET value = value WHERE name = 'partitions'"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		tx.Rollback(ctx) //nolint:errcheck // nobody answers; the connection is given up
	}()
	proxy.Silence()
	other := dbtest.Open(t, dsn)
	if _, err := other.Pool.Exec(within(t, 20*time.Second), "UPDATE settings SET value = value WHERE name = 'partitions'"); err != nil {
		t.Errorf("the row of a silent process stays locked: %v", err)
	}
}

// A process vanishes while it migrates, without closing its connection. PostgreSQL must
// release its migration lock after the idle timeout, so that another process can migrate.
func TestSilentMigrationGivesTheLockUp(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	proxy := dbtest.NewProxy(t, dsn)
	defer proxy.Stop()
	began, silenced := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		silenced <- db.Alone(ctx, proxy.DSN, 500*time.Millisecond, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-began
	proxy.Silence()
	if _, err := db.Migrate(within(t, time.Minute), dsn, db.MigrateOptions{Partitions: 1}); err != nil {
		t.Errorf("a silent process keeps others from migrating: %v", err)
	}
	cancel()
	if err := <-silenced; !errors.Is(err, context.Canceled) {
		t.Errorf("the silent process ended with %v", err)
	}
}

// The server stops answering without closing connections. Calls must fail after their time
// limits instead of hanging forever.
func TestSilentServerFailsCalls(t *testing.T) {
	t.Parallel()
	proxy := dbtest.NewProxy(t, dbtest.DSN(t))
	d := openWith(t, db.Options{DSN: proxy.DSN, StatementTimeout: 200 * time.Millisecond, TransactionTimeout: 300 * time.Millisecond})
	t.Cleanup(proxy.Stop)
	if err := d.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := d.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proxy.Silence()
	for what, call := range map[string]func(ctx context.Context) error{
		"a query": func(ctx context.Context) error { return d.Pool.QueryRow(ctx, "SELECT 1").Scan(nil) },
		"a batch": func(ctx context.Context) error {
			b := new(pgx.Batch)
			b.Queue("SELECT 1")
			return d.Pool.SendBatch(ctx, b).Close()
		},
		"a transaction": func(ctx context.Context) error { return d.Tx(ctx, func(pgx.Tx) error { return nil }) },
		"a commit":      func(ctx context.Context) error { return tx.Commit(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, time.Minute)
			err := call(ctx)
			if err == nil || ctx.Err() != nil {
				t.Errorf("ended with %v after the test's own limit: %v", err, ctx.Err())
			}
			if !db.Unavailable(err) {
				t.Errorf("isn't told as a database that can't be used now: %v", err)
			}
		})
	}
}

// Each connection must have the settings by which PostgreSQL and this process notice that the
// other's machine has vanished. If the DSN has such a setting, the DSN's value must be used.
func TestKeepalivesAreAskedFor(t *testing.T) {
	t.Parallel()
	set := pgsession.Settings(pgsession.Limits{Idle: 20 * time.Second, Transaction: time.Minute})
	for name, want := range map[string]string{
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3", "tcp_user_timeout": "25000",
		"client_connection_check_interval": "5000", "idle_in_transaction_session_timeout": "20000", "transaction_timeout": "60000",
	} {
		if set[name] != want {
			t.Errorf("%s is %q, want %q", name, set[name], want)
		}
	}
	d := openWith(t, db.Options{DSN: dbtest.DSN(t) + "&client_connection_check_interval=7000"})
	if n := number(t, d, "SELECT setting::int FROM pg_settings WHERE name = 'client_connection_check_interval'"); n != 7000 {
		t.Errorf("client_connection_check_interval is %d, want the DSN's 7000", n)
	}
}

// Settings that only newer PostgreSQL servers have must be set if the server has them.
func TestSettingsOfNewerServers(t *testing.T) {
	t.Parallel()
	d := openWith(t, db.Options{DSN: dbtest.DSN(t)})
	if n := number(t, d, "SELECT setting::int FROM pg_settings WHERE name = 'client_connection_check_interval'"); n != 5000 {
		t.Errorf("client_connection_check_interval is %d, want 5000", n)
	}
	sql := "SELECT COALESCE((SELECT setting::int FROM pg_settings WHERE name = 'transaction_timeout'), 120000)"
	if n := number(t, d, sql); n != 120_000 {
		t.Errorf("transaction_timeout is %d, want 120000", n)
	}
	err := d.Tx(db.Unhurried(t.Context()), func(tx pgx.Tx) error {
		if err := db.LiftLimits(t.Context(), tx); err != nil {
			return err
		}
		var limits int
		err := tx.QueryRow(t.Context(), `SELECT sum(setting::int) FROM pg_settings
			WHERE name IN ('statement_timeout', 'transaction_timeout')`).Scan(&limits)
		if limits != 0 {
			t.Errorf("limits of %d ms are left", limits)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A client disconnects while its statement is about to end. The statement must not be
// cancelled, since PostgreSQL would log an error, and the connection must stay open.
func TestStatementOfGoneClientEnds(t *testing.T) {
	t.Parallel()
	d := openWith(t, db.Options{DSN: dbtest.DSN(t), MaxConns: 1})
	var err error
	var pid int
	for range 20 { // a busy machine may not see the end in time
		pid = number(t, d, "SELECT pg_backend_pid()")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err = d.Pool.Exec(ctx, "SELECT pg_sleep(0.05)"); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("a statement that was about to end: %v", err)
	}
	if now := number(t, d, "SELECT pg_backend_pid()"); now != pid {
		t.Error("the connection was closed")
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := d.Pool.Exec(ctx, "SELECT pg_sleep(60)"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 30*time.Second {
		t.Errorf("a long statement: %v after %v", err, time.Since(began))
	}
}
