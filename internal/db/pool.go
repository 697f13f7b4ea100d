package db

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	codeTooManyConnections = "53300"
	// refusedPause is how long the pool opens no further connection after PostgreSQL has refused one.
	refusedPause = 250 * time.Millisecond
	// refusedPatience is how long a statement waits for one of the connections that the pool has.
	refusedPatience = 5 * time.Second
	// firstPatience is how long it waits for the first connection of a pool that has none.
	firstPatience = 500 * time.Millisecond
	// refusedTold is how often the log says that PostgreSQL refuses connections.
	refusedTold = 10 * time.Second
)

// Pool is a pool of pgxpool. Where that has no idle connection, it opens another one, and if PostgreSQL
// refuses that, because the server, the database or the role may have no more, it gives the refusal to
// whoever asked, although the connections that it has become idle in a moment. Pool waits for one of
// these, for five seconds. A pool without any connection returns the refusal within half a second. While
// all connections that the pool may have are in use, Pool waits for Options.AcquireTimeout.
type Pool struct {
	*pgxpool.Pool
	log     *slog.Logger
	refused atomic.Int64
	waits   *waits  // nil: the wait for a connection has no limit
	shares  *shares // nil: clients have no shares

	mu     sync.Mutex
	opened bool      // the embedded pool is there
	closed time.Time // until then no further connection is opened
	last   error     // the last refusal
	told   time.Time
}

// PoolOver returns a Pool over a pool that exists already.
func PoolOver(pool *pgxpool.Pool) *Pool { return &Pool{Pool: pool, log: slog.Default(), opened: true} }

// open makes the embedded pool, which may connect before it is returned.
func (p *Pool) open(ctx context.Context, cfg *pgxpool.Config) error {
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Pool, p.opened = pool, err == nil
	return err
}

// errPaused says that no connection was opened, since PostgreSQL has just refused one.
var errPaused = errors.New("PostgreSQL has just refused a further connection")

// Refused returns how many connections PostgreSQL has refused to this pool.
func (p *Pool) Refused() int64 { return p.refused.Load() }

// mayConnect returns errPaused if PostgreSQL has just refused a connection, and the pool has others.
func (p *Pool) mayConnect() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened && time.Now().Before(p.closed) && p.has() > 0 {
		return errPaused
	}
	return nil
}

// has returns how many connections the pool has.
func (p *Pool) has() int32 {
	s := p.Stat()
	return s.AcquiredConns() + s.IdleConns()
}

// refusal returns whether an error says that PostgreSQL has refused a connection, or would.
func refusal(err error) (paused, ok bool) {
	if errors.Is(err, errPaused) {
		return true, true
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return false, connecting && Code(err) == codeTooManyConnections
}

// again says, after a while, whether a statement that has failed before it began can have a connection
// now. `began` is when it was first tried.
func (p *Pool) again(ctx context.Context, began time.Time, err error) bool {
	paused, ok := refusal(err)
	if !ok {
		return false
	}
	has := p.has()
	if !paused {
		p.noteRefusal(ctx, has, err)
	}
	patience := refusedPatience
	if has == 0 { // one may be about to be opened, by another statement or by the pool itself
		patience = firstPatience
	}
	if time.Since(began) > patience {
		return false
	}
	return worker.Sleep(ctx, 5*time.Millisecond+rand.N(20*time.Millisecond)) == nil
}

func (p *Pool) noteRefusal(ctx context.Context, has int32, err error) {
	p.refused.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.last = err
	if p.closed = now.Add(refusedPause); has > 0 && now.Sub(p.told) > refusedTold {
		p.told = now
		p.log.WarnContext(ctx, "PostgreSQL refuses a further connection; statements wait for those that this pool has", "has", has, "may_need", p.Config().MaxConns, "error", err)
	}
}

// tried calls `try` until it succeeds, or fails for another reason than want of a connection.
func tried[T any](ctx context.Context, p *Pool, try func() (T, error)) (T, error) {
	began := time.Now()
	for {
		out, err := try()
		if err == nil || !p.again(ctx, began, err) {
			return out, p.waits.explain(ctx, p.explain(err))
		}
	}
}

// explain returns PostgreSQL's own refusal in place of errPaused.
func (p *Pool) explain(err error) error {
	if !errors.Is(err, errPaused) {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Acquire is as in pgxpool.
func (p *Pool) Acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return tried(ctx, p, func() (*pgxpool.Conn, error) { return p.Pool.Acquire(ctx) })
}

// AcquireFunc is as in pgxpool.
func (p *Pool) AcquireFunc(ctx context.Context, fn func(*pgxpool.Conn) error) error {
	c, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return fn(c)
}

// Ping is as in pgxpool.
func (p *Pool) Ping(ctx context.Context) error {
	return p.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return c.Ping(ctx) })
}

// Exec is as in pgxpool.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return tried(ctx, p, func() (pgconn.CommandTag, error) { return p.Pool.Exec(ctx, sql, args...) })
}

// Query is as in pgxpool.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return tried(ctx, p, func() (pgx.Rows, error) { return p.Pool.Query(ctx, sql, args...) })
}

// Begin is as in pgxpool.
func (p *Pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx is as in pgxpool.
func (p *Pool) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	return tried(ctx, p, func() (pgx.Tx, error) { return p.Pool.BeginTx(ctx, o) })
}

// QueryRow is as in pgxpool.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	c, err := p.Acquire(ctx)
	if err != nil {
		return failedRow{err}
	}
	return heldRow{c.QueryRow(ctx, sql, args...), c}
}

// SendBatch is as in pgxpool, for batches that don't begin a transaction.
func (p *Pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	c, err := p.Acquire(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &heldBatch{BatchResults: c.SendBatch(ctx, b), c: c}
}

// heldRow releases its connection when it is scanned.
type heldRow struct {
	row pgx.Row
	c   *pgxpool.Conn
}

func (r heldRow) Scan(to ...any) error {
	defer r.c.Release()
	return r.row.Scan(to...)
}

// failedRow is the row of a query that got no connection.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// heldBatch releases its connection when it is closed.
type heldBatch struct {
	pgx.BatchResults
	c    *pgxpool.Conn
	once sync.Once
}

func (b *heldBatch) Close() error {
	defer b.once.Do(b.c.Release)
	return b.BatchResults.Close()
}
