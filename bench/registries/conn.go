package registries

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	readBuffer    = 16 << 10  // bytes; also the longest header line understood
	scratchBuffer = 256 << 10 // bytes; bodies are read through it
	maxErrorBody  = 200       // bytes of an unexpected answer's body that are shown
)

// request is one HTTP/1.1 request. It is serialised once, before the measurement, so that
// sending it again costs only the write to the socket.
type request struct {
	head   []byte                // request line, headers and the empty line
	body   []byte                // sent after head
	stream func(io.Writer) error // writes a body that is too large to hold; nil otherwise
	want   int                   // the status expected
}

// isHead returns whether this is a HEAD request, whose answer has no body even if the answer's
// headers announce one.
func (r *request) isHead() bool { return len(r.head) > 5 && string(r.head[:5]) == "HEAD " }

// repeatable returns whether conn may send the request again. It does so if the server turns
// out to have closed the connection after the previous answer. Only GET and HEAD may be
// repeated.
func (r *request) repeatable() bool {
	return r.isHead() || len(r.head) > 4 && string(r.head[:4]) == "GET "
}

// conn is an HTTP/1.1 client that uses one connection at a time, for one goroutine only. It
// only sends requests that were serialised before and finds the ends of answers (RFC 9112),
// because the client of net/http would use more CPU time than the servers under test.
type conn struct {
	t       *target
	timeout time.Duration // of one request

	nc      net.Conn // nil: dial at the next request
	br      *bufio.Reader
	scratch []byte
	used    bool        // nc has answered a request
	release func() bool // ends the watch for cancellation
	out     []byte      // head and body of small requests, sent in one write
	dials   int         // connections made
	answer  response
}

func newConn(t *target, timeout time.Duration) *conn {
	return &conn{t: t, timeout: timeout, scratch: make([]byte, scratchBuffer)}
}

func (c *conn) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: c.timeout}
	nc, err := d.DialContext(ctx, "tcp", c.t.addr)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", c.t.name, err)
	}
	if c.t.tls != nil {
		tc := tls.Client(nc, c.t.tls)
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			return fmt.Errorf("TLS handshake with %s: %w", c.t.name, err)
		}
		nc = tc
	}
	if c.br == nil {
		c.br = bufio.NewReaderSize(nc, readBuffer)
	} else {
		c.br.Reset(nc)
	}
	c.nc, c.used = nc, false
	c.dials++
	// When ctx is cancelled, a deadline in the past ends the read or write in progress.
	c.release = context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // a closed connection needs no deadline
	return nil
}

// close ends the connection; the next request dials again.
func (c *conn) close() {
	if c.nc == nil {
		return
	}
	c.release()
	c.nc.Close()
	c.nc = nil
}

// do sends `req` and reads the whole answer. If a connection that was used before breaks
// before the answer begins, mostly because the server has closed it meanwhile, do sends a
// repeatable request once more, on a new connection. It writes the body to `sink`; if `sink`
// is nil, it only counts the body's bytes. If the status isn't req.want, it returns a
// *statusError with the answer's text. The returned response is valid until the next call.
func (c *conn) do(ctx context.Context, req *request, sink io.Writer) (*response, error) {
	reused := c.nc != nil && c.used
	resp, began, err := c.once(ctx, req, sink)
	if err != nil && reused && !began && req.repeatable() && ctx.Err() == nil {
		resp, _, err = c.once(ctx, req, sink)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", requestLine(req.head), err)
	}
	return resp, nil
}

// once does the same as do, but never sends the request a second time. `began` is true if at
// least one byte of the answer has arrived.
func (c *conn) once(ctx context.Context, req *request, sink io.Writer) (resp *response, began bool, err error) {
	if c.nc == nil {
		if err := c.dial(ctx); err != nil {
			return nil, false, err
		}
	}
	defer func() {
		if err != nil && !errors.As(err, new(*statusError)) {
			c.close()
		}
	}()
	if err := c.nc.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, false, fmt.Errorf("setting the deadline: %w", err)
	}
	// When ctx is cancelled, a function sets a deadline in the past (see dial). SetDeadline
	// above may have overwritten it, so only this check notices an earlier cancellation.
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	sendErr := c.send(req)
	if sendErr != nil && len(req.body) == 0 && req.stream == nil {
		return nil, false, sendErr
	}
	// A server may answer and close the connection before it has read the whole body. Then the
	// answer explains more than the failed write, so it is read first.
	if _, err := c.br.Peek(1); err != nil {
		if sendErr != nil {
			return nil, false, sendErr
		}
		return nil, false, fmt.Errorf("waiting for the answer: %w", err)
	}
	resp, err = c.read(req, sink)
	if err == nil && sendErr != nil {
		err = sendErr
	}
	if sendErr != nil || err == nil && resp.closes {
		c.close()
	}
	c.used = true
	return resp, true, err
}

func (c *conn) send(req *request) error {
	var err error
	switch {
	case req.stream != nil:
		if _, err = c.nc.Write(req.head); err == nil {
			err = req.stream(c.nc)
		}
	case len(req.body) == 0:
		_, err = c.nc.Write(req.head)
	default:
		c.out = append(append(c.out[:0], req.head...), req.body...)
		_, err = c.nc.Write(c.out)
	}
	if err != nil {
		return fmt.Errorf("sending the request: %w", err)
	}
	return nil
}

// read reads one answer and skips interim answers (1xx). If the status isn't the wanted one,
// it returns a *statusError; the connection remains usable if the answer's body could be read
// to its end.
func (c *conn) read(req *request, sink io.Writer) (*response, error) {
	r := &c.answer
	for {
		if err := r.readHead(c.br); err != nil {
			return nil, fmt.Errorf("reading the answer's headers: %w", err)
		}
		if r.status >= 200 {
			break
		}
		if r.status == 101 {
			return nil, errors.New("the server switches protocols")
		}
	}
	if r.status == req.want {
		return r, r.readBody(c.br, c.scratch, req.isHead(), sink)
	}
	var quote clipped
	if err := r.readBody(c.br, c.scratch, req.isHead(), &quote); err != nil {
		return nil, fmt.Errorf("status %d, want %d, and its body: %w", r.status, req.want, err)
	}
	if r.closes {
		c.close()
	}
	return nil, &statusError{got: r.status, want: req.want, body: string(quote.b)}
}

// statusError reports an answer that is complete, but whose status isn't the wanted one.
type statusError struct {
	got, want int
	body      string
}

func (e *statusError) Error() string {
	if e.body == "" {
		return fmt.Sprintf("status %d, want %d", e.got, e.want)
	}
	return fmt.Sprintf("status %d, want %d: %s", e.got, e.want, e.body)
}

// clipped keeps the first maxErrorBody bytes that are written to it, and drops the others.
type clipped struct{ b []byte }

func (w *clipped) Write(p []byte) (int, error) {
	if room := maxErrorBody - len(w.b); room > 0 {
		w.b = append(w.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// requestLine returns "METHOD target" of a serialised request, for error messages.
func requestLine(head []byte) string {
	var method, path int
	for i, b := range head {
		if b != ' ' {
			continue
		}
		if method == 0 {
			method = i
			continue
		}
		path = i
		break
	}
	return string(head[:path])
}
