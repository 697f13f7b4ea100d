package server

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// intake is the body of a request that uploads. Its beginning can be looked at
// before it is used up.
type intake struct {
	body    io.Reader
	control *http.ResponseController
	idle    time.Duration
	end     time.Time
	moved   time.Time

	length int64 // -1 if it isn't known
	want   int64 // what Content-Range says, -1 without one
	read   int64
	// lost is why the body ended early. What came before it counts.
	lost error
	// streaming says that bytes have been used up, saved that they were kept.
	streaming, saved bool

	buffer *bytes.Buffer
	whole  bool
}

var buffers = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, catalog.MaxTail+1+bytes.MinRead)) }}

func (s *Server) newIntake(c *call) *intake {
	return &intake{
		body: c.r.Body, control: http.NewResponseController(c.ResponseWriter),
		idle: s.opt.BodyIdleTimeout, end: time.Now().Add(s.opt.MaxRequest), length: c.r.ContentLength, want: -1,
	}
}

// first is the beginning of the body, and whether that is all of it. A body
// that is known to be long isn't waited for. It may be called again.
func (in *intake) first() (b []byte, whole bool) {
	if in.length > catalog.MaxTail {
		return nil, false
	}
	if in.buffer == nil {
		in.buffer = buffers.Get().(*bytes.Buffer)
		in.buffer.Reset()
		if in.length == 0 {
			in.whole = true
			return nil, true
		}
		_, err := in.buffer.ReadFrom(io.LimitReader(in, catalog.MaxTail+1))
		in.whole = err != nil || in.buffer.Len() <= catalog.MaxTail
	}
	return in.buffer.Bytes(), in.whole
}

func (in *intake) close() {
	if in.buffer != nil {
		buffers.Put(in.buffer)
		in.buffer = nil
	}
}

// Read waits for a client as long as it sends something every now and then.
// The time is moved on once in a quarter of it.
func (in *intake) Read(p []byte) (int, error) {
	if now := time.Now(); now.Sub(in.moved) > in.idle/4 {
		until := now.Add(in.idle)
		if until.After(in.end) {
			until = in.end
		}
		// A connection without deadlines (in a test, say) just waits.
		in.control.SetReadDeadline(until) //nolint:errcheck
		in.moved = now
	}
	n, err := in.body.Read(p)
	in.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		in.lost = err
	}
	return n, err
}

// checkLength checks that as many bytes came as Content-Range said.
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
