package serve

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purser-registry/purser/internal/config"
)

// With certificates by ACME, handshakes wait for a start of seconds, and no longer, and fail at once when
// something is known to be away. The least version of TLS is the configured one.
func TestEntranceOfACME(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cert, err := newIssued(t.Context(), config.TLS{MinVersion: "1.3"})
		if err != nil || cert.config().MinVersion != tls.VersionTLS13 {
			t.Fatalf("%v, the least version is %x", err, cert.config().MinVersion)
		}
		e := &entrance{socks: &sockets{cert: cert}, opened: make(chan struct{}), late: make(chan struct{}), until: time.Now().Add(startPatience)}
		expect := func(what string, took time.Duration) {
			t.Helper()
			began := time.Now()
			here, there := net.Pipe()
			served := make(chan error, 1)
			go func() {
				served <- tls.Server(there, e.tls()).HandshakeContext(t.Context())
				there.Close()
			}()
			err := tls.Client(here, &tls.Config{ServerName: "localhost"}).HandshakeContext(t.Context())
			here.Close()
			if why := <-served; err == nil || !errors.Is(why, errNoCertificates) || time.Since(began) != took {
				t.Errorf("%s: the client gets %v and the server %v after %v, want that after %v", what, err, why, time.Since(began), took)
			}
		}
		time.AfterFunc(2*time.Second, e.refuse)
		expect("something turns out to be away", 2*time.Second)
		expect("it still is", 0)
		e = &entrance{socks: e.socks, opened: make(chan struct{}), late: make(chan struct{}), until: time.Now().Add(startPatience)}
		expect("a slow start", startPatience)
		expect("later", 0)
		if n := e.refused.Load(); n != 2 {
			t.Errorf("%d handshakes are counted, want 2", n)
		}
	})
}

// Requests wait for a start of seconds, and no longer. When something is known to be away, they don't
// wait at all.
func TestEntrance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		newDoor := func() *entrance {
			return &entrance{socks: &sockets{}, srv: &http.Server{}, opened: make(chan struct{}), late: make(chan struct{}), until: time.Now().Add(startPatience)}
		}
		ask := func(e *entrance) (status int, took time.Duration) {
			began, rec := time.Now(), httptest.NewRecorder()
			e.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/", nil))
			return rec.Code, time.Since(began)
		}
		expect := func(what string, e *entrance, status int, took time.Duration) {
			t.Helper()
			if s, d := ask(e); s != status || d != took {
				t.Errorf("%s: %d after %v, want %d after %v", what, s, d, status, took)
			}
		}
		registry := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })

		quick := newDoor()
		time.AfterFunc(2*time.Second, func() { quick.open(registry) })
		expect("a quick start", quick, http.StatusTeapot, 2*time.Second)
		expect("when it has started", quick, http.StatusTeapot, 0)

		slow := newDoor()
		time.Sleep(time.Second)
		expect("a slow start", slow, http.StatusServiceUnavailable, startPatience-time.Second)
		expect("later", slow, http.StatusServiceUnavailable, 0)
		slow.open(registry)
		expect("at last", slow, http.StatusTeapot, 0)

		away := newDoor()
		time.AfterFunc(time.Second, away.refuse)
		expect("the database is away", away, http.StatusServiceUnavailable, time.Second)
		expect("it still is", away, http.StatusServiceUnavailable, 0)
		if n := away.refused.Load(); n != 2 {
			t.Errorf("%d refused requests are counted, want 2", n)
		}
		away.refuse()
		away.open(registry)
		expect("it is there", away, http.StatusTeapot, 0)
	})
}
