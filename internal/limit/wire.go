package limit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// net/http itself answers requests that it can't parse, that have too long headers, or that
// have an unknown value in Expect; no handler sees these requests. If a request has both a
// Content-Length and a Transfer-Encoding, net/http drops the Content-Length, so handlers don't
// see that it was there. Therefore a conn, the Listener's connection, parses the header of each
// request, and the answer of net/http itself if there is one. It can't parse the encrypted
// bytes of a connection with TLS.

// wire is the state of parsing: how much of the current request's header a conn has seen, and
// whether a handler is answering it.
type wire struct {
	used      bool // the listener serves an http.Server with ConnContext and ConnState; set before the first byte
	mu        sync.Mutex
	answering bool   // a handler has the request: bytes that are written are the handler's answer
	line      []byte // the beginning of the current line
	target    string // the request's target as sent: path and query
	lines     int
	ended     bool // the header has been read to its end
	begun     bool // the header has been seen from its first line on
	proxied   bool // the connection begins with a PROXY protocol header instead
	length    bool // the header has a Content-Length
	coding    bool // the header has a Transfer-Encoding
	last      byte // the last byte of the current line
	bare      bool // a line of the header ends with LF alone
	folded    bool // a line of the header continues the one before it
}

// keepLine is how many bytes at the beginning of a header line are kept, enough for the names
// of the headers that the parser looks for. firstLine is how many bytes of the request's first
// line are kept; this limit is larger because the parser needs the end of the first line too.
const (
	keepLine  = 32
	firstLine = 16 << 10
)

// next resets the state for another request.
func (w *wire) next() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answering, w.line, w.lines, w.target = false, w.line[:0], 0, ""
	w.ended, w.begun, w.proxied, w.length, w.coding = false, false, false, false, false
	w.last, w.bare, w.folded = 0, false, false
}

// read parses bytes that net/http has read from the connection.
func (w *wire) read(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines == 0 && len(w.line) == 0 {
		w.proxied = beginsWithProxyHeader(p)
	}
	for len(p) > 0 && !w.answering && !w.ended {
		piece, rest, whole := bytes.Cut(p, []byte{'\n'})
		most := keepLine
		if w.lines == 0 {
			most = firstLine
		}
		w.line = append(w.line, piece[:min(len(piece), most-min(most, len(w.line)))]...)
		if len(piece) > 0 {
			w.last = piece[len(piece)-1]
		}
		if whole {
			w.endLine()
		}
		p = rest
	}
}

func (w *wire) endLine() {
	line := strings.TrimSuffix(string(w.line), "\r")
	w.line = w.line[:0]
	w.lines++
	w.bare = w.bare || w.last != '\r'
	w.last = 0
	if w.lines == 1 {
		// The first byte of the line may be missing, since net/http may have read it ahead
		// while it wrote the previous answer. Therefore only the end of the line is checked.
		version := line[max(0, len(line)-len(" HTTP/1.1")):]
		w.begun = version == " HTTP/1.1" || version == " HTTP/1.0"
		w.target = targetOf(line)
		return
	}
	if line == "" {
		w.ended, w.line = true, nil
		return
	}
	w.folded = w.folded || line[0] == ' ' || line[0] == '\t'
	name, _, _ := strings.Cut(line, ":")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "content-length":
		w.length = true
	case "transfer-encoding":
		w.coding = true
	}
}

// targetOf returns the target (path and query) in a request's first line. The target is
// truncated if the line is.
func targetOf(line string) string {
	_, rest, _ := strings.Cut(line, " ")
	target, _, _ := strings.Cut(rest, " ")
	return target
}

// errCut is the error of reading a connection that gave its place to another one. net/http
// doesn't answer after errors of this type.
var errCut error = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("the connection was closed to make room for another client's")}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	var n int
	var err error
	if c.proxy != nil {
		n, err = c.readBehindHeader(p)
	} else {
		n, err = c.TCPConn.Read(p)
	}
	if c.cut.Load() {
		return 0, errCut
	}
	if c.wire.used && n > 0 {
		c.wire.read(p[:n])
	}
	if pause := c.overhead.spend(n); pause > 0 {
		time.Sleep(pause)
	}
	return n, err
}

// Write implements net.Conn. If net/http itself has written the answer, Write converts it to
// the registry's error format.
func (c *conn) Write(p []byte) (int, error) {
	if !c.wire.used {
		c.overhead.earn(float64(len(p)) / answerShare)
		return c.TCPConn.Write(p)
	}
	c.wire.mu.Lock()
	own, proxied, target := c.wire.answering, c.wire.proxied, c.wire.target
	if c.wire.lines == 0 { // the first line is longer than a header may be
		target = targetOf(string(c.wire.line))
	}
	c.wire.mu.Unlock()
	if own {
		return c.TCPConn.Write(p)
	}
	if answer, ok := c.l.errorAnswer(p, target, proxied); ok {
		if _, err := c.TCPConn.Write(answer); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return c.TCPConn.Write(p)
}

// reasons has texts for statuses whose standard text doesn't say what is wrong.
var reasons = map[string]string{
	"417": "the header Expect names something other than 100-continue",
	"431": "the headers of the request are too long",
	"501": "the Transfer-Encoding of the request isn't chunked",
}

// errorAnswer converts the error answer `p`, which net/http has written to a request for
// `target`. The result has the format of the OCI Distribution Specification ("Error Codes") or
// of ListenerOptions.ErrorBody. It returns false if `p` isn't an error answer. `proxied` says
// that the connection began with a PROXY protocol header, which the message then explains.
func (l *Listener) errorAnswer(p []byte, target string, proxied bool) ([]byte, bool) {
	first, _, ok := bytes.Cut(p, []byte("\r\n"))
	status, isAnswer := strings.CutPrefix(string(first), "HTTP/1.1 ")
	if !ok || !isAnswer || len(status) < 4 || status[0] != '4' && status[0] != '5' {
		return nil, false
	}
	message := reasons[status[:3]]
	switch {
	case proxied:
		message = "the connection begins with a header of the PROXY protocol, which is read with the setting http.proxy_protocol, from addresses in http.trusted_proxies"
	case message == "":
		message = "the request can't be read: " + strings.TrimSpace(status[3:])
	}
	if _, err := url.ParseRequestURI(target); status[:3] == "400" && err != nil && !proxied {
		if escape, ok := errors.AsType[url.EscapeError](err); ok {
			message = fmt.Sprintf("the path can't be read: %q in it should be %% and two hexadecimal digits", string(escape))
		}
	}
	return l.errorText(target, status, message), true
}

// errorText returns a complete HTTP answer with this status and message, which also closes the
// connection.
func (l *Listener) errorText(target, status, message string) []byte {
	text, err := json.Marshal(message)
	if err != nil {
		text = []byte(`""`) // can't happen: every string has a JSON form
	}
	body := fmt.Appendf(nil, `{"errors":[{"code":"UNSUPPORTED","message":%s}]}`, text)
	if number, err := strconv.Atoi(status[:3]); err == nil && l.o.ErrorBody != nil {
		body = l.o.ErrorBody(target, number, message)
	}
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

type connKey struct{}

// ConnContext must be set as http.Server.ConnContext: it puts the connection into the context
// of its requests, where Begin and ProgressOf find it.
func (l *Listener) ConnContext(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := unwrap(nc); ok {
		c.wire.used = l.o.Plain
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// Begin must be called before a handler handles the request. It returns an error for requests
// of which a proxy between client and registry could see another end or another beginning, so
// that it takes a part of one request for another (RFC 9112, section 11.2):
//
//   - a request with both a Content-Length and a Transfer-Encoding, or with a Transfer-Encoding
//     in HTTP/1.0, which net/http ignores (section 6.1),
//   - a request with a header line that continues the one before (section 5.2), or that ends
//     with LF alone (section 2.2), in which some proxies see one header where net/http sees two,
//   - a request with a Transfer-Encoding, or of HTTP/1.0, that was sent before the answer to the
//     one before it, because then its header wasn't parsed completely.
//
// The caller must refuse the request and close its connection.
func Begin(r *http.Request) error {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok || !c.wire.used || r.ProtoMajor != 1 {
		return nil
	}
	w := &c.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answering = true
	old := r.ProtoMinor == 0
	switch seen := w.ended && w.begun; {
	case w.length && w.coding:
		return errors.New("a request has either Content-Length or Transfer-Encoding, never both")
	case w.coding && old:
		return errors.New("a request of HTTP/1.0 can't have a Transfer-Encoding")
	case w.folded:
		return errors.New("a line of the header begins with a space or a tab")
	case w.bare:
		return errors.New("a line of the header ends with LF, and not with CR and LF")
	case len(r.TransferEncoding) > 0 && !seen:
		return errors.New("a request with Transfer-Encoding can't be sent before the answer to the one before it")
	case old && !seen:
		return errors.New("a request of HTTP/1.0 can't be sent before the answer to the one before it")
	}
	return nil
}

// IsLast says whether the connection must be closed after the answer to the request. On a
// connection with TLS, Begin doesn't see whether a request has both a Content-Length and a
// Transfer-Encoding, or a Transfer-Encoding in HTTP/1.0. After such a request the connection
// must be closed (RFC 9112, section 6.1), so it is closed after every request that could be one.
func IsLast(r *http.Request) bool {
	return r.TLS != nil && r.ProtoMajor == 1 && (len(r.TransferEncoding) > 0 || r.ProtoMinor == 0)
}
