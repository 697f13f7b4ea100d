package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// hidden is a request that an attacker puts where a proxy sees a part of another request. The
// server must never answer it.
const hidden = "GET /v2/hidden/tags/list HTTP/1.1\r\nHost: localhost\r\n\r\n"

// chunked is a body that ends before `hidden` if the server reads chunks.
const chunked = "0\r\n\r\n"

// upload begins a request that begins an upload, with headers that the test appends.
const upload = "POST /v2/a/blobs/uploads/ HTTP/1.1\r\nHost: localhost\r\n"

// ambiguous are requests in which a proxy and the server could see different ends or different
// beginnings. Each must get one answer, with one of the given statuses, and its connection must
// be closed.
var ambiguous = []struct{ what, text, statuses string }{
	{"CL and TE", upload + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"TE and CL", upload + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunked, "400"},
	{"CL 0 and TE", upload + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"TE in HTTP/1.0", strings.Replace(upload, "1.1", "1.0", 1) + "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"CL and TE in HTTP/1.0", strings.Replace(upload, "1.1", "1.0", 1) + "Connection: keep-alive\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"TE: xchunked", upload + "Transfer-Encoding: xchunked\r\n\r\n" + chunked, "501"},
	{"TE: gzip, chunked", upload + "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked, "501"},
	{"TE: chunked, identity", upload + "Transfer-Encoding: chunked, identity\r\n\r\n" + chunked, "501"},
	{"TE: identity", upload + "Transfer-Encoding: identity\r\n\r\n" + chunked, "501"},
	{"TE in quotes", upload + "Transfer-Encoding: \"chunked\"\r\n\r\n" + chunked, "501"},
	{"TE with a parameter", upload + "Transfer-Encoding: chunked;x=y\r\n\r\n" + chunked, "501"},
	{"TE, empty", upload + "Transfer-Encoding:\r\n\r\n" + chunked, "501"},
	{"two TE", upload + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunked, "400 501"},
	{"TE twice", upload + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400 501"},
	{"TE with a vertical tab", upload + "Transfer-Encoding:\vchunked\r\n\r\n" + chunked, "400"},
	{"TE with a space before the colon", upload + "Transfer-Encoding : chunked\r\n\r\n" + chunked, "400"},
	{"TE with a tab before the colon", upload + "Transfer-Encoding\t: chunked\r\n\r\n" + chunked, "400"},
	{"TE with a space before its name", upload + "X: y\r\n Transfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"TE on a continued line", upload + "Transfer-Encoding:\r\n chunked\r\n\r\n" + chunked, "400"},
	{"TE behind LF", upload + "X: y\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"TE behind CR", upload + "X: y\rTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"TE behind NUL", upload + "X: y\x00\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, "400"},
	{"two CL", upload + "Content-Length: 0\r\nContent-Length: 55\r\n\r\n", "400"},
	{"two CL in one", upload + "Content-Length: 0, 55\r\n\r\n", "400"},
	{"CL with a sign", upload + "Content-Length: +0\r\n\r\n", "400"},
	{"CL below 0", upload + "Content-Length: -1\r\n\r\n", "400"},
	{"CL in hexadecimal", upload + "Content-Length: 0x0\r\n\r\n", "400"},
	{"CL with a space within", upload + "Content-Length: 0 0\r\n\r\n", "400"},
	{"CL with an underscore", upload + "Content-Length: 0_0\r\n\r\n", "400"},
	{"CL, empty", upload + "Content-Length:\r\n\r\n", "400"},
	{"CL too large", upload + "Content-Length: 18446744073709551616\r\n\r\n", "400"},
	{"CL with a space before the colon", upload + "Content-Length : 0\r\n\r\n", "400"},
	{"CL on a continued line", upload + "Content-Length:\r\n 0\r\n\r\n", "400"},
	{"a continued line", upload + "X: y\r\n z\r\nContent-Length: 0\r\n\r\n", "400"},
	{"LF alone", "GET /v2/ HTTP/1.1\nHost: localhost\n\n", "400"},
	{"LF alone at the end", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\n\n", "400"},
	{"NUL in a value", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", "400"},
	{"NUL in a name", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nX\x00: a\r\n\r\n", "400"},
	{"NUL in the path", "GET /v2/\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
	{"an empty name", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\n: a\r\n\r\n", "400"},
	{"no colon", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n", "400"},
	{"no Host", "GET /v2/ HTTP/1.1\r\n\r\n", "400"},
	{"two Hosts", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "400"},
	{"a space before the method", " GET /v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
	{"tabs in the first line", "GET\t/v2/\tHTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
	{"a space in the path", "GET /v2/ x HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
	{"an empty line first", "\r\nGET /v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
	{"HTTP/0.9", "GET /v2/\r\n\r\n", "400"},
	{"HTTP/1.2 in disguise", "GET /v2/ HTTP/1.1x\r\nHost: localhost\r\n\r\n", "400"},
	{"HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "404"},
	{"no HTTP", "\x16\x03\x01\x00\xa5\x01\r\n\r\n", "400"},
	{"a large header", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 128<<10) + "\r\n\r\n", "431"},
	{"many headers", "GET /v2/ HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: y\r\n", 30<<10) + "\r\n", "431"},
	{"a long path", "GET /v2/" + strings.Repeat("x", 128<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "431"},
	{"an invalid escape in the path", "GET /v2/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
	{"CONNECT", "CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "400 404 405 421"},

	// The header is fine, but where a chunk ends isn't certain. The answer may come before the
	// body is read.
	{"a chunk's size above 64 bits", upload + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n" + chunked, "202 400"},
	{"a chunk's size with 0x", upload + "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n", "202 400"},
	{"a chunk's size below 0", upload + "Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n", "202 400"},
	{"a chunk's size that ends with LF", upload + "Transfer-Encoding: chunked\r\n\r\n0\n\n", "202 400"},
	{"a chunk's extension with LF", upload + "Transfer-Encoding: chunked\r\n\r\n0;x\ny\r\n\r\n", "202 400"},
	{"a chunk longer than its size", upload + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n" + chunked, "202 400"},
}

// sendRaw sends text over a new connection and returns everything that the server sends until it
// closes the connection.
func sendRaw(t *testing.T, dial func() (net.Conn, error), text string) string {
	t.Helper()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the server has closed it
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.WriteString(c, text) //nolint:errcheck // the server may close the connection before it has read everything
	}()
	c.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the read below says it
	var got bytes.Buffer
	if _, err := io.Copy(&got, c); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() { //nolint:errorlint // io.Copy doesn't wrap
			t.Errorf("%.80q: the connection stays open", text)
		}
	}
	<-done
	return got.String()
}

// answersIn returns the statuses of the answers in what a server has sent.
func answersIn(sent string) (statuses []string) {
	in := bufio.NewReader(strings.NewReader(sent))
	for {
		a, err := http.ReadResponse(in, nil)
		if err != nil {
			return statuses
		}
		io.Copy(io.Discard, a.Body) //nolint:errcheck // cut off by the server
		statuses = append(statuses, fmt.Sprint(a.StatusCode))
	}
}

// TestSmuggling: a client sends requests that a proxy could understand otherwise than the
// server, each followed by a hidden request. The server must answer once, close the connection,
// and never read the hidden request.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	s, log := startLogged(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t)))
	addr := strings.TrimPrefix(s.Registry, "http://")
	dial := func() (net.Conn, error) { return net.Dial("tcp", addr) }
	const good = "GET /v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for _, c := range ambiguous {
		got := answersIn(sendRaw(t, dial, c.text+hidden))
		if len(got) != 1 || !strings.Contains(" "+c.statuses+" ", " "+got[0]+" ") {
			t.Errorf("%s: %s, want one answer of %s", c.what, got, c.statuses)
		}
	}
	if got := answersIn(sendRaw(t, dial, good+"x\r\n\r\n"+hidden)); fmt.Sprint(got) != "[200 400]" {
		t.Errorf("a request behind an error: %s", got)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "/v2/hidden/") {
		t.Errorf("a hidden request was answered:\n%s", log)
	}
}

// TestOneRequest: requests in unusual but unambiguous forms are one request each, and the
// connection stays usable.
func TestOneRequest(t *testing.T) {
	t.Parallel()
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t)))
	addr := strings.TrimPrefix(s.Registry, "http://")
	const last = "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	for text, want := range map[string]string{
		"GET http://localhost/v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                                                    "[200 200]",
		"GET http://localhost/v2/ HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                                                                 "[200 200]", // the target counts (RFC 9112, section 3.2.2)
		"GET http://evil.example/v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                                                 "[421 200]",
		"GET https://evil.example/v2/ HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                                                "[421 200]",
		"GET /v2/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n": "[200 200]",
		"GET /v2/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n":                                                       "[200 200]",
		upload + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n":                                                                                         "[202 200]",
		upload + "Transfer-Encoding: Chunked\r\n\r\n" + chunked:                                                                                           "[202 200]",
	} {
		got := answersIn(sendRaw(t, func() (net.Conn, error) { return net.Dial("tcp", addr) }, text+last))
		if fmt.Sprint(got) != want {
			t.Errorf("%.80q: %s, want %s", text, got, want)
		}
	}
}

// TestSmugglingOverTLS: over TLS the server can't see each ambiguity in a header, so it closes
// the connection after each request that could be ambiguous.
func TestSmugglingOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	servetest.WriteCertificate(t, files, 1)
	s, log := startLogged(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_HTTP_TLS_CERT="+files.Cert, "PURSER_HTTP_TLS_KEY="+files.Key))
	addr := strings.TrimPrefix(s.Registry, "https://")
	dial := func() (net.Conn, error) {
		return tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) //nolint:gosec // of this test
	}
	for _, c := range ambiguous {
		if strings.Contains(c.what, "LF") || strings.Contains(c.what, "continued") || strings.Contains(c.what, "before its name") {
			continue // net/http replaces these, as the RFC allows
		}
		if got := answersIn(sendRaw(t, dial, c.text+hidden)); len(got) != 1 {
			t.Errorf("%s: %s, want one answer", c.what, got)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "/v2/hidden/") {
		t.Errorf("a hidden request was answered:\n%s", log)
	}
}
