package ui_test

import (
	"net/url"
	"strings"
	"testing"
)

// TestSearchPage: the box at the top of each page leads to everything that the client may read:
// namespaces, repositories, tags, and digests with the tags that point to them.
func TestSearchPage(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root, ann, bob := s.as("root"), s.as("ann"), s.as("bob")
	digest := root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil)).String()
	search := func(text string) string { return "/ui/search?q=" + url.QueryEscape(text) }
	ann.open(t, "/ui/", `action="/ui/search"`, `data-focus="/"`)
	ann.open(t, "/ui/search", "first digits of a digest")
	ann.open(t, search("acme"), `href="/ui/namespaces/acme"`, `href="/ui/repositories/acme/app"`)
	ann.open(t, search("v1"), `href="/ui/repositories/acme/app/-/tags/v1"`)
	ann.open(t, search(digest[7:15]), `href="/ui/repositories/acme/app/-/manifests/`+digest+`"`, `href="/ui/repositories/acme/app/-/tags/v1">v1</a>`)
	root.open(t, search("other/app:v"), `href="/ui/repositories/other/app/-/tags/v1"`)
	for _, text := range []string{"other", "other/app:v1"} {
		lacks(t, ann.open(t, search(text), "Nothing that you may see"), "/ui/repositories/other")
	}
	bob.open(t, search("acme"), "Nothing that you may see")
	ann.open(t, search("<b>"), "“&lt;b&gt;”")
	ann.open(t, search(strings.Repeat("a", 600)), `role="alert"`, "512", `value="`+strings.Repeat("a", 600))
}
