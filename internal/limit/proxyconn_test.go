package limit_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/limit"
)

// behindProxy starts a server, with TLS or without, that trusts proxies whose addresses are in
// `network`, and expects the PROXY protocol from them. The server answers each request with the
// client's address as it sees it. behindProxy returns the server's address.
func behindProxy(t *testing.T, network string, useTLS bool, change func(*limit.ListenerOptions)) string {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := limit.ListenerOptions{
		Plain: !useTLS, Log: slog.New(slog.DiscardHandler), ProxyProtocol: true,
		Proxies: limit.NewProxies([]netip.Prefix{netip.MustParsePrefix(network)}, limit.AnyForwarded),
	}
	if change != nil {
		change(&o)
	}
	l := limit.Listen(raw, o)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit.Begin(r)                  //nolint:errcheck // it is about other requests
		io.WriteString(w, r.RemoteAddr) //nolint:errcheck // the client is gone, and knows
	}))
	srv.Config.ConnState, srv.Config.ConnContext = l.ConnState, l.ConnContext
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Listener.Close() //nolint:errcheck // ours takes its place
	srv.Listener = l
	if useTLS {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return raw.Addr().String()
}

// say sends a PROXY protocol header and a request on a new connection. It returns the answer's
// status and body; 0 and "" if there is no answer.
func say(t *testing.T, addr string, useTLS bool, header string) (status int, body string, c net.Conn) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })                //nolint:errcheck
	c.SetDeadline(time.Now().Add(2 * time.Minute)) //nolint:errcheck
	if _, err := io.WriteString(c, header); err != nil {
		t.Fatal(err)
	}
	if useTLS {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return 0, "", c
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", c
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), c
}

func v2(t *testing.T, h proxyproto.Header, tlvs ...proxyproto.TLV) string {
	t.Helper()
	h.Version = 2
	if err := h.SetTLVs(tlvs); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := h.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

var (
	someClient = &net.TCPAddr{IP: net.ParseIP("198.51.100.1").To4(), Port: 4000}
	someServer = &net.TCPAddr{IP: net.ParseIP("203.0.113.1").To4(), Port: 443}
)

// A trusted proxy sends a PROXY protocol header, in version 1 or 2, and then a request, with or
// without TLS. The test expects that the server takes the client's address from the header.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	long := proxyproto.TLV{Type: proxyproto.PP2_TYPE_NOOP, Value: bytes.Repeat([]byte{'x'}, 1000)}
	headers := map[string]struct{ header, want string }{
		"v1":                   {"PROXY TCP4 198.51.100.1 203.0.113.1 4000 443\r\n", "198.51.100.1:4000"},
		"v1 with IPv6":         {"PROXY TCP6 2001:db8::1 2001:db8::2 4000 443\r\n", "[2001:db8::1]:4000"},
		"v1 without a client":  {"PROXY UNKNOWN\r\n", "127.0.0.1:"},
		"v2":                   {v2(t, *proxyproto.HeaderProxyFromAddrs(2, someClient, someServer)), "198.51.100.1:4000"},
		"v2 with much besides": {v2(t, *proxyproto.HeaderProxyFromAddrs(2, someClient, someServer), long), "198.51.100.1:4000"},
		"v2 of a check":        {v2(t, proxyproto.Header{Command: proxyproto.LOCAL}), "127.0.0.1:"},
	}
	for _, useTLS := range []bool{false, true} {
		addr := behindProxy(t, "127.0.0.0/8", useTLS, nil)
		for what, h := range headers {
			if status, body, _ := say(t, addr, useTLS, h.header); status != 200 || !strings.HasPrefix(body, h.want) {
				t.Errorf("%s, TLS %t: %d %s, want %s", what, useTLS, status, body, h.want)
			}
		}
	}
}

// A trusted proxy's connection doesn't begin with a valid PROXY protocol header. The test
// expects that the server refuses the connection, and without TLS answers why.
func TestProxyProtocolRefused(t *testing.T) {
	t.Parallel()
	addr, withTLS := behindProxy(t, "127.0.0.0/8", false, nil), behindProxy(t, "127.0.0.0/8", true, nil)
	for what, header := range map[string]string{
		"none":                  "",
		"an unknown protocol":   "PROXY TCP5 198.51.100.1 203.0.113.1 4000 443\r\n",
		"no address":            "PROXY TCP4 example.com 203.0.113.1 4000 443\r\n",
		"a zone":                "PROXY TCP6 fe80::1%eth0 2001:db8::2 4000 443\r\n",
		"a port too large":      "PROXY TCP4 198.51.100.1 203.0.113.1 70000 443\r\n",
		"an endless line":       "PROXY TCP4 " + strings.Repeat("9", 200),
		"v2 of another version": string(proxyproto.SIGV2) + "\x31\x11\x00\x0c" + strings.Repeat("x", 12),
	} {
		status, body, _ := say(t, addr, false, header)
		if status != 400 || !strings.Contains(body, "http.proxy_protocol") {
			t.Errorf("%s: %d %s", what, status, body)
		}
		if status, body, _ := say(t, withTLS, true, header); status != 0 {
			t.Errorf("%s, with TLS: %d %s", what, status, body)
		}
	}
}

// A PROXY protocol header comes from an address that isn't a trusted proxy's. The test expects
// that the request is refused by an answer that names the settings.
func TestProxyProtocolOfOthers(t *testing.T) {
	t.Parallel()
	addr := behindProxy(t, "10.0.0.0/8", false, nil)
	for _, header := range []string{
		"PROXY TCP4 198.51.100.1 203.0.113.1 4000 443\r\n",
		v2(t, *proxyproto.HeaderProxyFromAddrs(2, someClient, someServer)),
	} {
		if status, body, _ := say(t, addr, false, header); status != 400 || !strings.Contains(body, "http.trusted_proxies") {
			t.Errorf("%.10q: %d %s", header, status, body)
		}
	}
	if status, body, _ := say(t, addr, false, ""); status != 200 || !strings.HasPrefix(body, "127.0.0.1:") {
		t.Errorf("without a header: %d %s", status, body)
	}
	off := behindProxy(t, "127.0.0.0/8", false, func(o *limit.ListenerOptions) { o.ProxyProtocol = false })
	if status, body, _ := say(t, off, false, "PROXY TCP4 198.51.100.1 203.0.113.1 4000 443\r\n"); status != 400 {
		t.Errorf("without the setting: %d %s", status, body)
	}
}

// A trusted proxy opens connections for several clients. The test expects that the limit per
// client counts the connections of the client that the header names, and not those of the
// proxy.
func TestConnectionsBehindProxies(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	metrics := limit.NewMetrics(reg)
	limits := func(o *limit.ListenerOptions) { o.MostOfClient, o.Most, o.Metrics = 1, 5, metrics }
	addr := behindProxy(t, "127.0.0.0/8", false, limits)
	const first, second = "PROXY TCP4 198.51.100.1 203.0.113.1 4000 443\r\n", "PROXY TCP4 198.51.100.2 203.0.113.1 4000 443\r\n"
	busy := func(header string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) //nolint:errcheck
		if _, err := io.WriteString(c, header+"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	// The function until sends requests until an answer has the status `want`. Before that,
	// answers may have another status for several reasons. A client may have its answer before
	// the server counts the connection as idle. A connection that the test keeps open begins
	// to count when the server has read its header, and counts until the server notices its
	// end. The client doesn't see a refusal (status 0) if it is still writing.
	until := func(header string, want int) {
		t.Helper()
		for {
			status, body, c := say(t, addr, false, header)
			switch {
			case status == 503 && !strings.Contains(body, "too many connections"), !slices.Contains([]int{0, 200, 503}, status):
				t.Fatalf("%d %s", status, body)
			case status == want:
				return
			}
			c.Close() //nolint:errcheck
		}
	}
	// A connection whose PROXY protocol header wasn't read yet counts for no client. A
	// connection whose request was answered is idle, and is closed when the client opens
	// another one.
	for range 3 {
		until(first, 200)
	}
	held := busy(second)
	until(second, 503)
	until(first, 200)
	held.Close() //nolint:errcheck
	until(second, 200)
	// Without the PROXY protocol, a proxy may have more connections than the limit per client.
	plain := behindProxy(t, "127.0.0.0/8", false, func(o *limit.ListenerOptions) { o.ProxyProtocol, o.MostOfClient = false, 1 })
	for range 3 {
		c, err := net.Dial("tcp", plain)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) //nolint:errcheck
	}
	if status, body, _ := say(t, plain, false, ""); status != 200 {
		t.Errorf("one of many of a proxy: %d %s", status, body)
	}
}

// A proxy opens connections and doesn't send a complete header. The test expects the server to
// close them after ProxyHeaderTime.
func TestSilentProxy(t *testing.T) {
	t.Parallel()
	addr := behindProxy(t, "127.0.0.0/8", false, func(o *limit.ListenerOptions) { o.ProxyHeaderTime = 20 * time.Millisecond })
	for _, begin := range []string{"", "PROXY TCP4", string(proxyproto.SIGV2)} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); err != nil || !bytes.Contains(text, []byte("400 Bad Request")) {
			t.Errorf("%q is answered with %s: %v", begin, text, err)
		}
		c.Close() //nolint:errcheck // only read
	}
}

// A load balancer checks the server by a connection without data. The test expects no answer
// and no error in the log.
func TestChecksOfBalancers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	addr := behindProxy(t, "127.0.0.0/8", false, func(o *limit.ListenerOptions) { o.Log = slog.New(slog.NewTextHandler(&out, nil)) })
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); err != nil || len(text) > 0 {
		t.Errorf("it was told %s: %v", text, err)
	}
	if out.Len() > 0 {
		t.Errorf("the log says %s", out.String())
	}
}
