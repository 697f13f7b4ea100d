//go:build all

package e2e

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func TestNginxRepeatsOnlyReads(t *testing.T) {
	beginOwn(t)
	testRepeats(t, nginx)
}

// testRepeats puts the proxy in front of two servers, one of which reads requests and closes the
// connection without an answer. Reads must succeed nevertheless, and no write may be sent twice.
func testRepeats(t *testing.T, kind proxyKind) {
	s := newProxyScene(t, kind)
	var mu sync.Mutex
	arrived := map[string]int{}
	for i, host := range replicaHosts {
		s.serveAs(host[1], s.debugPort, func(http.ResponseWriter, *http.Request) {})
		s.serveAs(host[1], s.port, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) //nolint:errcheck // the test counts requests
			mu.Lock()
			arrived[r.URL.Path]++
			mu.Unlock()
			if i == 0 {
				time.Sleep(20 * time.Millisecond) // as a replica that dies while it works
				panic(http.ErrAbortHandler)       // closes the connection
			}
		})
	}
	s.startProxy()
	a := s.API()
	const tries = 6
	send := func(name, method string, size int) (failed, sent int) {
		path := "/" + name
		for range tries {
			q := request{method: method, path: path, want: http.StatusOK}
			if size > 0 {
				q.body = make([]byte, size)
			}
			if _, err := a.do(t.Context(), q); err != nil {
				failed++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return failed, arrived[path]
	}
	for _, method := range []string{"GET", "HEAD"} {
		if failed, _ := send(method, method, 0); failed > 0 {
			t.Errorf("%d of %d requests %s failed while one replica worked", failed, tries, method)
		}
	}
	for name, w := range map[string]struct {
		method string
		size   int
		short  bool
	}{
		"post": {"POST", 0, false}, "patch": {"PATCH", 10, false}, "large-patch": {"PATCH", 1 << 20, false},
		"large-put": {"PUT", 1 << 20, false}, "put": {"PUT", 10, true}, "delete": {"DELETE", 0, true},
	} {
		if w.short && kind.repeatsShortPut {
			continue
		}
		if _, sent := send(name, w.method, w.size); sent != tries {
			t.Errorf("%d requests %s (%d bytes) arrived %d times", tries, w.method, w.size, sent)
		}
	}
}

// serveAs starts an HTTP server at an address, which is stopped at the end of the test.
func (s *proxyScene) serveAs(host, port string, handler http.HandlerFunc) {
	s.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		s.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	s.t.Cleanup(server.Close)
}
