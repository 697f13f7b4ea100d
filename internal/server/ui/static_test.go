package ui_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// Behind one address, the page may come from a replica of another version than the style sheet.
func TestStaticFilesOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t)}
	path := regexp.MustCompile(`/ui/static/[0-9a-f]+/app\.css`).FindString(string(s.Do(t, "GET", "/ui/", "").WantStatus(t, http.StatusOK).Content))
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

// TestStyleOfTheFirstPage: a browser without the file of the style sheet gets it in the page, under a policy that
// allows just that; one that has the file of this version gets its name.
func TestStyleOfTheFirstPage(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t)}
	first := s.Do(t, "GET", "/ui/", "").WantStatus(t, http.StatusOK)
	inline := regexp.MustCompile(`(?s)<style data-sheet="(/ui/static/([0-9a-f]+)/app\.css)">(.*)</style>`).FindStringSubmatch(string(first.Content))
	if inline == nil {
		t.Fatal("the first page has no style sheet in itself")
	}
	file := s.Do(t, "GET", inline[1], "").WantStatus(t, http.StatusOK)
	if inline[3] != string(file.Content) {
		t.Error("the page has another style sheet than the file")
	}
	sum := sha256.Sum256([]byte(inline[3]))
	if policy := first.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %s", policy)
	}
	for cookie, named := range map[string]bool{inline[2]: true, "0123456789abcdef": false, "": false} {
		page := string(s.Do(t, "GET", "/ui/", "", "Cookie", "purser_style="+cookie).WantStatus(t, http.StatusOK).Content)
		if strings.Contains(page, `<link rel="stylesheet" href="`+inline[1]+`">`) != named || strings.Contains(page, "<style") == named {
			t.Errorf("with the cookie %q, the page names the file: want %v", cookie, named)
		}
	}
}
