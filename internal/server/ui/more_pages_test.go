package ui_test

import (
	"html"
	"regexp"
	"slices"
	"testing"
)

var nextForm = regexp.MustCompile(`href="([^"]+)" rel="next"`)

// walk opens a page and, as long as there is one, the next page of a list. It returns the texts that
// the form finds on them, each once.
func (s site) walk(t *testing.T, path string, form *regexp.Regexp) (found []string) {
	t.Helper()
	for range 20 {
		content := s.open(t, path)
		for _, m := range form.FindAllStringSubmatch(content, -1) {
			found = append(found, m[1])
		}
		next := nextForm.FindAllStringSubmatch(content, -1)
		if next == nil {
			slices.Sort(found)
			return slices.Compact(found)
		}
		path = html.UnescapeString(next[len(next)-1][1]) // those before it are of lists within the list
	}
	t.Fatalf("%s has no end", path)
	return nil
}

// TestPagesShowAll: the lists of the UI are longer than a page. Whoever follows the links to the
// next page sees everything.
func TestPagesShowAll(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root := s.as("root")
	insert := func(sql string) {
		t.Helper()
		if _, err := s.DB.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	insert("INSERT INTO teams (top_level_namespace_id, name) SELECT id, 'many-' || lpad(i::text, 3, '0') FROM top_level_namespaces, generate_series(1, 65) i WHERE name = 'acme'")
	insert("INSERT INTO accounts (name, kind) SELECT 'person-' || lpad(i::text, 3, '0'), 'user' FROM generate_series(1, 250) i")
	insert("INSERT INTO teammembers (team_id, account_id) SELECT t.id, a.id FROM teams t, accounts a WHERE t.name = 'many-001' AND a.name LIKE 'person-%'")
	insert(`INSERT INTO grants (top_level_namespace_id, account_id, role) SELECT n.id, a.id, 'reader'
		FROM top_level_namespaces n, accounts a WHERE n.name = 'acme' AND a.name LIKE 'person-%'`)
	insert("INSERT INTO tagprotectionrules (uuid, namespace_id, pattern) SELECT gen_random_uuid(), id, '^rule' || i FROM top_level_namespaces, generate_series(1, 130) i WHERE name = 'other'")
	insert(`INSERT INTO credentials (id, account_id, kind, title, secret_hash)
		SELECT gen_random_uuid(), id, 'refresh', 'laptop-' || i, decode(md5(i::text), 'hex') FROM accounts, generate_series(1, 130) i WHERE name = 'root'`)
	for _, c := range []struct {
		path, form string
		want       int
	}{
		{"/ui/namespaces/acme/-/teams", `Add to (many-\d+)`, 65},
		{"/ui/namespaces/acme/-/teams?q=many-06", `Add to (many-\d+)`, 6},
		{"/ui/namespaces/acme/-/teams?q=many-001", `name="member" value="(person-\d+)"`, 250},
		{"/ui/namespaces/acme/-/settings", `name="name" value="(person-\d+)"`, 250},
		{"/ui/namespaces/acme/-/settings?q=person-00", `name="name" value="(person-\d+)"`, 9},
		{"/ui/namespaces/other/-/settings", `<code>(\^rule\d+)</code>`, 130},
		{"/ui/account", `(laptop-\d+)`, 130},
	} {
		if found := root.walk(t, c.path, regexp.MustCompile(c.form)); len(found) != c.want {
			t.Errorf("%s: %d are shown, want %d", c.path, len(found), c.want)
		}
	}
}
