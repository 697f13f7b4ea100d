package serve

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestOperatorsThroughAProxy: on a listener on loopback, this machine sees why requests can't succeed, and
// profiles. What a proxy passes on gets neither, by whatever header it shows, unless profiles are allowed
// for everybody; nor does what comes from another machine.
func TestOperatorsThroughAProxy(t *testing.T) {
	t.Parallel()
	ready := newReadiness()
	ready.started(readinessCheck{name: "database", run: func(context.Context) error { return errors.New("no answer from pg1 for secret-user") }})
	for _, c := range []struct {
		remote, header string
		passed         bool
	}{
		{"127.0.0.1:1", "", false}, {"[::1]:1", "", false},
		{"127.0.0.1:1", "X-Forwarded-For", true}, {"127.0.0.1:1", "X-Forwarded-Proto", true}, {"127.0.0.1:1", "Forwarded", true},
		{"127.0.0.1:1", "Via", true}, {"[::1]:1", "X-Real-Ip", true}, {"10.0.0.1:1", "", true},
	} {
		for _, local := range []bool{true, false} {
			for _, everywhere := range []bool{false, true} {
				mux := http.NewServeMux()
				addHealth(mux, ready, local, slog.New(slog.DiscardHandler))
				addProfiles(mux, true, everywhere)
				ask := func(path string) *httptest.ResponseRecorder {
					w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
					if r.RemoteAddr = c.remote; c.header != "" {
						r.Header.Set(c.header, "198.51.100.1")
					}
					mux.ServeHTTP(w, r)
					return w
				}
				told := local && !c.passed
				if w := ask("/readyz"); w.Code != 503 || strings.Contains(w.Body.String(), "secret-user") != told {
					t.Errorf("%+v, local %v: /readyz: %d %q", c, local, w.Code, w.Body)
				}
				status := 200
				if c.passed && !everywhere {
					status = 403
				}
				for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/goroutine"} {
					if w := ask(path); w.Code != status || status == 403 && !strings.Contains(w.Body.String(), "http.allow_profiles") {
						t.Errorf("%+v, everywhere %v: %s: %d %.100q, want %d", c, everywhere, path, w.Code, w.Body, status)
					}
				}
				if w := ask("/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
					t.Errorf("%+v: /healthz: %d %q", c, w.Code, w.Body)
				}
			}
		}
	}
}
