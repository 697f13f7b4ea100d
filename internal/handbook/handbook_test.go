package handbook_test

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/docs"
	"github.com/purser-registry/purser/internal/handbook"
)

var (
	linkIn   = regexp.MustCompile(`href="([^"]*)"`)
	anchorIn = regexp.MustCompile(` id="([^"]*)"`)
)

// TestPages: every file is a page, every link in one leads to a page and a heading that exist, and
// none to a file that only the source has. No page has a style or a script of its own, which the UI's
// policy forbids.
func TestPages(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(docs.Pages, "*.md")
	if err != nil {
		t.Fatal(err)
	}
	names := handbook.Names()
	if len(names) != len(files) {
		t.Errorf("%d pages of %d files", len(names), len(files))
	}
	anchors := make(map[string]map[string]bool)
	for _, name := range names {
		p := handbook.Get(name)
		anchors[p.Path()] = map[string]bool{"": true}
		for _, found := range anchorIn.FindAllStringSubmatch(string(p.HTML), -1) {
			if anchors[p.Path()][found[1]] {
				t.Errorf("%s has the anchor %q twice", name, found[1])
			}
			anchors[p.Path()][found[1]] = true
		}
		for _, h := range p.Headings {
			if !anchors[p.Path()][h.Anchor] {
				t.Errorf("%s: the table of contents leads to %q, which isn't there", name, h.Anchor)
			}
		}
	}
	links := 0
	for _, name := range names {
		p := handbook.Get(name)
		for _, found := range linkIn.FindAllStringSubmatch(string(p.HTML), -1) {
			to, fragment, _ := strings.Cut(found[1], "#")
			if strings.HasPrefix(to, "https://") || strings.HasPrefix(to, "http://") {
				continue
			}
			links++
			if to == "" {
				to = p.Path()
			}
			if there, ok := anchors[to]; !ok || !there[fragment] {
				t.Errorf("%s links to %q, which isn't there", name, found[1])
			}
		}
		for _, forbidden := range []string{"style=", "<script", "<style", "onclick", "raw HTML omitted"} {
			if strings.Contains(string(p.HTML), forbidden) {
				t.Errorf("%s has %q", name, forbidden)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links between pages", links)
	}
	if handbook.Get("no-such-page") != nil {
		t.Error("there is a page of any name")
	}
}

// TestSearch: a search finds the places that have all of its words, those with the words in the
// heading first, and shows the words.
func TestSearch(t *testing.T) {
	t.Parallel()
	hits := handbook.Search("behind a PROXY nginx")
	if len(hits) == 0 || !strings.Contains(hits[0].Heading, "nginx") {
		t.Fatalf("the first place is %+v", hits)
	}
	marked := 0
	for _, part := range hits[0].Text {
		if part.Found {
			marked++
		}
	}
	if marked == 0 || marked > 6 { // "a" is no word to look for beside others
		t.Errorf("%d words are marked in %+v", marked, hits[0].Text)
	}
	for _, text := range []string{"", "  ", "zzzyx", "proxy zzzyx", strings.Repeat("a ", 1000) + "zzzyx"} {
		if hits := handbook.Search(text); text != strings.Repeat("a ", 1000)+"zzzyx" && len(hits) != 0 || len(hits) > 30 {
			t.Errorf("%.20q finds %d places", text, len(hits))
		}
	}
	for _, odd := range []string{"İ", "ß%_\\", "\x00", "<script>"} { // no text is a pattern
		handbook.Search(odd)
	}
}
