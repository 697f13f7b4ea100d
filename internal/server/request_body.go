package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// RequestBody reads the body of a request. It stops reading, with an error, if the client sends
// too slowly.
type RequestBody struct {
	// Length is the Content-Length of the request, or -1 if the request has none. Received
	// counts the bytes of the body that have arrived.
	Length, Received int64
	// Lost is the error that ended the body early, nil if the body didn't end early. The bytes
	// that arrived before the error can still be used.
	Lost  error
	Lease *limit.Lease // of the request

	body    io.Reader
	ctx     context.Context // ends when the client disconnects
	control *http.ResponseController
	idle    time.Duration
	end     time.Time
	moved   time.Time
	pace    pace
	conn    *limit.Progress // of the request's connection
	metrics *limit.Metrics
}

// Body returns the reader for the body of a request.
func (s *Server) Body(w http.ResponseWriter, r *http.Request) *RequestBody {
	l := s.opt.Limits
	return &RequestBody{
		Length: r.ContentLength, Lease: Observed(r.Context()).Lease,
		body: r.Body, ctx: r.Context(), control: http.NewResponseController(w),
		idle: s.opt.BodyIdleTimeout, end: time.Now().Add(s.opt.MaxRequest),
		pace:    pace{least: l.MinBodyRate, window: l.MinBodyRateWindow},
		conn:    limit.ProgressOf(r.Context()),
		metrics: l.Metrics,
	}
}

// Context ends when the client disconnects.
func (b *RequestBody) Context() context.Context { return b.ctx }

// firstStep is the initial size of a body's buffer, in bytes.
const firstStep = 8 << 10

// Hold reads at most `most` bytes of the body into memory and returns them. Each byte of the
// buffer counts as `factor` bytes in the request's share of the memory budget (b.Lease). The
// buffer grows as bytes arrive, so a client that sends nothing uses hardly any memory. If the
// body ends early, Hold returns the bytes that arrived, and sets b.Lost to the reason.
func (b *RequestBody) Hold(most int, factor int64) []byte {
	if b.Length >= 0 {
		most = int(min(b.Length, int64(most)))
	}
	var buf []byte
	var held int64
	for len(buf) < most {
		if len(buf) == cap(buf) {
			size := min(most, max(4*cap(buf), firstStep))
			taken, err := b.Lease.Take(b.ctx, int64(size)*factor)
			if err != nil {
				b.Lost = err
				return buf
			}
			buf = append(make([]byte, 0, size), buf...)
			b.Lease.Give(held)
			held = taken
		}
		n, err := b.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			return buf
		}
	}
	return buf
}

// Read reads from the body. It fails if the client sends nothing for the idle timeout, or sends
// more slowly than the minimum rate. To save system calls, Read renews the read deadline only
// when a quarter of the idle timeout has passed since the last renewal.
func (b *RequestBody) Read(p []byte) (int, error) {
	now := time.Now()
	if now.Sub(b.moved) > b.idle/4 {
		until := now.Add(b.idle)
		if until.After(b.end) {
			until = b.end
		}
		b.control.SetReadDeadline(until) //nolint:errcheck // a connection without deadlines, as in tests, just waits
		b.moved = now
	}
	b.conn.Wait(now)
	n, err := b.body.Read(p)
	end := time.Now()
	b.conn.Got(n, end)
	b.Received += int64(n)
	if b.pace.tooSlow(n, end.Sub(now)) && err == nil {
		b.metrics.Refused(limit.BodyRate)
		err = oci.Errorf(oci.SizeInvalid, "the body came at less than %d bytes a second over %s", b.pace.least, b.pace.window).
			WithStatus(http.StatusRequestTimeout)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.Lost = err
	}
	return n, err
}

// LostError returns nil if the body was read to its end. If the body ended early, LostError
// returns the error for the client.
func (b *RequestBody) LostError() error {
	if b.Lost == nil {
		return nil
	}
	return bodyError(b.Lost, b.Received, b.Length)
}

// bodyError returns the error for a body that ended early.
func bodyError(err error, got, want int64) error {
	if _, told := errors.AsType[*oci.Error](err); told {
		return err
	}
	if _, full := errors.AsType[*limit.FullError](err); full {
		return fmt.Errorf("after %d bytes of the body: %w", got, err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) && want >= 0 {
		return oci.Errorf(oci.SizeInvalid, "the body ended after %d of %d bytes", got, want).WithCause(err)
	}
	return oci.Errorf(oci.SizeInvalid, "the body could not be read after %d bytes", got).WithCause(err)
}
