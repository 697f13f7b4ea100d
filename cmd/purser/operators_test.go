package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// askAs sends a request with the given headers (pairs of name and value, Host included),
// and returns the status and the body of the answer.
func askAs(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestServeBehindTheWall sends the requests that the script of a web page sends after the
// host name of the page was made to point to 127.0.0.1 (DNS rebinding). Host and Origin
// have the page's host name, so the browser takes the requests for same-origin ones. The
// registry must refuse them.
func TestServeBehindTheWall(t *testing.T) {
	t.Parallel()
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_AUTH_ENABLED=false", "PURSER_HTTP_ALLOWED_HOSTS=registry.example.com",
		"PURSER_HTTP_EXTERNAL_URL=https://outer.example:443"))
	page := []string{"Host", "evil.example", "Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"}
	for _, r := range [][3]string{
		{"PUT", s.Registry + "/v2/app/manifests/v1", "{}"}, {"POST", s.Registry + "/v2/app/blobs/uploads/", ""},
		{"GET", s.Registry + "/v2/_catalog", ""}, {"DELETE", s.Registry + "/api/v1/organization/app", ""},
		{"POST", s.Registry + "/api/v1/gc/run", "{}"}, {"GET", s.Registry + "/api/v1/openapi.json", ""},
		{"GET", s.Debug + "/debug/pprof/heap", ""}, {"GET", s.Debug + "/debug/pprof/cmdline", ""},
		{"GET", s.Debug + "/metrics", ""}, {"GET", s.Debug + "/healthz", ""}, {"GET", s.Debug + "/readyz", ""},
	} {
		code, text := askAs(t, r[0], r[1], r[2], page...)
		if code != 421 || !strings.Contains(text, "evil.example") || !strings.Contains(text, "http.allowed_hosts") {
			t.Errorf("%s %s under a foreign name: %d %.200s, want 421 with the way out", r[0], r[1], code, text)
		}
	}
	for _, name := range []string{"localhost", "LOCALHOST:1", "app.localhost:5000", "127.0.0.2", "[::1]:80", "registry.example.com", "outer.example"} {
		for _, url := range []string{s.Registry + "/v2/", s.Registry + "/api/v1/openapi.json", s.Debug + "/healthz", s.Debug + "/debug/pprof/cmdline"} {
			if code, text := askAs(t, "GET", url, "", "Host", name); code != 200 {
				t.Errorf("%s under %s: %d %.200s, want 200", url, name, code, text)
			}
		}
	}
	for _, site := range []string{"cross-site", "same-site"} {
		if code, _ := askAs(t, "GET", s.Debug+"/debug/pprof/cmdline", "", "Sec-Fetch-Site", site); code != 403 {
			t.Errorf("a page of another site takes a profile: %d, want 403", code)
		}
		if code, _ := askAs(t, "POST", s.Registry+"/v2/app/blobs/uploads/", "", "Sec-Fetch-Site", site); code != 403 {
			t.Errorf("a page of another site begins an upload: %d, want 403", code)
		}
	}
	if code, text := askAs(t, "POST", s.Registry+"/v2/app/blobs/uploads/", "", "Sec-Fetch-Site", "cross-site", "Origin", "https://outer.example"); code != 202 {
		t.Errorf("a page of the external URL begins an upload: %d %s, want 202", code, text)
	}
}

// TestServeApart: metrics can be served to other machines, while profiles and the registry
// are served on loopback only.
func TestServeApart(t *testing.T) {
	t.Parallel()
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_HTTP_PROFILE_ADDR=localhost:0")
	if err := cfg.Set("http.debug_addr", "0.0.0.0:0", "test"); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s := start(t, cfg)
	if s.Profiles == "" {
		t.Fatal("it isn't told where profiles are")
	}
	for url, want := range map[string]int{
		s.Debug + "/metrics": 200, s.Debug + "/healthz": 200, s.Debug + "/readyz": 200, s.Debug + "/debug/pprof/heap": 404,
		s.Profiles + "/debug/pprof/cmdline": 200, s.Profiles + "/metrics": 404, s.Profiles + "/readyz": 404,
		s.Registry + "/v2/": 200, s.Registry + "/metrics": 404, s.Registry + "/debug/pprof/": 404,
	} {
		if code, text := get(t, url); code != want {
			t.Errorf("%s: %d %.200s, want %d", url, code, text, want)
		}
	}
	if _, text := get(t, s.Debug+"/readyz"); text != "ok\n" {
		t.Errorf("/readyz tells other machines %q", text)
	}
	if _, text := get(t, s.Debug+"/debug/pprof/"); !strings.Contains(text, "http.profile_addr") {
		t.Errorf("who looks for profiles is told %q", text)
	}
	// Metrics are served under any host name, since Prometheus may use any.
	if code, _ := askAs(t, "GET", s.Debug+"/metrics", "", "Host", "metrics.example.com"); code != 200 {
		t.Errorf("/metrics under another name: %d, want 200", code)
	}
	for _, url := range []string{s.Profiles + "/debug/pprof/heap", s.Registry + "/v2/"} {
		if code, _ := askAs(t, "GET", url, "", "Host", "evil.example"); code != 421 {
			t.Errorf("%s under another name: %d, want 421", url, code)
		}
	}
}
