package integrationtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/loosefk"
)

// A worker stops sending while it holds an advisory lock. PostgreSQL must release the lock
// although the connection stays open, and the worker must learn that it has lost the lock.
func TestAdvisoryLockOfSilentWorker(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	proxy := dbtest.NewProxy(t, dsn)
	pool := func(dsn string) *loosefk.Database {
		p, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return &loosefk.Database{Name: "main", Pool: p}
	}
	silent, other := pool(proxy.DSN), pool(dsn)
	t.Cleanup(proxy.Stop) // before the pools are closed
	lock := loosefk.AdvisoryLock{Loss: 600 * time.Millisecond}
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := lock.TryRun(t.Context(), silent, "work", func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		ended <- err
	}()
	<-began
	proxy.Silence()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		held, err := lock.TryRun(ctx, other, "work", func(context.Context) error { return nil })
		if err != nil {
			t.Fatalf("the lock of a silent worker is never free: %v", err)
		}
		if held {
			break
		}
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the silent worker never heard that its lock was lost")
		}
	case <-ctx.Done():
		t.Error("the silent worker still believes that it has the lock")
	}
}
