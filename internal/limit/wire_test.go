package limit_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/limit"
)

// bare starts a server behind a Listener and returns its address. The server answers each
// request with the request's body.
func bare(t *testing.T, errorBody ...func(path string, status int, message string) []byte) string {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := limit.ListenerOptions{Plain: true, Log: slog.New(slog.DiscardHandler)}
	if len(errorBody) > 0 {
		o.ErrorBody = errorBody[0]
	}
	l := limit.Listen(raw, o)
	srv := &http.Server{
		MaxHeaderBytes: 8 << 10, ConnState: l.ConnState, ConnContext: l.ConnContext,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := limit.Begin(r); err != nil {
				w.Header().Set("Connection", "close")
				http.Error(w, "refused: "+err.Error(), http.StatusBadRequest)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			w.Write(body) //nolint:errcheck // the client is gone, and knows
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l) //nolint:errcheck // it ends with the test
	}()
	t.Cleanup(func() {
		srv.Close() //nolint:errcheck
		<-done
	})
	return raw.Addr().String()
}

// exchange sends text over a new connection and reads n answers.
func exchange(t *testing.T, addr, text string, n int) (answers []*http.Response, bodies []string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for range n {
		a, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%.60q: %v", text, err)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatalf("%.60q: %v", text, err)
		}
		answers, bodies = append(answers, a), append(bodies, string(body))
	}
	return answers, bodies
}

// Clients send requests that net/http itself refuses. The test expects answers in the
// registry's error format, also for the second request on a connection.
func TestAnswersBelowHandlers(t *testing.T) {
	t.Parallel()
	addr := bare(t)
	const good = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
	for text, status := range map[string]int{
		"nonsense\r\n\r\n":                                                            400,
		"GET / HTTP/1.1\r\n\r\n":                                                      400, // no Host
		"GET / HTTP/1.1\r\nHost: x y\r\n\r\n":                                         400,
		"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n":                                    400,
		"GET / HTTP/9.1\r\nHost: x\r\n\r\n":                                           505,
		"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n":                   400,
		"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n":                501,
		"PUT / HTTP/1.1\r\nHost: x\r\nExpect: a-miracle\r\nContent-Length: 1\r\n\r\n": 417,
		"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 20<<10) + "\r\n\r\n": 431,
	} {
		for _, before := range []string{"", good} {
			n := 1
			if before != "" {
				n = 2
			}
			answers, bodies := exchange(t, addr, before+text, n)
			a, body := answers[n-1], bodies[n-1]
			var told struct {
				Errors []struct{ Code, Message string }
			}
			if a.StatusCode != status || a.Header.Get("Content-Type") != "application/json" ||
				json.Unmarshal([]byte(body), &told) != nil || len(told.Errors) != 1 || told.Errors[0].Code != "UNSUPPORTED" || told.Errors[0].Message == "" {
				t.Errorf("%.60q: %d %v %q, want %d in the form of errors", text, a.StatusCode, a.Header, body, status)
			}
			if n == 2 && bodies[0] != "hello" {
				t.Errorf("the answer before is %q", bodies[0])
			}
		}
	}
}

// Clients send requests that net/http itself refuses. The test expects answers in the error
// format of the API to which the path belongs, even if the path can't be parsed.
func TestErrorBody(t *testing.T) {
	t.Parallel()
	addr := bare(t, func(path string, status int, message string) []byte {
		return fmt.Appendf(nil, "%s|%d|%s", path, status, message)
	})
	const good = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
	for target, want := range map[string]string{
		"/api/v1/%":                          `/api/v1/%|400|the path can't be read: "%" in it should be % and two hexadecimal digits`,
		"/api/v1/%zz/x?y":                    `/api/v1/%zz/x?y|400|the path can't be read: "%zz" in it should be % and two hexadecimal digits`,
		"/v2/a/manifests/%4":                 `/v2/a/manifests/%4|400|the path can't be read: "%4" in it should be % and two hexadecimal digits`,
		"/api/" + strings.Repeat("x", 8<<10): "|431|the headers of the request are too long",
	} {
		for _, before := range []bool{false, true} { // another request on the connection
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(c)
			ask := func(text string) (*http.Response, string) {
				if _, err := io.WriteString(c, text); err != nil {
					t.Fatal(err)
				}
				a, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(a.Body)
				if err != nil {
					t.Fatal(err)
				}
				return a, string(body)
			}
			if before {
				ask(good)
			}
			a, body := ask("GET " + target + " HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", len(target)) + "\r\n\r\n")
			c.Close() //nolint:errcheck
			if a.Header.Get("Content-Type") != "application/json" || !strings.HasSuffix(body, want) || !strings.HasPrefix(body, target[:5]) {
				t.Errorf("%.60q: %d %v %.200q, want %q", target, a.StatusCode, a.Header, body, want)
			}
		}
	}
}

// A handler sends content that looks like an error answer of net/http. The test expects
// that the content reaches the client unchanged, no matter where one Write of the server
// ends and the next begins.
func TestContentLikeAnAnswer(t *testing.T) {
	t.Parallel()
	addr := bare(t)
	content := strings.Repeat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request", 1000)
	for range 2 {
		res, err := http.Post("http://"+addr, "text/plain", strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close() //nolint:errcheck
		if err != nil || string(body) != content {
			t.Errorf("%d of %d bytes came back, %v", len(body), len(content), err)
		}
	}
}

// A client sends requests whose beginning or end a proxy could see elsewhere, also after another
// request on the connection. The test expects that they are refused and their connections
// closed, so that what follows is never read as a request.
func TestAmbiguousRequests(t *testing.T) {
	t.Parallel()
	addr := bare(t)
	const good = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
	const hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, text := range []string{
		"POST / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\nHost: x\n\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX: y\nContent-Length: 0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\n\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 100) + "\nY: z\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX: y\r\n z\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX: y\r\n\tContent-Length: 3\r\n\r\n",
	} {
		for _, before := range []string{"", good} {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(c)
			if before != "" { // answered before the next one is sent
				if _, err := io.WriteString(c, before); err != nil {
					t.Fatal(err)
				}
				if body, err := readBody(in); err != nil || body != "hello" {
					t.Fatalf("%q, %v", body, err)
				}
			}
			if _, err := io.WriteString(c, text+hidden); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(in)
			if err != nil || !strings.HasPrefix(string(rest[len("HTTP/1.1"):]), " 400 ") || strings.Count(string(rest), "Content-Length: ") != 1 || !strings.Contains(string(rest), "refused") {
				t.Errorf("%.80q: %q, %v", text, rest, err)
			}
			c.Close() //nolint:errcheck // the server has closed it
		}
	}
	const old = "GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n"
	answers, bodies := exchange(t, addr, old+old, 2)
	if answers[0].StatusCode != 200 || answers[1].StatusCode != 400 || !strings.HasPrefix(bodies[1], "refused") {
		t.Errorf("two requests of HTTP/1.0 that are sent together: %d, %d %q", answers[0].StatusCode, answers[1].StatusCode, bodies[1])
	}
}

func readBody(in *bufio.Reader) (string, error) {
	a, err := http.ReadResponse(in, nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(a.Body)
	return string(body), err
}

// A client sends requests with both Content-Length and Transfer-Encoding, in pieces of
// different sizes. The test expects that they are refused and their connections closed.
func TestTwoLengths(t *testing.T) {
	t.Parallel()
	addr := bare(t)
	const chunked = "5\r\nhello\r\n0\r\n\r\n"
	both := []string{
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + chunked,
		"POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nContent-Length: 5\n\n" + chunked,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX: " + strings.Repeat("x", 5000) + "\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
		"POST / HTTP/1.0\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
	}
	for _, text := range both {
		answers, bodies := exchange(t, addr, text, 1)
		if answers[0].StatusCode != 400 || !strings.HasPrefix(bodies[0], "refused") || !answers[0].Close {
			t.Errorf("%.80q: %d %q, closed: %v", text, answers[0].StatusCode, bodies[0], answers[0].Close)
		}
	}
	const get, post = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
	for _, before := range []string{get, post} { // sent together
		answers, bodies := exchange(t, addr, before+both[0], 2)
		if answers[1].StatusCode != 400 || !strings.HasPrefix(bodies[1], "refused") {
			t.Errorf("after another request: %d %q", answers[1].StatusCode, bodies[1])
		}
	}
	// Requests with either a Content-Length or a Transfer-Encoding must be accepted, several
	// of them on one connection.
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck
	in := bufio.NewReader(c)
	for _, text := range []string{
		get, post, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, get,
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, post,
	} {
		for i := range text { // byte by byte, as slow clients send
			if _, err := c.Write([]byte{text[i]}); err != nil {
				t.Fatal(err)
			}
		}
		a, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != 200 {
			t.Errorf("%.40q: %d %q %v", text, a.StatusCode, body, err)
		}
	}
}
