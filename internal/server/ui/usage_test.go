package ui_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/db"
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

	measure(t, s.DB)
	page := root.open(t, "/ui/usage", "In no repository", "just now", `<a href="/ui/namespaces/acme/-/usage">acme</a>`, `<a href="/ui/repositories/acme/app?sort=-size">acme/app</a>`,
		`<title>acme: `, `<title>acme/app: `, "Bytes by namespace", "Stored bytes by day", "Freed by garbage collection", "0 B in 30 days", `href="/ui/usage" aria-current="page"`)
	lacks(t, page, "measured yet", "NaN", "style=")
	if _, err := s.DB.Pool.Exec(t.Context(), `
		INSERT INTO gc_activity (minute, manifests_reviewed, manifests_deleted, blobs_reviewed, blobs_deleted, objects_swept, bytes_swept)
		SELECT date_trunc('minute', now()) - d, 0, 0, 1, 1, 1, 1024 FROM unnest(ARRAY['0', '3 days', '31 days']::interval[]) d`); err != nil {
		t.Fatal(err)
	}
	root.open(t, "/ui/usage", "2.0 KiB in 30 days")
	own := root.open(t, "/ui/namespaces/acme/-/usage", "no other namespace has it", "just now", `<title>acme/app: `,
		`<a href="/ui/repositories/acme/app?sort=-size">acme/app</a>`, "Stored bytes by day", `href="/ui/namespaces/acme/-/usage" aria-current="page"`)
	lacks(t, own, "NaN", "style=", "Tags deleted")
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

// TestUsagePageShowsPruning: the page of a namespace's storage shows what policies deleted there, by day.
func TestUsagePageShowsPruning(t *testing.T) {
	t.Parallel()
	s := setupPruned(t)
	s.Put(t, "acme/app", "v1", s.Simple(t, "acme/app", 1, nil))
	measure(t, s.DB)
	if _, err := s.DB.Pool.Exec(t.Context(), `
		INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at, deleted, restored)
		SELECT gen_random_uuid(), id, name, 'success', now() - interval '2 days', now(), 5, 2 FROM top_level_namespaces`); err != nil {
		t.Fatal(err)
	}
	if page := s.page(t, 200, "/ui/namespaces/acme/-/usage"); !strings.Contains(page, "Tags deleted by policies") || !strings.Contains(page, "3 tags in 30 days") {
		t.Errorf("the page lacks what was pruned: %s", page)
	}
}

// measure measures what the registry stores.
func measure(t *testing.T, d *db.DB) {
	t.Helper()
	m, err := usage.New(usage.Options{DB: d})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = m.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
