package webhook

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// listening starts a server on a loopback address, and returns its port and a counter of
// the connections that clients open to it.
func listening(t *testing.T) (port string, connections *atomic.Int64) {
	t.Helper()
	connections = new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	return port, connections
}

// TestLoopbackIsNotDialled: a client sends requests to URLs that write a loopback address
// in various ways. The dialler must refuse all of them, so that the server gets no
// connection.
func TestLoopbackIsNotDialled(t *testing.T) {
	t.Parallel()
	port, connections := listening(t)
	o := Options{Timeout: 5 * time.Second}
	o.defaults()
	for _, host := range []string{"127.0.0.1", "localhost", "LOCALHOST.", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "127.1", "2130706433", "0x7f000001"} {
		client := newClient(o, false)
		resp, err := client.Get("http://" + host + ":" + port + "/")
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s was asked", host)
		} else if net.ParseIP(strings.Trim(host, "[]")) != nil && !strings.Contains(err.Error(), "not public") {
			t.Errorf("%s: %v, want that it isn't public", host, err)
		}
		client.CloseIdleConnections()
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
	o.AllowPrivate = true
	client := newClient(o, o.AllowPrivate)
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://127.0.0.1:" + port + "/")
	if err != nil {
		t.Fatalf("what is allowed is refused: %v", err)
	}
	resp.Body.Close()
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// TestNameOfLoopback: a webhook's URL has a name that resolves to a loopback address. The
// sender must check the resolved address, and must not connect to it.
func TestNameOfLoopback(t *testing.T) {
	t.Parallel()
	port, connections := listening(t)
	d := dbtest.New(t)
	s, err := New(Options{DB: d, URL: "http://localhost:" + port + "/", Log: quiet, RetryMin: time.Hour})
	must(t, err)
	id := queue(t, s, d, Event{})
	once(t, s)
	r := read(t, d, id)
	if r.Delivered || !strings.Contains(r.LastError, "loopback, not public") || !strings.Contains(r.LastError, "allow_private") {
		t.Errorf("the notice is %+v", r)
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

func TestProxiesAreNotUsed(t *testing.T) {
	t.Parallel()
	var o Options
	o.defaults()
	if newClient(o, false).Transport.(*http.Transport).Proxy != nil {
		t.Error("the client asks for a proxy")
	}
}
