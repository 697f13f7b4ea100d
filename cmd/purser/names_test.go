package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestMetricsNameNothing: metrics that other machines reach name no namespace and no account,
// unless an administrator of the registry has logged in. On this machine they do.
func TestMetricsNameNothing(t *testing.T) {
	t.Parallel()
	const password = "correct horse battery staple"
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_AUTH_ENABLED=true", "PURSER_AUTH_INITIAL_PASSWORD="+password,
		"PURSER_HTTP_DEBUG_ADDR=0.0.0.0:0")
	s := start(t, cfg)
	log := func(account, password string) []string {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth(account, password)
		return []string{"Authorization", r.Header.Get("Authorization"), "Content-Type", "application/json"}
	}
	admin := log("admin", password)
	const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`
	push := append(log("admin", password)[:2:2], "Content-Type", "application/vnd.oci.image.index.v1+json")
	for _, r := range [][3]string{
		{"PUT", s.Registry + "/v2/hidden/app/manifests/v1", manifest},
		{"GET", s.Registry + "/v2/hidden/app/manifests/v1", ""},
		{"POST", s.Registry + "/api/v1/superuser/users", `{"username": "ann", "password": "` + password + `"}`},
	} {
		headers := admin
		if r[0] == "PUT" {
			headers = push
		}
		if status, text := askAs(t, r[0], r[1], r[2], headers...); status >= 300 {
			t.Fatalf("%s %s: %d %s", r[0], r[1], status, text)
		}
	}
	metrics := s.Debug + "/metrics"
	if status, text := askAs(t, "GET", metrics, ""); status != 200 || !strings.Contains(text, "purser_pulls_total 1") || strings.Contains(text, "hidden") {
		t.Errorf("without a log-in: %d\n%s", status, text)
	}
	if status, text := askAs(t, "GET", metrics, "", admin...); status != 200 || !strings.Contains(text, `purser_pulls_total{namespace="hidden"} 1`) {
		t.Errorf("as administrator: %d\n%s", status, text)
	}
	for _, c := range []struct {
		account, password string
		want              int
	}{{"admin", "wrong password", 401}, {"nobody", "wrong password", 401}, {"ann", password, 403}} {
		if status, text := askAs(t, "GET", metrics, "", log(c.account, c.password)...); status != c.want || strings.Contains(text, "purser_") {
			t.Errorf("%s with %q: %d %s, want %d", c.account, c.password, status, text, c.want)
		}
	}
}
