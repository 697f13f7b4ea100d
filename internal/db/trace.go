package db

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/purser-registry/purser/internal/pgsession"
)

type counterKey struct{}

// Counter counts the round trips to the database that are made under its context. A batch is
// one round trip.
type Counter struct{ n atomic.Int64 }

// Count returns the number of round trips so far.
func (c *Counter) Count() int64 { return c.n.Load() }

// WithCounter returns a context whose queries are counted.
func WithCounter(ctx context.Context) (context.Context, *Counter) {
	c := new(Counter)
	return context.WithValue(ctx, counterKey{}, c), c
}

// tracer adds each round trip to the Counter in the context. If the context has an
// OpenTelemetry trace that is recorded, tracer also makes a span for each round trip. It logs what
// PostgreSQL denies the sessions' role.
type tracer struct {
	log *slog.Logger

	mu   sync.Mutex
	told time.Time // when the last denial was logged
}

// deniedTold is how often the log says at most that PostgreSQL denies something.
const deniedTold = 10 * time.Second

// tell logs an error that says that the role lacks a right, or that nothing can be written: with the role,
// which no error of PostgreSQL names, and what helps. Whoever has run the statement gets the error too.
func (t *tracer) tell(ctx context.Context, conn *pgx.Conn, err error) {
	code := Code(err)
	if code != CodeNoPrivilege && code != codeReadOnly {
		return
	}
	t.mu.Lock()
	now := time.Now()
	due := now.Sub(t.told) > deniedTold
	if due {
		t.told = now
	}
	t.mu.Unlock()
	if !due {
		return
	}
	if code == codeReadOnly {
		remedy := readOnlyRemedy
		if conn.PgConn().ParameterStatus("in_hot_standby") == "on" {
			remedy = standbyRemedy
		}
		t.log.ErrorContext(ctx, "nothing can be written into the database", "error", err, "remedy", remedy)
		return
	}
	login, role := conn.Config().User, pgsession.RoleOf(conn.PgConn())
	quoted := pgx.Identifier{login}.Sanitize()
	remedy := "give " + role + ` the right by GRANT, or name the role that owns the tables in the DSN; "purser doctor" says all that is lacking`
	if role != login && role != quoted {
		remedy = roleRemedy(login, role) + "; or " + remedy
	}
	t.log.ErrorContext(ctx, "the database's role lacks a right that the registry needs", "role", role, "error", err, "remedy", remedy)
}

func begin(ctx context.Context, name, sql string) context.Context {
	if c, ok := ctx.Value(counterKey{}).(*Counter); ok {
		c.n.Add(1)
	}
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	ctx, span := otel.Tracer("purser/db").Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
	span.SetAttributes(attribute.String("db.system.name", "postgresql"))
	if sql != "" {
		span.SetAttributes(attribute.String("db.query.text", sql))
	}
	return context.WithValue(ctx, spanKey{}, span)
}

type spanKey struct{}

func end(ctx context.Context, err error) {
	span, ok := ctx.Value(spanKey{}).(trace.Span)
	if !ok {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// TraceQueryStart implements pgx.QueryTracer.
func (*tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return begin(ctx, "query", d.SQL)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t *tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, d pgx.TraceQueryEndData) {
	t.tell(ctx, conn, d.Err)
	end(ctx, d.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (*tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return begin(ctx, "batch", "")
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t *tracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, d pgx.TraceBatchQueryData) {
	t.tell(ctx, conn, d.Err)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (t *tracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, d pgx.TraceBatchEndData) {
	t.tell(ctx, conn, d.Err)
	end(ctx, d.Err)
}

// isNetwork says whether err is a broken or refused connection.
func isNetwork(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
