package server_test

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestStrictTransport: pages and log-ins tell browsers to use https only, if they came over
// https: by TLS, or by the word of a trusted proxy. Over http such a header would be ignored, and for
// localhost it would be about other servers.
func TestStrictTransport(t *testing.T) {
	t.Parallel()
	plain := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	proxied := setup(t, behindProxies, func(o *servertest.Options) { o.Access = &auth.Options{} })
	secure := httptest.NewTLSServer(plain.Handler)
	defer secure.Close()
	client := secure.Client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	const host = "registry.example.com"
	for _, c := range []struct {
		base, host, header, value string
		want                      bool
	}{
		{secure.URL, host, "", "", true},
		{secure.URL, host + ":8443", "", "", true},
		{secure.URL, "localhost:5000", "", "", false},
		{secure.URL, "app.localhost", "", "", false},
		{plain.URL, host, "", "", false},
		{plain.URL, host, "X-Forwarded-Proto", "https", false}, // not trusted
		{proxied.URL, host, "X-Forwarded-Proto", "https", true},
		{proxied.URL, host, "Forwarded", "proto=https", true},
		{proxied.URL, host, "X-Forwarded-Proto", "http", false},
		{proxied.URL, "localhost", "X-Forwarded-Proto", "https", false},
	} {
		for path, pages := range map[string]bool{
			"/": true, "/ui": true, "/ui/": true, "/ui/nothing": true, "/auth/login": true, "/token": true, "/token?service=x": true,
			"/api/v1/": true, "/api/v1/user": true, "/v2/": false,
		} {
			r, err := http.NewRequestWithContext(t.Context(), "GET", c.base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.Host = c.host; c.header != "" {
				r.Header.Set(c.header, c.value)
			}
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close() //nolint:errcheck // of no interest
			want := ""
			if c.want && pages {
				want = "max-age=31536000"
			}
			if got := res.Header.Get("Strict-Transport-Security"); got != want {
				t.Errorf("%+v %s: %q, want %q", c, path, got, want)
			}
		}
	}
}
