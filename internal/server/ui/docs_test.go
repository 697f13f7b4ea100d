package ui_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestDocs: everybody reads the documentation and finds words in it, also without a log-in. A text to
// look for is shown as text, and bounded.
func TestDocs(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })}
	s.open(t, "/docs/", "<h1>Documentation</h1>", `href="/docs/first-hour"`, `href="/docs/loose-foreign-keys"`)
	s.open(t, "/docs/operations", "<h1>Operations</h1>", `id="upgrades"`, "<li><a href=\"#upgrades\">Upgrades</a></li>")
	s.open(t, "/docs/?q=disk+still+full", `href="/docs/questions#why-is-the-disk-still-full-after-i-deleted-images"`)
	s.open(t, "/docs/?q=trusted_proxies", "<mark>trusted_proxies</mark>")
	s.open(t, "/docs/?q=zzzyx", "No part of the documentation has all of these words.")
	lacks(t, s.open(t, "/docs/?q=%3Cscript%3Ealert(1)%3C/script%3E"), "<script>alert")
	s.Do(t, "GET", "/docs/no-such-page", "").WantStatus(t, http.StatusNotFound)
	s.Do(t, "GET", "/docs/README", "").WantStatus(t, http.StatusNotFound)
	s.Do(t, "GET", "/docs/..%2f..%2fetc%2fpasswd", "").WantStatus(t, http.StatusNotFound)
	s.Do(t, "GET", "/docs/?q="+strings.Repeat("a", 201), "").WantStatus(t, http.StatusBadRequest)
	s.Do(t, "POST", "/docs/", "").WantStatus(t, http.StatusMethodNotAllowed)
	if a := s.Do(t, "GET", "/docs", "").WantStatus(t, http.StatusFound); a.Header.Get("Location") != "/docs/" {
		t.Errorf("/docs leads to %q", a.Header.Get("Location"))
	}
	if a := s.Do(t, "GET", "/docs/", ""); !strings.Contains(a.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the policy of the documentation is %q", a.Header.Get("Content-Security-Policy"))
	}
}
