package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// raw sends the request text unchanged and returns the answer.
func (r *registry) raw(t *testing.T, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // read to its end
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	sent, err := http.NewRequest(method, r.URL, nil) //nolint:noctx // it only names the method
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), sent)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{Response: res, Content: body}
}

// TestHosts: clients send requests with many host names. The registry must answer a request
// only if its Host header names one of the registry's hosts. The test writes the requests
// itself, since an HTTP client would normalize the names.
func TestHosts(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.Hosts = server.NewHosts("Registry.Example.com", "*.example.org", "10.0.0.7", "fd00::7")
	})
	const ok, refused, malformed = 200, 421, 400
	for host, want := range map[string]int{
		"localhost": ok, "localhost:5000": ok, "localhost:1": ok, "localhost:": ok, "LOCALHOST:5000": ok, "LocalHost.": ok,
		"localhost.:5000": ok, "app.localhost": ok, "a.b.localhost:80": ok, "127.0.0.1": ok, "127.0.0.1:5000": ok,
		"127.255.1.2:80": ok, "127.0.0.1.": ok, "[::1]": ok, "[::1]:5000": ok, "[::1]:": ok, "[0:0:0:0:0:0:0:1]:5000": ok,
		"[::ffff:127.0.0.1]:5000": ok, "[::ffff:7f00:1]": ok, "[::1%lo]:5000": ok, "[::1%25lo]:5000": ok,
		"registry.example.com": ok, "registry.example.com:443": ok, "REGISTRY.EXAMPLE.COM.": ok,
		"a.example.org": ok, "a.b.example.org:8443": ok, "10.0.0.7:5000": ok, "[fd00::7]": ok, "[fd00:0::7]:1": ok,
		"": ok, // no browser sends it

		"evil.example": refused, "evil.example:5000": refused, "EVIL.example.": refused, "localhost.evil.example": refused,
		"localhostx": refused, "xlocalhost": refused, ".localhost": refused, "localhost..": refused, "127.0.0.1.evil.example": refused,
		"127.0.0.1..": refused, "127.1": refused, "2130706433": refused, "0x7f.0.0.1": refused, "0177.0.0.1": refused,
		"128.0.0.1": refused, "10.0.0.8": refused, "0.0.0.0:5000": refused, "[::]:5000": refused, "[::2]": refused,
		"::1": refused, "[::1": refused, "::1]": refused, "[127.0.0.1]": refused, "[localhost]": refused,
		"[::1].evil.example": refused, "[::1]evil.example:5000": refused, "evil.example[::1]": refused,
		"localhost:5000:5000": refused, "localhost:evil.example": refused, "evil.example:5000@localhost": malformed,
		"localhost@evil.example": malformed, "evil.example@localhost": malformed, "user:pw@localhost": malformed,
		"localhost,evil.example": refused, "localhost;evil.example": refused, "*": refused, "*.example.org": refused,
		"example.org": refused, "aexample.org": refused, ".example.org": refused, "registry.example.com.evil.example": refused,
		"evilregistry.example.com": refused, "localhost%00": refused, "%6cocalhost": refused, "localhost%2eevil": refused,
		":": refused, ":5000": refused, ".": refused, "xn--localhost-": refused,

		"localhost evil.example": malformed, "localhost\tevil": malformed, "localhost\x00": malformed, "localhost/": malformed,
		"localho\u017ft": malformed, "\u24dbocalhost": malformed, "ev\xffil": malformed, "localhost\\@evil": malformed,
	} {
		for _, path := range []string{"/v2/", "/api/v1/gc/status", "/nothing"} {
			want := want
			if want == ok && path == "/nothing" {
				want = 404
			}
			a := r.raw(t, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			if a.StatusCode != want {
				t.Errorf("%s under Host %q: %d %s, want %d", path, host, a.StatusCode, a.Content, want)
			}
			if a.StatusCode == refused && !strings.Contains(string(a.Content), "http.allowed_hosts") {
				t.Errorf("%s under Host %q: the answer doesn't name the way out: %s", path, host, a.Content)
			}
		}
	}
	a := r.raw(t, "GET /v2/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").Want(t, 421, oci.Denied)
	if !strings.Contains(string(a.Content), "evil.example") {
		t.Errorf("the answer doesn't name the host: %s", a.Content)
	}
	r.raw(t, "GET /api/v1/gc/status HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").
		Refused(t, 421, "invalid_request", "http.allowed_hosts")
}

// TestHostsInOtherForms: clients send requests that name a host in the request line, or name
// none or several. The check of host names must use the name that net/http puts into
// Request.Host.
func TestHostsInOtherForms(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Server.Hosts = server.NewHosts() })
	for request, want := range map[string]int{
		"GET /v2/ HTTP/1.0\r\n":                                                             200, // without a Host
		"GET /v2/ HTTP/1.0\r\nHost: evil.example\r\n":                                       421,
		"GET /v2/ HTTP/1.1\r\n":                                                             400,
		"GET /v2/ HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n":                    400,
		"GET /v2/ HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n":                    400,
		"GET http://evil.example/v2/ HTTP/1.1\r\nHost: localhost\r\n":                       421,
		"GET http://localhost:5000/v2/ HTTP/1.1\r\nHost: evil.example\r\n":                  200, // RFC 9112, 3.2.2
		"GET http://localhost@evil.example/v2/ HTTP/1.1\r\nHost: localhost\r\n":             421,
		"GET http://localho%C5%BFt/v2/ HTTP/1.1\r\nHost: localhost\r\n":                     421,
		"GET http:///v2/ HTTP/1.1\r\nHost: evil.example\r\n":                                421,
		"GET //evil.example/v2/ HTTP/1.1\r\nHost: localhost\r\n":                            404, // a path
		"GET /v2/ HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\n":        421,
		"GET /v2/ HTTP/1.1\r\nHost: evil.example\r\nForwarded: host=localhost\r\n":          421,
		"HEAD /v2/ HTTP/1.1\r\nHost: evil.example\r\n":                                      421,
		"OPTIONS /v2/ HTTP/1.1\r\nHost: evil.example\r\n":                                   421,
		"POST /v2/a/blobs/uploads/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n": 421,
	} {
		if a := r.raw(t, request+"Connection: close\r\n\r\n"); a.StatusCode != want {
			t.Errorf("%q: %d %s, want %d", request, a.StatusCode, a.Content, want)
		}
	}
}

// TestHostsOffLoopback: a listener isn't on loopback, and a client sends the listener's IP
// address as the Host header. The check of host names must accept it, so that health checks by
// IP address need no setting.
func TestHostsOffLoopback(t *testing.T) {
	t.Parallel()
	request := func(host, local string) *http.Request {
		req, err := http.NewRequest("GET", "/", nil) //nolint:noctx // nobody sends it
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		addr, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		return req.WithContext(contextWith(t, addr))
	}
	hosts := server.NewHosts("registry.example.com")
	for _, tc := range []struct {
		host, local string
		ok          bool
	}{
		{"10.1.2.3:5000", "10.1.2.3:5000", true}, {"10.1.2.3", "10.1.2.3:5000", true}, {"10.1.2.4", "10.1.2.3:5000", false},
		{"[2001:db8::1]:5000", "[2001:db8::1]:5000", true}, {"[2001:db8::2]", "[2001:db8::1]:5000", false},
		{"[fe80::1]", "[fe80::1%1]:5000", true}, {"10.1.2.3", "[::ffff:10.1.2.3]:5000", true},
		{"registry.example.com", "10.1.2.3:5000", true}, {"evil.example", "10.1.2.3:5000", false},
	} {
		if err := hosts.Check(request(tc.host, tc.local)); (err == nil) != tc.ok {
			t.Errorf("Host %s at %s: %v, want it to pass: %v", tc.host, tc.local, err, tc.ok)
		}
	}
	for _, every := range []*server.Hosts{nil, server.NewHosts("*")} {
		if err := every.Check(request("evil.example", "10.1.2.3:5000")); err != nil {
			t.Errorf("every name is allowed: %v", err)
		}
	}
}

// TestRegistryRefusesOtherSites: a web page of another site makes a browser send requests that
// change something. The registry must refuse all of them. A browser asks permission by a
// preflight request before it sends most such requests, and the registry never permits them.
// But it sends a POST with plain text without a preflight request.
func TestRegistryRefusesOtherSites(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Server.Origins = []string{"https://registry.example.com"} })
	content := "made by another site"
	upload := "/v2/victim/blobs/uploads/?digest=" + digest(content).String()
	location := r.StartUpload(t, "mine/app", "")
	changes := [][3]string{
		{"POST", upload, content}, {"POST", "/v2/victim/blobs/uploads/", ""}, {"PATCH", location, content},
		{"PUT", location + "?digest=" + digest(content).String(), content}, {"DELETE", location, ""},
		{"PUT", "/v2/victim/manifests/v1", "{}"}, {"DELETE", "/v2/victim/manifests/v1", ""},
		{"DELETE", "/v2/victim/blobs/" + digest(content).String(), ""},
		{"POST", "/v2/", ""}, {"PROPFIND", "/nothing", ""},
	}
	host := strings.TrimPrefix(r.URL, "http://")
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "CROSS-SITE"},
		{"Sec-Fetch-Site", "cross-site", "Origin", "http://" + host},
		{"Origin", "https://example.com"}, {"Origin", "null"}, {"Origin", "http://" + host + "0"}, {"Origin", "http://localhost"},
		{"Origin", "http://registry.example.com"}, // another scheme is another site
	} {
		for _, c := range changes {
			r.Do(t, c[0], c[1], c[2], append(headers, "Content-Type", "text/plain")...).Want(t, 403, oci.Denied)
		}
		r.Do(t, "GET", "/v2/", "", headers...).Want(t, 200, "", "Access-Control-Allow-Origin", "")
	}
	r.Do(t, "GET", "/v2/_catalog", "").Text(t, `{"repositories":[]}`)
	var n int
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM top_level_namespaces WHERE name = 'victim'").Scan(&n); err != nil || n != 0 {
		t.Errorf("another site made %d namespaces (%v)", n, err)
	}
	// The registry must accept requests that change something if they come from clients other
	// than browsers, from the registry's own web pages, or from web pages of an allowed origin.
	for i, headers := range [][]string{
		nil, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://" + host},
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://registry.example.com"},
	} {
		content := fmt.Sprint("mine ", i)
		r.Do(t, "POST", "/v2/mine/app/blobs/uploads/?digest="+digest(content).String(), content,
			append(headers, "Content-Type", "text/plain")...).Want(t, 201, "")
	}
}

// contextWith returns the context that a request has if it arrived at the local address `addr`.
func contextWith(t *testing.T, addr net.Addr) context.Context {
	return context.WithValue(t.Context(), http.LocalAddrContextKey, addr)
}
