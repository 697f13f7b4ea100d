package server_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestPassedOnToOpenLoopback: nobody needs to log in at a registry that only its own machine
// reaches. A proxy on the machine lets others in, and its headers show that: such requests are
// refused, with the cause and the settings that change it. What comes without them is served.
func TestPassedOnToOpenLoopback(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.LocalOnly = true
		o.Server.Hosts = server.NewHosts()
	})
	for _, header := range []string{
		"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Server", "X-Forwarded-Ssl",
		"X-Real-IP", "Forwarded", "Via", "forwarded", "x-real-ip", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP",
	} {
		for _, c := range [][3]string{
			{"GET", "/v2/", ""}, {"GET", "/v2/_catalog", ""}, {"POST", "/v2/a/blobs/uploads/", ""}, {"PUT", "/v2/a/manifests/v1", "{}"},
			{"DELETE", "/v2/a/manifests/v1", ""}, {"GET", "/nothing", ""},
		} {
			a := r.Do(t, c[0], c[1], c[2], header, "for=198.51.100.1").Want(t, 403, oci.Denied)
			for _, want := range []string{"http.external_url", "http.trusted_proxies", "auth.enabled: false", "header "} {
				if !strings.Contains(string(a.Content), want) {
					t.Errorf("%s: the answer lacks %q: %s", header, want, a.Content)
				}
			}
		}
		for _, path := range []string{"/api/v1/repository?public=true", "/api/v1/system", "/ui/"} {
			if a := r.Do(t, "GET", path, "", header, "127.0.0.1"); a.StatusCode != 403 {
				t.Errorf("%s with %s: %d", path, header, a.StatusCode)
			}
		}
	}
	// A header without a value shows a proxy too. The name that the proxy passes on isn't asked for
	// first, since allowing it wouldn't let clients in.
	for _, request := range []string{"Host: localhost\r\nX-Forwarded-For:\r\n", "Host: registry.example.com\r\nVia: 1.1 proxy\r\n"} {
		r.raw(t, "GET /v2/ HTTP/1.1\r\nConnection: close\r\n"+request+"\r\n").Want(t, 403, oci.Denied)
	}
	r.Do(t, "GET", "/v2/", "").Want(t, 200, "")
	r.Do(t, "POST", "/v2/mine/app/blobs/uploads/", "", "X-Request-Id", "abc", "Accept", "*/*").Want(t, 202, "")
	const warning = "requests that come through a proxy are refused, since nobody needs to log in here: " +
		"set http.external_url and http.trusted_proxies, so that clients log in, or auth.enabled: false, so that everybody may do everything"
	if n := len(r.Log.Records(t, warning)); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// TestOpenOnPurpose: where somebody has said that nobody needs to log in, the headers of proxies
// change nothing.
func TestOpenOnPurpose(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Do(t, "POST", "/v2/a/blobs/uploads/", "", "X-Forwarded-For", "198.51.100.1", "Via", "1.1 proxy").Want(t, 202, "")
}

// TestPassedOnByAddress: a rule of the kernel can lead other machines to loopback, without any
// header.
func TestPassedOnByAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.1:1": "", "127.8.9.10:1": "", "[::1]:1": "", "[::ffff:127.0.0.1]:1": "",
		"10.0.0.1:1": "address 10.0.0.1", "[2001:db8::1]:1": "address 2001:db8::1",
	} {
		r := httptest.NewRequestWithContext(context.Background(), "GET", "/v2/", nil)
		r.RemoteAddr = address
		if got := server.PassedOn(r); got != want {
			t.Errorf("from %s: %q, want %q", address, got, want)
		}
	}
}
