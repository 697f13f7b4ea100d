package limit_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"

	"github.com/purser-registry/purser/internal/limit"
)

// TestEncrypted: a trusted proxy says in any of several headers that its client uses https. Nobody
// else can say that.
func TestEncrypted(t *testing.T) {
	t.Parallel()
	proxies := limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, limit.AnyForwarded)
	for _, c := range []struct {
		name   string
		values []string
		want   bool
	}{
		{"X-Forwarded-Proto", []string{"https"}, true},
		{"X-Forwarded-Proto", []string{"HTTPS"}, true},
		{"X-Forwarded-Proto", []string{"https, http"}, true},
		{"X-Forwarded-Proto", []string{"http", "https"}, true},
		{"X-Forwarded-Proto", []string{"http"}, false},
		{"X-Forwarded-Proto", []string{"httpsx"}, false},
		{"X-Forwarded-Proto", []string{""}, false},
		{"X-Forwarded-Proto", []string{"on"}, false},
		{"X-Forwarded-Scheme", []string{"https"}, true},
		{"X-Forwarded-Ssl", []string{"on"}, true},
		{"X-Forwarded-Ssl", []string{"off"}, false},
		{"Forwarded", []string{"for=198.51.100.1;proto=https"}, true},
		{"Forwarded", []string{`proto="https"`}, true},
		{"Forwarded", []string{`For="[2001:db8::1]:80"; Proto=HTTPS`}, true},
		{"Forwarded", []string{"for=198.51.100.1;proto=http, for=10.0.0.2;proto=https"}, true},
		{"Forwarded", []string{"for=198.51.100.1", "for=10.0.0.2;proto=https"}, true},
		{"Forwarded", []string{"for=198.51.100.1;proto=http"}, false},
		{"Forwarded", []string{`for="proto=https"`}, false},
		{"Forwarded", []string{"proto=https;proto=http"}, false}, // malformed
		{"Forwarded", []string{`for=";proto=https`}, false},
		{"X-Forwarded-For", []string{"https"}, false},
	} {
		r := httptest.NewRequestWithContext(context.Background(), "GET", "/v2/", nil)
		r.Header[c.name] = c.values
		for address, want := range map[string]bool{"10.0.0.1:1": c.want, "[::ffff:10.0.0.1]:1": c.want, "192.0.2.1:1": false} {
			r.RemoteAddr = address
			if got := proxies.Encrypted(r); got != want {
				t.Errorf("%s %q from %s: %v", c.name, c.values, address, got)
			}
			var none *limit.Proxies
			if none.Encrypted(r) {
				t.Errorf("%s %q from %s is believed without proxies", c.name, c.values, address)
			}
		}
	}
	r := httptest.NewRequestWithContext(context.Background(), "GET", "/v2/", nil)
	if r.TLS = new(tls.ConnectionState); !proxies.Encrypted(r) {
		t.Error("a request by TLS isn't encrypted")
	}
}

// TestEncryptedByProxyProtocol: a load balancer that ends TLS and passes on TCP says so in an
// extension of the PROXY protocol's header.
func TestEncryptedByProxyProtocol(t *testing.T) {
	t.Parallel()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxies := limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, limit.AnyForwarded)
	l := limit.Listen(raw, limit.ListenerOptions{Plain: true, ProxyProtocol: true, Proxies: proxies})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit.Begin(r) //nolint:errcheck // it is about other requests
		if proxies.Encrypted(r) {
			io.WriteString(w, "encrypted") //nolint:errcheck // the client is gone, and knows
		}
	}))
	srv.Config.ConnState, srv.Config.ConnContext = l.ConnState, l.ConnContext
	srv.Listener.Close() //nolint:errcheck // ours takes its place
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	for want, client := range map[string]byte{"encrypted": 1, "": 0} {
		header := proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.IPv4(198, 51, 100, 1), Port: 1}, raw.Addr())
		ssl, err := tlvparse.PP2SSL{Client: client, Verify: 1, TLV: []proxyproto.TLV{{Type: proxyproto.PP2_SUBTYPE_SSL_VERSION, Value: []byte("TLSv1.3")}}}.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := header.SetTLVs([]proxyproto.TLV{ssl}); err != nil {
			t.Fatal(err)
		}
		text, err := header.Format()
		if err != nil {
			t.Fatal(err)
		}
		status, body, c := say(t, raw.Addr().String(), false, string(text))
		if c != nil {
			c.Close() //nolint:errcheck // it is at its end
		}
		if status != 200 || body != want {
			t.Errorf("client bits %d: %d %q, want %q", client, status, body, want)
		}
	}
}
