package server_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// compressing starts a server whose interface at /c/ compresses what the handler answers.
func compressing(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s, err := server.New(server.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Mount(server.Mount{Prefix: "/c/", Handler: h, Compress: true, MarshalError: func(e *oci.Error) []byte { return oci.MarshalErrors(e) }})
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	return listening.URL
}

// get sends a request that names what it accepts itself, so that the answer is as it was sent.
func get(t *testing.T, method, url, accept string) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Accept-Encoding"] = []string{accept}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// page is an answer as the UI and the management API give them.
const page = "<tr><td>library/alpine</td><td>3.20</td><td>linux/amd64</td></tr>\n"

// TestAnswersAreCompressed: text goes compressed to clients that accept it, with the same content
// as to others, and everything else goes as it is.
func TestAnswersAreCompressed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(page, 2000)
	base := compressing(t, func(w http.ResponseWriter, r *http.Request) {
		kind, body := r.URL.Query().Get("type"), long
		if r.URL.Query().Has("short") {
			body = page
		}
		w.Header().Set("Content-Type", kind)
		io.WriteString(w, body) //nolint:errcheck // the test reads it
	})
	for _, c := range []struct {
		query, accept string
		compressed    bool
	}{
		{"type=text/html;%20charset=utf-8", "gzip, deflate, br", true},
		{"type=application/json", "gzip", true},
		{"type=text/html", "", false},
		{"type=text/html", "gzip;q=0", false},
		{"type=text/html", "br", false},
		{"type=application/octet-stream", "gzip", false},
		{"type=text/html&short", "gzip", false},
	} {
		resp, body, err := get(t, "GET", base+"/c/?"+c.query, c.accept)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Encoding") == "gzip"; got != c.compressed {
			t.Errorf("%s with %q: compressed is %v, want %v", c.query, c.accept, got, c.compressed)
		}
		if resp.Header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s with %q: Vary is %q", c.query, c.accept, resp.Header.Get("Vary"))
		}
		if c.compressed {
			if len(body) > len(long)/20 {
				t.Errorf("%s: %d bytes of %d were sent", c.query, len(body), len(long))
			}
			body = unzipped(t, body)
		}
		if want := map[bool]string{true: page, false: long}[strings.Contains(c.query, "short")]; string(body) != want {
			t.Errorf("%s with %q: another content of %d bytes", c.query, c.accept, len(body))
		}
	}
	if resp, _, err := get(t, "HEAD", base+"/c/?type=text/html", "gzip"); err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("HEAD: %v, %+v", err, resp)
	}
}

func unzipped(t *testing.T, body []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestCompressedAnswerThatFails: a handler that panics before it has answered is an error 500, and
// one that panics afterwards leaves an answer that no client takes for a whole one.
func TestCompressedAnswerThatFails(t *testing.T) {
	t.Parallel()
	base := compressing(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/csv")
		for range r.URL.Query()["lines"] {
			io.WriteString(w, strings.Repeat(page, 2000)) //nolint:errcheck // the test reads it
		}
		panic("of the test")
	})
	resp, body, err := get(t, "GET", base+"/c/", "gzip")
	if err != nil || resp.StatusCode != 500 || !strings.Contains(string(body), "UNKNOWN") {
		t.Errorf("before the answer: %v, %+v, %s", err, resp, body)
	}
	for _, query := range []string{"?lines", "?lines&lines&lines"} {
		if _, body, err := get(t, "GET", base+"/c/"+query, "gzip"); err == nil {
			t.Errorf("%s: an answer of %d bytes counts as whole", query, len(body))
		}
	}
}

// TestCompressionsAreShared: answers that are being compressed are few for each client. One more is
// sent as it is, at once.
func TestCompressionsAreShared(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	base := compressing(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			begun <- struct{}{}
			<-end
		}
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, strings.Repeat(page, 100)) //nolint:errcheck // the test reads it
	})
	const most = 8
	waiting := make(chan string, most)
	for range most {
		go func() {
			resp, _, err := get(t, "GET", base+"/c/?wait", "gzip")
			if err != nil {
				waiting <- err.Error()
				return
			}
			waiting <- resp.Header.Get("Content-Encoding")
		}()
		<-begun
	}
	if resp, body, err := get(t, "GET", base+"/c/", "gzip"); err != nil || resp.Header.Get("Content-Encoding") != "" || len(body) != 100*len(page) {
		t.Errorf("one more: %v, %+v", err, resp)
	}
	close(end)
	for range most {
		if got := <-waiting; got != "gzip" {
			t.Errorf("one of the first: %q", got)
		}
	}
	eventually(t, "the places given back after the last byte of the answers", func() bool {
		resp, _, err := get(t, "GET", base+"/c/", "gzip")
		return err == nil && resp.Header.Get("Content-Encoding") == "gzip"
	})
}
