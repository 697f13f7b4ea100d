package catalogtest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// stepper stops a call before its round trip to the database with the number `stop`, begin and
// commit included.
type stepper struct {
	stop     int64
	sent     atomic.Int64
	at, next chan struct{}
}

func (s *stepper) step(ctx context.Context) context.Context {
	if s.sent.Add(1) == s.stop {
		close(s.at)
		select {
		case <-s.next:
		case <-ctx.Done():
		}
	}
	return ctx
}

func (s *stepper) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return s.step(ctx)
}

func (s *stepper) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return s.step(ctx)
}

func (*stepper) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (*stepper) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*stepper) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// Interleave runs first(b), stops it before its round trip n, and runs second(b) until that has
// ended or waits for a lock. Then it lets both end. `stopped` is false if first has fewer round
// trips.
func (b Bundle) Interleave(t *testing.T, n int, first, second func(b Bundle) error) (stopped bool, err, err2 error) {
	t.Helper()
	s := &stepper{stop: int64(n), at: make(chan struct{}), next: make(chan struct{})}
	cfg := b.DB.Pool.Config()
	cfg.ConnConfig.Tracer = s
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	d := &db.DB{Pool: db.PoolOver(pool)}
	stepped := open(catalog.Options{DB: d, Background: d, CacheOff: true}, time.Hour)
	stepped.Collector = b.Collector
	done := Later(func() error { return first(stepped) })
	select {
	case <-s.at:
	case err := <-done:
		return false, err, nil
	}
	done2 := Later(func() error { return second(b) })
	Eventually(t, "the second call ends or waits", func() bool { return len(done2) == 1 || b.Waiting(t) > 0 })
	close(s.next)
	return true, Soon(t, "the first call", done), Soon(t, "the second call", done2)
}

// EachStep calls `test` with rising numbers of round trips, until it returns false.
func EachStep(t *testing.T, test func(t *testing.T, n int) (stopped bool)) {
	t.Helper()
	for n := 1; test(t, n); n++ {
		if n > 50 {
			t.Fatal("the call doesn't end")
		}
	}
}
