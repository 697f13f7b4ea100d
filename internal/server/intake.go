package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// intake reads the body of a request. It can buffer the beginning of the body before
// the rest is read. The buffer counts as memory of the request's lease and grows as
// bytes arrive, so a client that sends nothing uses next to no memory.
type intake struct {
	body    io.Reader
	ctx     context.Context // ends when the client disconnects
	control *http.ResponseController
	idle    time.Duration
	end     time.Time
	moved   time.Time
	pace    pace
	metrics *limit.Metrics
	lease   *limit.Lease

	length int64 // Content-Length, -1 if unknown
	want   int64 // length by Content-Range, -1 without that header
	read   int64
	// lost is the error with which the body ended early. The bytes before it are still
	// used.
	lost error
	// streaming: bytes were read that can't be read again. saved: bytes were saved in
	// the upload's row.
	streaming, saved bool

	buffer []byte
	looked bool // buffer holds the beginning of the body
	whole  bool
}

func (s *Server) newIntake(c *call) *intake {
	l := s.opt.Limits
	return &intake{
		body: c.r.Body, ctx: c.r.Context(), control: http.NewResponseController(c.ResponseWriter),
		idle: s.opt.BodyIdleTimeout, end: time.Now().Add(s.opt.MaxRequest),
		pace:    pace{least: l.MinBodyRate, window: l.MinBodyRateWindow},
		metrics: l.Metrics, lease: observed(c.r.Context()).lease,
		length: c.r.ContentLength, want: -1,
	}
}

// first returns the beginning of the body, and whether that is the whole body. If
// Content-Length already says that the body is longer than catalog.MaxTail, it returns
// nothing, without waiting. It may be called repeatedly.
func (in *intake) first() (b []byte, whole bool) {
	if in.length > catalog.MaxTail {
		return nil, false
	}
	if !in.looked {
		in.buffer = in.hold(catalog.MaxTail+1, 1)
		in.looked = true
		in.whole = in.lost != nil || len(in.buffer) <= catalog.MaxTail
	}
	return in.buffer, in.whole
}

// firstStep is the initial size of a body's buffer, in bytes.
const firstStep = 8 << 10

// hold reads the body into memory: up to its length, or up to most bytes. Each byte of
// the buffer counts as factor bytes of the lease. If the body ends early, in.lost is
// the reason.
func (in *intake) hold(most int, factor int64) []byte {
	if in.length >= 0 {
		most = int(min(in.length, int64(most)))
	}
	var buf []byte
	var held int64
	for len(buf) < most {
		if len(buf) == cap(buf) {
			size := min(most, max(4*cap(buf), firstStep))
			taken, err := in.lease.Take(in.ctx, int64(size)*factor)
			if err != nil {
				in.lost = err
				return buf
			}
			buf = append(make([]byte, 0, size), buf...)
			in.lease.Give(held)
			held = taken
		}
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			return buf
		}
	}
	return buf
}

// Read reads from the body. It fails if the client sends nothing for the idle timeout,
// or less than the minimum rate. The read deadline is renewed only after a quarter of
// the idle timeout, to save calls.
func (in *intake) Read(p []byte) (int, error) {
	now := time.Now()
	if now.Sub(in.moved) > in.idle/4 {
		until := now.Add(in.idle)
		if until.After(in.end) {
			until = in.end
		}
		// A connection without deadlines, as in tests, just waits.
		in.control.SetReadDeadline(until) //nolint:errcheck
		in.moved = now
	}
	n, err := in.body.Read(p)
	in.read += int64(n)
	if in.pace.tooSlow(n, time.Since(now)) && err == nil {
		in.metrics.Refused(limit.BodyRate)
		err = oci.Errorf(oci.SizeInvalid, "the body came at less than %d bytes a second over %s", in.pace.least, in.pace.window).
			WithStatus(http.StatusRequestTimeout)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		in.lost = err
	}
	return n, err
}

// checkLength checks that the body is as long as Content-Range says.
func (in *intake) checkLength() error {
	if in.want >= 0 && in.lost == nil && in.read != in.want {
		return oci.Errorf(oci.SizeInvalid, "Content-Range names %d bytes, but %d came", in.want, in.read)
	}
	return nil
}

func (in *intake) lostError() error {
	if in.lost == nil {
		return nil
	}
	return bodyError(in.lost, in.read, in.length)
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
