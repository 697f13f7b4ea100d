package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// TestManyConnectionsForMetrics: clients open more connections than the worker takes, and send half of a
// header. Prometheus must still get its answer, and the worker must not keep all these connections.
func TestManyConnectionsForMetrics(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most, opened = 8, 40
	stop := serveOn(l, most, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "metrics") //nolint:errcheck // in a test
	}), slog.New(slog.DiscardHandler))
	defer stop()
	var conns []net.Conn
	for range opened {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // in a test
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\n"); err == nil {
			conns = append(conns, c)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close() //nolint:errcheck // read to its end
	if err != nil || string(body) != "metrics" {
		t.Errorf("%q %v", body, err)
	}
	until(t, "the end of the connections that are too many", func() bool {
		kept := 0
		for _, c := range conns {
			c.SetReadDeadline(time.Now().Add(5 * time.Millisecond)) //nolint:errcheck // TCP has deadlines
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				kept++
			}
		}
		return kept <= most+spareConnections
	})
}
