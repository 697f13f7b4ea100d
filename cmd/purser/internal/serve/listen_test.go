package serve

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/config"
)

func TestPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for flag, h := range map[string]config.HTTP{
		"--addr":         {Addr: addr},
		"--debug-addr":   {Addr: "127.0.0.1:0", DebugAddr: addr},
		"--profile-addr": {Addr: "127.0.0.1:0", DebugAddr: "127.0.0.1:0", ProfileAddr: addr},
	} {
		_, err := listen(t.Context(), h, nil, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), addr+" is in use") || !strings.Contains(err.Error(), " "+flag+" ") {
			t.Errorf("%s: %v; want an error that names address and flag", flag, err)
		}
	}
	if _, err := listen(t.Context(), config.HTTP{Addr: "127.0.0.1:0", TLS: config.TLS{Cert: "/nonexistent.pem", Key: "/nonexistent.key"}}, nil, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "http.tls.cert") {
		t.Errorf("missing certificate: %v", err)
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:5000", "0.0.0.0": "127.0.0.1:5000", "::": "127.0.0.1:5000", "::1": "localhost:5000",
		"192.0.2.7": "192.0.2.7:5000",
	} {
		if got := reachable(fakeListener{&net.TCPAddr{IP: net.ParseIP(ip), Port: 5000}}); got != want {
			t.Errorf("reachable(%s) = %s, want %s", ip, got, want)
		}
	}
}

type fakeListener struct{ addr net.Addr }

func (f fakeListener) Addr() net.Addr { return f.addr }

func (fakeListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }

func (fakeListener) Close() error { return nil }

// TestHostsOfAListener: a listener on loopback answers only to names of this machine and to the
// names in http.allowed_hosts and http.tls.acme.hosts. A listener that other machines can reach
// answers to every name, unless http.allowed_hosts is set.
func TestHostsOfAListener(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		addr, host string
		allowed    []string
		answers    bool
	}{
		{"127.0.0.1:0", "evil.example", nil, false},
		{"127.0.0.1:0", "a.example", []string{"a.example"}, true},
		{"127.0.0.1:0", "evil.example", []string{"*"}, true},
		{"localhost:0", "localhost", nil, true},
		{"[::1]:0", "evil.example", nil, false},
		{"0.0.0.0:0", "evil.example", nil, true},
		{"0.0.0.0:0", "evil.example", []string{"a.example"}, false},
		{"0.0.0.0:0", "a.example", []string{"a.example"}, true},
		{":0", "evil.example", nil, true},
		{"127.0.0.1:0", "tls.example", nil, true},
		{"0.0.0.0:0", "TLS.example", []string{"a.example"}, true},
	} {
		l, err := open(t.Context(), tc.addr, "--addr", "http.addr")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nothing was accepted
		certified := config.TLS{ACME: config.ACME{Hosts: []string{"TLS.example"}}}
		h := hosts(l, tc.addr, config.HTTP{Addr: tc.addr, AllowedHosts: tc.allowed, TLS: certified})
		if err := h.Check(&http.Request{Host: tc.host}); (err == nil) != tc.answers {
			t.Errorf("%s with %q under %s: %v, want an answer: %v", tc.addr, tc.allowed, tc.host, err, tc.answers)
		}
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"": "", "https://r.example": "https://r.example", "https://R.example:443": "https://r.example", "http://r.example:80": "http://r.example",
		"http://r.example:443": "http://r.example:443", "https://[::1]:443": "https://[::1]", "https://r.example:8443": "https://r.example:8443",
	} {
		if got := strings.Join(origins(config.HTTP{ExternalURL: url}), " "); got != want {
			t.Errorf("%q: %q, want %q", url, got, want)
		}
	}
}
