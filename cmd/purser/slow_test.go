package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// slowly opens a connection, sends `begin`, and then one byte of `drip` every 200 ms, until the
// server closes the connection. It returns an error if the server hasn't closed it after a
// minute, or has answered with success.
func slowly(addr, begin, drip string, begun func()) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		begun()
		return err
	}
	defer c.Close() //nolint:errcheck // the server has closed it
	_, err = io.WriteString(c, begin)
	begun()
	if err != nil {
		return fmt.Errorf("sending the beginning: %w", err)
	}
	closed := make(chan struct{})
	var dripping sync.WaitGroup
	dripping.Go(func() {
		ticks := time.NewTicker(200 * time.Millisecond)
		defer ticks.Stop()
		for i := 0; drip != ""; i++ {
			select {
			case <-closed:
				return
			case <-ticks.C:
				io.WriteString(c, drip[i%len(drip):][:1]) //nolint:errcheck // the server has closed the connection
			}
		}
	})
	c.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the read below says it
	answer, err := io.ReadAll(c)
	close(closed)
	dripping.Wait()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the connection stays open")
	}
	if strings.HasPrefix(string(answer), "HTTP/1.1 2") {
		return fmt.Errorf("the answer is %.100q", answer)
	}
	return nil
}

// TestSlowClients: 500 clients send half of a header, half of a body, or a byte now and then,
// and one client sends nothing. The server ends all these connections by its limits. Meanwhile
// another client's pulls succeed.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_HTTP_HEADER_TIMEOUT=2s",
		"PURSER_HTTP_BODY_IDLE_TIMEOUT=2s", "PURSER_HTTP_MIN_BODY_RATE=1KiB", "PURSER_HTTP_MIN_BODY_RATE_WINDOW=3s"))
	addr := strings.TrimPrefix(s.Registry, "http://")
	d := putIndex(t, s, "acme/app", "v1", "1")
	const put = "PUT /v2/acme/app/manifests/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.oci.image.index.v1+json\r\n"
	kinds := []struct{ what, begin, drip string }{
		{"half a header", "GET /v2/acme/app/manifests/v1 HTTP/1.1\r\nHost: localhost\r\nX: ", ""},
		{"a header byte by byte", "GET /v2/acme/app/manifests/v1 HTTP/1.1\r\nHost: localhost\r\nX: ", "x"},
		{"half a body", put + "Content-Length: 100000\r\n\r\n{", ""},
		{"a body byte by byte", put + "Content-Length: 100000\r\n\r\n{", " "},
		{"half a chunk", put + "Transfer-Encoding: chunked\r\n\r\n100\r\n{", ""},
		{"a chunk byte by byte", put + "Transfer-Encoding: chunked\r\n\r\nfffff\r\n{", " "},
		{"half a blob", "POST /v2/acme/app/blobs/uploads/?digest=" + d.String() + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx", ""},
		{"a blob byte by byte", "POST /v2/acme/app/blobs/uploads/?digest=" + d.String() + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx", "x"},
		{"nothing", "", ""},
	}
	const clients = 500
	var all, begun sync.WaitGroup
	begun.Add(clients)
	for i := range clients {
		kind := kinds[i%len(kinds)]
		all.Go(func() {
			if err := slowly(addr, kind.begin, kind.drip, begun.Done); err != nil {
				t.Errorf("%s: %v", kind.what, err)
			}
		})
	}
	begun.Wait()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 200 {
		res, err := client.Get(s.Registry + "/v2/acme/app/manifests/" + d.String())
		if err != nil {
			t.Fatalf("a pull beside slow clients: %v", err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close() //nolint:errcheck // read to its end
		if err != nil || res.StatusCode != 200 || len(body) == 0 {
			t.Fatalf("a pull beside slow clients: %s, %d bytes, %v", res.Status, len(body), err)
		}
	}
	all.Wait()
	if code, text := get(t, s.Registry+"/v2/acme/app/manifests/slow"); code != 404 {
		t.Errorf("half of a manifest was stored: %d %s", code, text)
	}
	servetest.WaitFor(t, "no connection is left but those of this test", func() bool {
		_, metrics := get(t, s.Debug+"/metrics")
		_, rest, _ := strings.Cut(metrics, "\npurser_http_connections ")
		n, _, _ := strings.Cut(rest, "\n")
		return n == "0" || n == "1" || n == "2"
	})
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
