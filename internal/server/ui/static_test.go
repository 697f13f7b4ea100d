package ui_test

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// Behind one address, the page may come from a replica of another version than the style sheet.
func TestStaticFilesOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t)}
	path := regexp.MustCompile(`/ui/static/[0-9a-f]+/app\.css`).FindString(s.open(t, "/ui/"))
	if path == "" {
		t.Fatal("the page names no style sheet")
	}
	same := s.Do(t, "GET", path, "").WantStatus(t, http.StatusOK)
	other := s.Do(t, "GET", "/ui/static/0123456789abcdef/app.css", "").WantStatus(t, http.StatusOK)
	if string(other.Content) != string(same.Content) || len(same.Content) == 0 {
		t.Error("the style sheet of another version isn't this one's")
	}
	if a, b := same.Header.Get("Cache-Control"), other.Header.Get("Cache-Control"); a != "public, max-age=31536000, immutable" || b != "no-store" {
		t.Errorf("caching of this version's file: %q, of another's: %q", a, b)
	}
	for _, path := range []string{"/ui/static/app.css", "/ui/static/0/1/app.css", "/ui/static/0/other.css", "/ui/static/"} {
		s.Do(t, "GET", path, "").WantStatus(t, http.StatusNotFound)
	}
}
