package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// purser health says whether a server can serve, and ends with 1 if it can't or isn't there.
func TestHealth(t *testing.T) {
	t.Parallel()
	settings := onStore(t, dbtest.DSN(t), t.TempDir())
	s := start(t, servetest.Config(t, settings...))
	debug := append(settings, "PURSER_HTTP_DEBUG_ADDR="+strings.TrimPrefix(s.Debug, "http://"))
	check := func(name string, env []string, want int, text string, args ...string) {
		t.Helper()
		code, stdout, stderr := purser(t, env, append([]string{"health"}, args...)...)
		if code != want || !strings.Contains(stdout+stderr, text) {
			t.Errorf("%s: %d, want %d and %q\n%s%s", name, code, want, text, stdout, stderr)
		}
	}
	check("a server", debug, 0, "pushes: ok")
	check("its registry", nil, 0, "ok", s.Registry)
	check("its registry, with a slash", nil, 0, "ok", s.Registry+"/")
	check("a URL without a scheme", nil, 2, "http://", strings.TrimPrefix(s.Registry, "http://"))
	check("no address", append(settings, "PURSER_HTTP_DEBUG_ADDR="), 1, "http.debug_addr is off")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	check("another server", nil, 1, "not as a registry does", other.URL)
	check("a server that isn't ready", append(settings, "PURSER_HTTP_DEBUG_ADDR="+strings.TrimPrefix(other.URL, "http://")), 1, "status 404")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	check("a server that has stopped", debug, 1, "no server answers")
	check("its registry after that", nil, 1, "no registry answers", s.Registry)
}
