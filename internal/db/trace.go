package db

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
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
// OpenTelemetry trace that is recorded, tracer also makes a span for each round trip.
type tracer struct{}

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

func (tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return begin(ctx, "query", d.SQL)
}

func (tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	end(ctx, d.Err)
}

func (tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return begin(ctx, "batch", "")
}

func (tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) {
	end(ctx, d.Err)
}

// isNetwork says whether err is a broken or refused connection.
func isNetwork(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
