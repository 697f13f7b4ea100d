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

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// limitedDSN returns the DSN of a role that may have n connections.
func limitedDSN(t *testing.T, n int) (dsn string, set func(n int)) {
	t.Helper()
	whole := dbtest.EmptyDSN(t)
	owner := dbtest.Open(t, whole)
	role := fmt.Sprintf("limited_%d", time.Now().UnixNano())
	set = func(n int) {
		t.Helper()
		if _, err := owner.Pool.Exec(t.Context(), fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT %d", role, n)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := owner.Pool.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN"); err != nil {
		t.Fatal(err)
	}
	set(n)
	cfg := owner.Pool.Config().ConnConfig
	return fmt.Sprintf("host=%s port=%d dbname=%s user=%s sslmode=disable", cfg.Host, cfg.Port, cfg.Database, role), set
}

// PostgreSQL allows fewer connections than the pool would open. Statements wait for those that the pool
// has, whatever way they come; none fails.
func TestPoolWaitsForItsConnections(t *testing.T) {
	t.Parallel()
	dsn, _ := limitedDSN(t, 3)
	var log strings.Builder
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, MaxConns: 12, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	const sql = "SELECT pg_sleep(0.002), 1"
	ways := []func(ctx context.Context) error{
		func(ctx context.Context) error { _, err := d.Pool.Exec(ctx, sql); return err },
		func(ctx context.Context) error {
			var n int
			return d.Pool.QueryRow(ctx, "SELECT 1").Scan(&n)
		},
		func(ctx context.Context) error {
			rows, err := d.Pool.Query(ctx, sql)
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		},
		func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, d.Pool, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err })
		},
		func(ctx context.Context) error {
			b := new(pgx.Batch)
			b.Queue(sql)
			b.Queue(sql)
			return d.Pool.SendBatch(ctx, b).Close()
		},
		d.Pool.Ping,
	}
	var group errgroup.Group
	for i := range 30 {
		group.Go(func() error {
			for n := range 20 {
				if err := ways[(i+n)%len(ways)](t.Context()); err != nil {
					return fmt.Errorf("way %d: %w", (i+n)%len(ways), err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if s := d.Pool.Stat(); s.AcquiredConns() != 0 || s.TotalConns() > 3 {
		t.Errorf("%d connections are in use of %d, want none of 3 at most", s.AcquiredConns(), s.TotalConns())
	}
	if d.Pool.Refused() == 0 {
		t.Error("PostgreSQL has refused no connection, so this shows nothing")
	}
}

// While all connections that the pool may have are in use, a statement waits for one of them for a time,
// whatever way it comes, and then says so. The time doesn't bound the statement itself.
func TestPoolBoundsTheWait(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	const timeout = 20 * time.Millisecond
	d, err := db.Open(t.Context(), db.Options{DSN: dbtest.DSN(t), MaxConns: 1, AcquireTimeout: timeout, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	held, err := d.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ways := map[string]func(ctx context.Context) error{
		"Exec":     func(ctx context.Context) error { _, err := d.Pool.Exec(ctx, "SELECT pg_sleep(0.1)"); return err },
		"QueryRow": func(ctx context.Context) error { var n int; return d.Pool.QueryRow(ctx, "SELECT 1").Scan(&n) },
		"Query": func(ctx context.Context) error {
			rows, err := d.Pool.Query(ctx, "SELECT pg_sleep(0.1)")
			if err != nil {
				return err
			}
			rows.Close()
			return rows.Err()
		},
		"Tx": func(ctx context.Context) error {
			return d.Tx(ctx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "SELECT pg_sleep(0.1)"); return err })
		},
		"SendBatch": func(ctx context.Context) error {
			b := new(pgx.Batch)
			b.Queue("SELECT pg_sleep(0.1)")
			return d.Pool.SendBatch(ctx, b).Close()
		},
		"Ping": d.Pool.Ping,
	}
	for name, way := range ways {
		began := time.Now()
		if err := way(t.Context()); !errors.Is(err, db.ErrBusy) || !db.Unavailable(err) || time.Since(began) < timeout {
			t.Errorf("%s, while the only connection is in use: %v after %v", name, err, time.Since(began))
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := way(gone); !errors.Is(err, context.Canceled) || errors.Is(err, db.ErrBusy) {
			t.Errorf("%s of a client that has gone: %v", name, err)
		}
	}
	if _, waited := d.Pool.Waits(); waited < time.Duration(len(ways))*timeout {
		t.Errorf("the waits in vain add up to %v", waited)
	}
	if n := strings.Count(log.String(), "get no connection to the database"); n != 1 {
		t.Errorf("the log tells of it %d times:\n%s", n, log.String())
	}
	held.Release()
	for name, way := range ways {
		if err := way(t.Context()); err != nil {
			t.Errorf("%s, when the connection is free: %v", name, err)
		}
	}
}

// A statement doesn't wait for ever: when all connections that PostgreSQL allows stay in use, it gets
// PostgreSQL's refusal, and at once if the pool has no connection at all.
func TestPoolGivesUp(t *testing.T) {
	t.Parallel()
	dsn, set := limitedDSN(t, 1)
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, MaxConns: 5, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	held, err := d.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "no further connection") || !db.Unavailable(err) {
		t.Errorf("with one connection, which is in use: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := d.Pool.Exec(short, "SELECT 1"); err == nil {
		t.Error("a statement succeeds without a connection")
	}
	held.Release()
	if err := d.Ping(t.Context()); err != nil {
		t.Errorf("after the connection is free: %v", err)
	}
	set(0)
	empty, err := db.Open(t.Context(), db.Options{DSN: dsn, MaxConns: 5, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	if err := empty.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "too many connections") {
		t.Errorf("a pool without a connection: %v", err)
	}
}
