package netguard

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// nameServer starts a DNS server on loopback. It answers each query for an IPv4 address with the
// address that `next` returns, and has no IPv6 addresses. It returns a resolver that asks it.
func nameServer(t *testing.T, next func() netip.Addr) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done }) //nolint:errcheck // it ends with the test
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(dnsAnswer(buf[:n], next), from) //nolint:errcheck // the resolver asks again
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

// dnsAnswer returns the answer to a query (RFC 1035, section 4.1).
func dnsAnswer(query []byte, next func() netip.Addr) []byte {
	end := 12 // of the question
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the end of the name, type and class
	a := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
	if isA := query[end-4] == 0 && query[end-3] == 1; !isA {
		return a
	}
	a[7] = 1
	ip := next().As4()
	a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the question's name, type A, class IN, TTL 0
	return append(a, ip[:]...)
}

// TestRebinding: a name resolves to a public address when somebody checks it, and to loopback
// when it is dialled. The guard refuses the dial, whether the name comes from a URL or from a
// redirect.
func TestRebinding(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer inside.Close()
	_, port, err := net.SplitHostPort(inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var queries atomic.Int64
	resolver := nameServer(t, func() netip.Addr {
		if queries.Add(1) == 1 {
			return netip.MustParseAddr("8.8.8.8")
		}
		return netip.MustParseAddr("127.0.0.1")
	})
	checked, err := resolver.LookupNetIP(t.Context(), "ip4", "rebinding.example")
	if err != nil || len(checked) != 1 || (Guard{}).Check(checked[0]) != nil {
		t.Fatalf("the name resolves to %v, %v, when it is checked", checked, err)
	}
	dialer := &net.Dialer{Resolver: resolver, ControlContext: Guard{}.Control}
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://rebinding.example:"+port+"/", http.StatusTemporaryRedirect)
	}
	outside := httptest.NewServer(http.HandlerFunc(redirect))
	defer outside.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == outside.Listener.Addr().String() { // stands for a public server
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		return dialer.DialContext(ctx, network, addr)
	}}}
	defer client.CloseIdleConnections()
	for _, url := range []string{"http://rebinding.example:" + port + "/", outside.URL} {
		res, err := client.Get(url)
		if err == nil {
			res.Body.Close() //nolint:errcheck // of no interest
		}
		if err == nil || !strings.Contains(err.Error(), "127.0.0.1 is loopback, not public") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if n := queries.Load(); n < 3 {
		t.Errorf("the name was resolved %d times; the dials didn't resolve it", n)
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the server inside got %d requests", n)
	}
}
