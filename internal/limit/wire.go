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
)

// net/http answers some requests itself, before any handler: those that it can't read,
// with headers that are too long, or with an expectation that it doesn't know. And it
// drops the Content-Length of a request that has a Transfer-Encoding as well, so that a
// handler doesn't see it. A conn therefore looks at what passes between the end of one
// answer and the begin of the next: the header of a request, and then maybe an answer
// that no handler has written. Of connections with TLS it sees nothing.

// wire is what a conn knows of the request that is read or answered.
type wire struct {
	used      bool // by an http.Server with ConnContext and ConnState, before the first byte
	mu        sync.Mutex
	answering bool   // a handler has the request: what is written is its own
	line      []byte // the beginning of the line that is being read
	target    string // what the request is about, as it is written: path and query
	lines     int
	ended     bool // the header has been read to its end
	begun     bool // and from its first line on
	proxied   bool // it begins with a header of the PROXY protocol instead
	length    bool // Content-Length
	coding    bool // Transfer-Encoding
}

// keepLine is how much of a header's line is kept: names are shorter. Of the first line
// firstLine is kept, since its end is looked at.
const (
	keepLine  = 32
	firstLine = 16 << 10
)

// next expects another request.
func (w *wire) next() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answering, w.line, w.lines, w.target = false, w.line[:0], 0, ""
	w.ended, w.begun, w.proxied, w.length, w.coding = false, false, false, false, false
}

// read looks at bytes that were read.
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
	if w.lines == 1 {
		// The first byte may have been read ahead, while the answer before was written.
		version := line[max(0, len(line)-len(" HTTP/1.1")):]
		w.begun = version == " HTTP/1.1" || version == " HTTP/1.0"
		w.target = targetOf(line)
		return
	}
	if line == "" {
		w.ended, w.line = true, nil
		return
	}
	name, _, _ := strings.Cut(line, ":")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "content-length":
		w.length = true
	case "transfer-encoding":
		w.coding = true
	}
}

// targetOf is the target that a request's first line names, maybe not to its end.
func targetOf(line string) string {
	_, rest, _ := strings.Cut(line, " ")
	target, _, _ := strings.Cut(rest, " ")
	return target
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	var n int
	var err error
	if c.proxy != nil {
		n, err = c.readBehindHeader(p)
	} else {
		n, err = c.TCPConn.Read(p)
	}
	if c.wire.used && n > 0 {
		c.wire.read(p[:n])
	}
	return n, err
}

// Write implements net.Conn. An answer that no handler has written is given the form of
// the registry's errors.
func (c *conn) Write(p []byte) (int, error) {
	if !c.wire.used {
		return c.TCPConn.Write(p)
	}
	c.wire.mu.Lock()
	own, proxied, target := c.wire.answering, c.wire.proxied, c.wire.target
	if c.wire.lines == 0 { // it is longer than a header may be
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

// reasons say more than the names of some statuses.
var reasons = map[string]string{
	"417": "the header Expect names something other than 100-continue",
	"431": "the headers of the request are too long",
	"501": "the Transfer-Encoding of the request isn't chunked",
}

// errorAnswer is an answer of net/http's own, to a request for target, in the form of the
// OCI Distribution Specification ("Error Codes") or that of ListenerOptions.ErrorBody.
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

// errorText is an answer with this status and message. Then the connection ends.
func (l *Listener) errorText(target, status, message string) []byte {
	text, err := json.Marshal(message)
	if err != nil {
		text = []byte(`""`) // text is always JSON
	}
	body := fmt.Appendf(nil, `{"errors":[{"code":"UNSUPPORTED","message":%s}]}`, text)
	if number, err := strconv.Atoi(status[:3]); err == nil && l.o.ErrorBody != nil {
		body = l.o.ErrorBody(target, number, message)
	}
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

type connKey struct{}

// ConnContext is for http.Server: it lets Begin find the connection of a request.
func (l *Listener) ConnContext(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := nc.(*conn); ok && l.o.Plain {
		c.wire.used = true
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// Begin is called by whoever answers a request, first of all. Its error says that the
// end of the request can be read in two ways, so that something between client and
// registry may take a part of its body for another request (RFC 9112, section 6.1): the
// request is to be refused and its connection to be closed.
func Begin(r *http.Request) error {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok || r.ProtoMajor != 1 {
		return nil
	}
	w := &c.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answering = true
	switch {
	case w.length && w.coding:
		return errors.New("a request has either Content-Length or Transfer-Encoding, never both")
	case len(r.TransferEncoding) > 0 && !(w.ended && w.begun):
		return errors.New("a request with Transfer-Encoding can't be sent before the answer to the one before it")
	}
	return nil
}
