package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestCrowd: two clients, at two addresses, take all connections that the server allows. First
// they send half of a header on each, then half of a body. Another client's pulls succeed.
func TestCrowd(t *testing.T) {
	t.Parallel()
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t),
		"PURSER_HTTP_MAX_CONNECTIONS=60", "PURSER_HTTP_MAX_CLIENT_CONNECTIONS=30"))
	d := putIndex(t, s, "acme/app", "v1", "1")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	pull := func() int {
		res, err := client.Get(s.Registry + "/v2/acme/app/manifests/" + d.String())
		if err != nil {
			return 0
		}
		res.Body.Close() //nolint:errcheck // the status matters
		return res.StatusCode
	}
	const header = "PUT /v2/acme/app/manifests/slow HTTP/1.1\r\nHost: localhost\r\n"
	const body = header + "Content-Type: application/vnd.oci.image.index.v1+json\r\nContent-Length: 1000\r\n\r\n{"
	var conns []net.Conn
	var reads sync.WaitGroup
	hold := func(n int, text string) {
		for i := range n {
			from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%2))}}
			c, err := from.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.Registry, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			io.WriteString(c, text)                     //nolint:errcheck // the server has closed it
			reads.Go(func() { io.Copy(io.Discard, c) }) //nolint:errcheck // likewise
		}
	}
	hold(60, header)
	for range 20 {
		if code := pull(); code != 200 {
			t.Fatalf("a pull beside half headers: %d", code)
		}
	}
	hold(60, body)
	servetest.WaitFor(t, "half bodies have all places", func() bool {
		_, metrics := get(t, s.Debug+"/metrics")
		if strings.Contains(metrics, "\npurser_http_requests_in_flight 60\n") {
			return true
		}
		hold(2, body) // in place of other connections of this test
		return false
	})
	servetest.WaitFor(t, "a pull beside half bodies", func() bool {
		return pull() == 200
	})
	_, metrics := get(t, s.Debug+"/metrics")
	for _, limit := range []string{"shed_connections", "body_rate"} {
		if strings.Contains(metrics, "purser_limit_refused_total{limit=\""+limit+"\"} 0\n") {
			t.Errorf("no connections were counted as %s", limit)
		}
	}
	for _, c := range conns {
		c.Close() //nolint:errcheck // it is the end of the test
	}
	reads.Wait()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
