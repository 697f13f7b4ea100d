package registries

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// script starts a server that accepts one connection after another. Each element of `conns`
// stands for a connection: it has the answers that the server gives, one for each request.
// After the last answer the server closes the connection.
func script(t *testing.T, conns ...[]string) *target {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for _, answers := range conns {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			br := bufio.NewReader(nc)
			for _, a := range answers {
				req, err := http.ReadRequest(br)
				if err != nil {
					break
				}
				io.Copy(io.Discard, req.Body)
				io.WriteString(nc, a)
			}
			nc.Close()
		}
	}()
	tg := &target{name: "script"}
	if err := tg.setURL("http://"+ln.Addr().String(), false); err != nil {
		t.Fatal(err)
	}
	return tg
}

func get(tg *target, method string, want int) *request {
	return &request{head: tg.head(nil, method, "/x", -1), want: want}
}

func TestConnUnderstandsEveryFraming(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("abcdefgh", 100_000)
	for name, c := range map[string]struct {
		answer, method, body string
		status               int
	}{
		"length":         {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "GET", "hello", 200},
		"long":           {fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length:%d\r\n\r\n%s", len(long), long), "GET", long, 200},
		"bare LF":        {"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", "GET", "hi", 200},
		"no reason":      {"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", "GET", "hi", 200},
		"chunked":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=\"y\"\r\n world\r\n0\r\n\r\n", "GET", "hello world", 200},
		"long chunk":     {fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n%X\r\n%s\r\n0\r\n\r\n", len(long), long), "GET", long, 200},
		"trailers":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\nC: d\r\n\r\n", "GET", "hi", 200},
		"HEAD":           {"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n", "HEAD", "", 200},
		"no content":     {"HTTP/1.1 204 No Content\r\n\r\n", "GET", "", 204},
		"not modified":   {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "GET", "", 304},
		"interim answer": {"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "GET", "hi", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The server gives the same answer twice on one connection. The client can read
			// the second answer correctly only if it has read the first one exactly to its
			// end.
			tg := script(t, []string{c.answer, c.answer})
			cn := newConn(tg, time.Minute)
			defer cn.close()
			for range 2 {
				var body bytes.Buffer
				resp, err := cn.do(t.Context(), get(tg, c.method, c.status), &body)
				if err != nil {
					t.Fatal(err)
				}
				if body.String() != c.body || resp.body != int64(len(c.body)) {
					t.Errorf("body %.20q of %d bytes, want %.20q of %d", body.String(), resp.body, c.body, len(c.body))
				}
			}
			if cn.dials != 1 {
				t.Errorf("%d connections", cn.dials)
			}
		})
	}
}

func TestConnRefusesBrokenAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"nothing":          "",
		"not HTTP":         "SSH-2.0-OpenSSH_9.2\r\n",
		"bad status":       "HTTP/1.1 2x0 OK\r\n\r\n",
		"long status":      "HTTP/1.1 2000 OK\r\n\r\n",
		"no colon":         "HTTP/1.1 200 OK\r\nfoo\r\n\r\n",
		"negative length":  "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"two lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"short body":       "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
		"gzip coding":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
		"bad chunk":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"chunk overflow":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
		"short chunk":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"chunk too long":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
		"no last chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
		"headers cut":      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
		"endless header":   "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*readBuffer) + "\r\n\r\n",
		"switch protocols": "HTTP/1.1 101 Switching Protocols\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tg := script(t, []string{answer})
			cn := newConn(tg, time.Minute)
			defer cn.close()
			resp, err := cn.do(t.Context(), get(tg, "GET", 200), nil)
			if err == nil {
				t.Fatalf("taken as %+v", resp)
			}
			if cn.nc != nil {
				t.Error("the connection is kept")
			}
		})
	}
}

func TestConnReadsHeaders(t *testing.T) {
	t.Parallel()
	tg := script(t, []string{
		"HTTP/1.1 202 Accepted\r\nLOCATION:  /v2/a/blobs/uploads/1 \r\ndocker-content-digest: sha256:ab\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
	})
	cn := newConn(tg, time.Minute)
	defer cn.close()
	resp, err := cn.do(t.Context(), get(tg, "GET", 202), nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(resp.location) != "/v2/a/blobs/uploads/1" || string(resp.digest) != "sha256:ab" || resp.length != 0 {
		t.Errorf("answer %+v", resp)
	}
	if resp, err = cn.do(t.Context(), get(tg, "GET", 202), nil); err != nil {
		t.Fatal(err)
	}
	if len(resp.location) != 0 || len(resp.digest) != 0 {
		t.Errorf("headers of the answer before: %+v", resp)
	}
}

func TestConnRedials(t *testing.T) {
	t.Parallel()
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	closing := "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
	toTheEnd := "HTTP/1.1 200 OK\r\n\r\nhi"
	old := "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	// The server closes each connection after one answer. The first answer doesn't announce
	// this; the others do, in different ways. The client must dial again for each request.
	tg := script(t, []string{ok}, []string{closing}, []string{toTheEnd}, []string{old}, []string{ok})
	cn := newConn(tg, time.Minute)
	defer cn.close()
	for i := range 5 {
		var body bytes.Buffer
		if _, err := cn.do(t.Context(), get(tg, "GET", 200), &body); err != nil || body.String() != "hi" {
			t.Fatalf("request %d: %q, %v", i, body.String(), err)
		}
	}
	if cn.dials != 5 {
		t.Errorf("%d connections, want 5", cn.dials)
	}
}

func TestConnDoesNotRepeatAPush(t *testing.T) {
	t.Parallel()
	ok := "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
	tg := script(t, []string{ok}, []string{ok})
	cn := newConn(tg, time.Minute)
	defer cn.close()
	put := &request{head: tg.head(nil, "PUT", "/x", 4), body: []byte("body"), want: 201}
	if _, err := cn.do(t.Context(), put, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := cn.do(t.Context(), put, nil); err == nil {
		t.Fatal("a PUT on a closed connection was sent again")
	}
	if cn.dials != 1 {
		t.Errorf("%d connections", cn.dials)
	}
}

func TestConnShowsAnUnexpectedAnswerAndStaysUsable(t *testing.T) {
	t.Parallel()
	tg := script(t, []string{
		"HTTP/1.1 404 Not Found\r\nContent-Length: 300\r\n\r\n" + strings.Repeat("n", 300),
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	})
	cn := newConn(tg, time.Minute)
	defer cn.close()
	_, err := cn.do(t.Context(), get(tg, "GET", 200), nil)
	var status *statusError
	if !errors.As(err, &status) || status.got != 404 || len(status.body) != maxErrorBody {
		t.Fatalf("error %v", err)
	}
	if !strings.HasPrefix(err.Error(), "GET /x: status 404, want 200: nnn") {
		t.Errorf("error %v", err)
	}
	if _, err := cn.do(t.Context(), get(tg, "GET", 200), nil); err != nil || cn.dials != 1 {
		t.Errorf("next request: %v, %d connections", err, cn.dials)
	}
}

// The server answers before it has read the request's body. The client's error must quote the
// answer's text, not the failed write.
func TestConnReportsARefusedBody(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 0 && r.TransferEncoding == nil {
			t.Errorf("request %v", r)
		}
		got, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		http.Error(w, fmt.Sprintf("no room for %d bytes", got), http.StatusInsufficientStorage)
	}))
	t.Cleanup(srv.Close)
	tg := &target{name: "r"}
	if err := tg.setURL(srv.URL, false); err != nil {
		t.Fatal(err)
	}
	src, err := newLayerSource(3 << 20)
	if err != nil {
		t.Fatal(err)
	}
	cn := newConn(tg, time.Minute)
	defer cn.close()
	req := &request{
		head: tg.head(nil, "PATCH", "/x", -1, "Transfer-Encoding: chunked"),
		want: 202, stream: layer{layerSource: src}.writeChunked,
	}
	_, err = cn.do(t.Context(), req, nil)
	if err == nil || !strings.Contains(err.Error(), "status 507, want 202: no room for 3145728 bytes") {
		t.Errorf("error %v", err)
	}
}

func TestConnObeysItsContext(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	tg := &target{name: "silent"}
	if err := tg.setURL("http://"+ln.Addr().String(), false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		nc, _ := ln.Accept()
		accepted <- nc
		cancel()
	}()
	cn := newConn(tg, time.Hour)
	defer cn.close()
	if _, err := cn.do(ctx, get(tg, "GET", 200), nil); err == nil {
		t.Error("an answer from a silent server")
	}
	if nc := <-accepted; nc != nil {
		nc.Close()
	}
	cn.timeout = time.Millisecond
	if _, err := cn.do(t.Context(), get(tg, "GET", 200), nil); err == nil {
		t.Error("no timeout")
	}
}

// TestConnOverTLS sends a request with user name and password to a TLS server of net/http,
// once without and once with verification of its certificate.
func TestConnOverTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		fmt.Fprint(w, user, ":", password)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // the refused handshake is expected
	t.Cleanup(srv.Close)
	url := strings.Replace(srv.URL, "://", "://u:p@", 1)
	for _, insecure := range []bool{true, false} {
		tg := &target{name: "tls"}
		if err := tg.setURL(url, insecure); err != nil {
			t.Fatal(err)
		}
		cn := newConn(tg, time.Minute)
		var body bytes.Buffer
		_, err := cn.do(t.Context(), get(tg, "GET", 200), &body)
		if insecure && (err != nil || body.String() != "u:p") {
			t.Errorf("%q, %v", body.String(), err)
		}
		if !insecure && err == nil {
			t.Error("an unknown certificate was trusted")
		}
		cn.close()
	}
}
