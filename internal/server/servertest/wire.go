package servertest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// Wire is a TCP connection to the registry, by which a test sends requests that no HTTP client
// would send.
type Wire struct {
	*net.TCPConn
	in *bufio.Reader
}

func (r *Registry) Dial(t *testing.T) *Wire {
	t.Helper()
	c, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // often closed already
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return &Wire{c.(*net.TCPConn), bufio.NewReader(c)}
}

// Send writes a request to the connection exactly as given: the request line, the headers (each
// "Name: value") and the body.
func (w *Wire) Send(t *testing.T, method, path string, headers []string, body string) {
	t.Helper()
	lines := append([]string{method + " " + path + " HTTP/1.1", "Host: registry"}, headers...)
	if _, err := io.WriteString(w, strings.Join(lines, "\r\n")+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
}

// IsRead says whether the registry has read all bytes that were sent on the connection,
// according to /proc/net/tcp. Where this file doesn't exist (systems other than Linux), IsRead
// returns true.
func (w *Wire) IsRead() bool {
	list, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return true
	}
	mine, other := w.LocalAddr().(*net.TCPAddr).Port, w.RemoteAddr().(*net.TCPAddr).Port
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line) // number, local and remote address, state, queues
		if len(fields) < 5 {
			continue
		}
		from, to := fmt.Sprintf(":%04X", mine), fmt.Sprintf(":%04X", other)
		sent := strings.HasSuffix(fields[1], from) && strings.HasSuffix(fields[2], to)
		received := strings.HasSuffix(fields[1], to) && strings.HasSuffix(fields[2], from)
		if (sent || received) && fields[4] != "00000000:00000000" {
			return false
		}
	}
	return true
}

// Answer reads the Answer to a request.
func (w *Wire) Answer(t *testing.T, method, path string) Answer {
	t.Helper()
	req, err := http.NewRequest(method, "http://registry"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(w.in, req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{res, body}
}

func Length(n int) string { return fmt.Sprintf("Content-Length: %d", n) }
