package server_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestRealm: a client sends its password where the challenge says. That is over https if a trusted
// proxy says that the client uses it, whether or not it names another client's address, and
// never at another host than the external URL's.
func TestRealm(t *testing.T) {
	t.Parallel()
	const host, outside = "registry.example.com", "https://registry.example.com"
	for _, c := range []struct {
		trusted, external, host string
		headers                 []string
		want                    string
	}{
		{"127.0.0.0/8", "", host, nil, "http://" + host},
		{"127.0.0.0/8", "", host, []string{"X-Forwarded-Proto", "https"}, outside},
		{"127.0.0.0/8", "", host, []string{"X-Forwarded-Proto", "https", "X-Forwarded-For", "127.0.0.1"}, outside},
		{"127.0.0.0/8", "", host, []string{"X-Forwarded-Proto", "https", "X-Forwarded-For", "198.51.100.1"}, outside},
		{"127.0.0.0/8", "", host, []string{"Forwarded", "for=198.51.100.1;proto=https"}, outside},
		{"127.0.0.0/8", "", host, []string{"Forwarded", "proto=https"}, outside},
		{"127.0.0.0/8", "", host, []string{"X-Forwarded-Ssl", "on"}, outside},
		{"127.0.0.0/8", "", host, []string{"X-Forwarded-Proto", "http"}, "http://" + host},
		{"127.0.0.0/8", "", host + ":8443", []string{"X-Forwarded-Proto", "https"}, outside + ":8443"},
		{"10.0.0.0/8", "", host, []string{"X-Forwarded-Proto", "https"}, "http://" + host}, // not trusted
		{"10.0.0.0/8", outside, host, nil, outside},
		{"10.0.0.0/8", outside, "other.example", nil, outside},
		{"127.0.0.0/8", outside, "other.example", []string{"X-Forwarded-Proto", "http", "X-Forwarded-For", "198.51.100.1"}, outside},
		{"10.0.0.0/8", outside, "127.0.0.1:5000", nil, outside},
		{"10.0.0.0/8", outside, "other.example:443", []string{"X-Forwarded-Host", "third.example"}, outside},
	} {
		r := setup(t, func(o *servertest.Options) {
			o.Access = &auth.Options{}
			o.Server.Proxies = limit.NewProxies([]netip.Prefix{netip.MustParsePrefix(c.trusted)}, limit.AnyForwarded)
			o.Server.ExternalURL = c.external
		})
		request := "GET /v2/ HTTP/1.1\r\nConnection: close\r\nHost: " + c.host + "\r\n"
		for i := 0; i < len(c.headers); i += 2 {
			request += c.headers[i] + ": " + c.headers[i+1] + "\r\n"
		}
		a := r.raw(t, request+"\r\n")
		if got := a.Header.Get("Www-Authenticate"); a.StatusCode != 401 || !strings.HasPrefix(got, `Bearer realm="`+c.want+`/token",`) {
			t.Errorf("%+v: %d %s", c, a.StatusCode, got)
		}
	}
}

// TestRealmWithoutHost: HTTP/1.0 has requests without a host.
func TestRealmWithoutHost(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	a := r.raw(t, "GET /v2/ HTTP/1.0\r\n\r\n")
	if got := a.Header.Get("Www-Authenticate"); !strings.HasPrefix(got, `Bearer realm="`+r.URL+`/token",`) {
		t.Errorf("the challenge is %s", got)
	}
}

// TestWarningOfPlainRealm: a proxy says that clients use https, and they are told to log in over
// http, since the proxy isn't trusted, or the external URL is wrong. That is logged once.
func TestWarningOfPlainRealm(t *testing.T) {
	t.Parallel()
	const warning = "a request says that its client uses https, and the client is told to log in over http, so that its password is sent in plain text: "
	for _, c := range []struct{ external, header, value, want string }{
		{"", "X-Forwarded-Proto", "https", "name the proxy in http.trusted_proxies, or set http.external_url to the https:// URL"},
		{"", "Forwarded", "proto=https", "name the proxy in http.trusted_proxies, or set http.external_url to the https:// URL"},
		{"http://registry.example.com", "X-Forwarded-Proto", "https", "let http.external_url begin with https://"},
		{"https://registry.example.com", "X-Forwarded-Proto", "https", ""},
		{"", "X-Forwarded-Proto", "http", ""},
	} {
		r := setup(t, func(o *servertest.Options) {
			o.Access = &auth.Options{}
			o.Server.ExternalURL = c.external
		})
		for range 3 {
			r.Do(t, "GET", "/v2/", "", c.header, c.value).Want(t, 401, "UNAUTHORIZED")
		}
		if n := len(r.Log.Records(t, warning+c.want)); (n == 1) != (c.want != "") || n > 1 {
			t.Errorf("%+v: %d warnings", c, n)
		}
		if c.want == "" && r.Log.Contains(warning) {
			t.Errorf("%+v: warned", c)
		}
	}
}
