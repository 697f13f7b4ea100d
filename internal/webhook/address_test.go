package webhook

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ addr, why string }{ // why "": the address is public
		{"8.8.8.8", ""}, {"1.1.1.1", ""}, {"9.255.255.255", ""}, {"11.0.0.0", ""}, {"223.255.255.255", ""},
		{"100.63.255.255", ""}, {"100.128.0.0", ""}, {"172.15.255.255", ""}, {"172.32.0.0", ""},
		{"192.167.255.255", ""}, {"192.169.0.0", ""}, {"198.17.255.255", ""}, {"198.20.0.0", ""},
		{"2606:4700::1111", ""}, {"2a00:1450:4001::8a", ""}, {"2001:4860:4860::8888", ""}, {"2001:200::1", ""},
		{"::ffff:8.8.8.8", ""}, {"64:ff9b::8.8.8.8", ""},

		{"0.0.0.0", "unspecified"}, {"0.1.2.3", "unspecified"}, {"::", "unspecified"},
		{"127.0.0.1", "loopback"}, {"127.255.255.254", "loopback"}, {"::1", "loopback"},
		{"10.0.0.0", "private"}, {"10.255.255.255", "private"}, {"172.16.0.1", "private"}, {"172.31.255.255", "private"},
		{"192.168.0.1", "private"}, {"192.168.255.255", "private"},
		{"100.64.0.0", "carrier"}, {"100.127.255.255", "carrier"},
		{"169.254.169.254", "link-local"}, {"fe80::1", "link-local"}, {"febf::1", "link-local"}, {"fe80::1%eth0", "link-local"},
		{"192.0.0.8", "reserved"}, {"192.0.2.1", "documentation"}, {"198.51.100.1", "documentation"}, {"203.0.113.1", "documentation"},
		{"192.88.99.1", "6to4"}, {"198.18.0.1", "benchmarks"}, {"198.19.255.255", "benchmarks"},
		{"224.0.0.1", "multicast"}, {"239.255.255.255", "multicast"}, {"240.0.0.1", "reserved"}, {"255.255.255.255", "reserved"},
		{"fc00::1", "unique local"}, {"fdff::1", "unique local"}, {"fd00:ec2::254", "unique local"}, {"fec0::1", "site-local"},
		{"ff02::1", "multicast"}, {"2001:db8::1", "documentation"}, {"3fff::1", "documentation"}, {"3fff:fff::1", "documentation"},
		{"2001:2::1", "protocol"}, {"2001::1", "Teredo"}, {"2001:0:7f00:1::1", "Teredo"}, {"2001:10::1", "protocol"},
		{"2002:7f00:1::", "6to4"}, {"2002:a00:1::1", "6to4"}, {"2002:808:808::1", "6to4"},
		{"::ffff:127.0.0.1", "loopback"}, {"::ffff:10.0.0.1", "private"}, {"::ffff:169.254.169.254", "link-local"},
		{"::ffff:0.0.0.0", "unspecified"}, {"::ffff:100.64.0.1", "carrier"}, {"::ffff:224.0.0.1", "multicast"},
		{"64:ff9b::127.0.0.1", "loopback"}, {"64:ff9b::10.1.2.3", "private"}, {"64:ff9b::a9fe:a9fe", "link-local"},
		{"64:ff9b:1::8.8.8.8", "reserved"}, {"::127.0.0.1", "reserved"}, {"::8.8.8.8", "reserved"},
		{"::ffff:0:127.0.0.1", "reserved"}, {"100::1", "reserved"}, {"5f00::1", "reserved"}, {"4000::1", "reserved"},
	} {
		addr := netip.MustParseAddr(test.addr)
		for _, err := range []error{
			check(addr),
			control(t.Context(), "tcp", netip.AddrPortFrom(addr, 443).String(), nil),
		} {
			switch {
			case test.why == "" && err != nil:
				t.Errorf("%s is refused: %v", addr, err)
			case test.why != "" && err == nil:
				t.Errorf("%s isn't refused", addr)
			case err != nil && (!strings.Contains(err.Error(), test.why) || !strings.Contains(err.Error(), addr.String())):
				t.Errorf("%s: %v, want it to name the address and %q", addr, err, test.why)
			}
		}
	}
	if check(netip.Addr{}) == nil {
		t.Error("no address is allowed")
	}
	for _, bad := range []struct{ network, address string }{{"tcp", "example.com:443"}, {"tcp", ""}, {"udp4", "8.8.8.8:53"}, {"unix", "/x"}} {
		if control(t.Context(), bad.network, bad.address, nil) == nil {
			t.Errorf("%s %q is allowed", bad.network, bad.address)
		}
	}
}

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
