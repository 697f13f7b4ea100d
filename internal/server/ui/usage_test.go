package ui_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/usage"
)

// TestUsagePage: operators see what is stored, by namespace and repository, with links to what exists; others
// see nothing of it, since it says what namespaces share.
func TestUsagePage(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root := s.as("root")
	root.open(t, "/ui/usage", "measured yet")
	s.as("ann").Do(t, "GET", "/ui/usage", "").WantStatus(t, 403)
	lacks(t, s.as("ann").open(t, "/ui/"), "/ui/usage")

	m, err := usage.New(usage.Options{DB: s.DB})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = m.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	page := root.open(t, "/ui/usage", "In no repository", "just now", `<a href="/ui/namespaces/acme/-/usage">acme</a>`, `<a href="/ui/repositories/acme/app?sort=-size">acme/app</a>`,
		`aria-label="acme: `, `aria-label="acme/app: `, "Bytes by namespace", "Stored bytes by day", `href="/ui/usage" aria-current="page"`)
	lacks(t, page, "measured yet", "NaN", "style=")
	own := root.open(t, "/ui/namespaces/acme/-/usage", "no other namespace has it", "just now", `aria-label="acme/app: `,
		`<a href="/ui/repositories/acme/app?sort=-size">acme/app</a>`, "Stored bytes by day", `href="/ui/namespaces/acme/-/usage" aria-current="page"`)
	lacks(t, own, "NaN", "style=")
	lacks(t, s.as("ann").open(t, "/ui/namespaces/acme/-/usage", "acme/app"), "no other namespace")
	s.as("bob").Do(t, "GET", "/ui/namespaces/acme/-/usage", "").WantStatus(t, 403)
	if n := strings.Count(page, `class="tile`); n < 4 {
		t.Errorf("%d tiles, want at least those of two namespaces and two repositories", n)
	}
	if _, err := s.DB.Pool.Exec(t.Context(), "DELETE FROM usage_registry_days"); err != nil {
		t.Fatal(err)
	}
	lacks(t, root.open(t, "/ui/usage", "In no repository"), "Stored bytes by day")
}
