package pgsession

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// grace is how much longer than the server's time limit the client waits for a statement.
	grace = 5 * time.Second
	// unhurried limits calls that may take long.
	unhurried = 24 * time.Hour
)

// Tracer ends calls that a server accepts and doesn't answer. Statement is the server's time
// limit for a statement, and Batch the server's limit for the transaction of a batch of
// statements; 0 stands for a limit of a day. Tracer ends a call 5 s after this limit: it closes
// the connection, and the call fails with context.DeadlineExceeded.
type Tracer struct{ Statement, Batch time.Duration }

type (
	cancelKey    struct{}
	unhurriedKey struct{}
)

// Unhurried returns a context under which calls may take a day. It is for statements whose
// limits on the server were lifted.
func Unhurried(ctx context.Context) context.Context {
	return context.WithValue(ctx, unhurriedKey{}, true)
}

func begin(ctx context.Context, limit time.Duration) context.Context {
	if limit += grace; limit <= grace || ctx.Value(unhurriedKey{}) != nil {
		limit = unhurried
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	return context.WithValue(ctx, cancelKey{}, cancel)
}

func end(ctx context.Context) {
	if cancel, ok := ctx.Value(cancelKey{}).(context.CancelFunc); ok {
		cancel()
	}
}

func (t Tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return begin(ctx, t.Statement)
}

func (Tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) { end(ctx) }

func (t Tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return begin(ctx, t.Batch)
}

func (Tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (Tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) { end(ctx) }
