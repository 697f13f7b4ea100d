package command

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestTableFitsTerminal: no line of a table is longer than the terminal is wide, the name stays whole as
// long as other columns can be clipped, and without a terminal nothing is clipped.
func TestTableFitsTerminal(t *testing.T) {
	t.Parallel()
	lines := [][]string{{"NAME", "URL", "STATE", "TITLE"},
		{"5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b", "https://hooks.example.com/" + strings.Repeat("x", 90), "enabled", "Größe der Bilder, in Worten"},
		{"a", "b", "-", "d"}}
	for _, width := range []int{80, 100, 200, 60} {
		var out strings.Builder
		if err := writeTable(&out, lines, width); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%d of %d characters: %s", n, width, line)
			}
		}
		if !utf8.ValidString(out.String()) || (width >= 80) != strings.Contains(out.String(), lines[1][0]) {
			t.Errorf("%d characters:\n%s", width, out.String())
		}
	}
	var out strings.Builder
	digests := [][]string{{"TAG", "DIGEST", "PUSHED"}, {strings.Repeat("t", 30), "sha256:0bc358bc4b45", "2026-11-30 22:33:32"}}
	if err := writeTable(&out, digests, 40); err != nil || !strings.Contains(out.String(), "  sha256:0bc358…  2026-11…") {
		t.Errorf("%v: a digest is clipped to less than commands take:\n%s", err, out.String())
	}
	out.Reset()
	if err := Table(&out, lines[0], [][]string{lines[1], {"a", "", "b\x1b[2J", "d"}}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, lines[1][1]) || strings.Contains(text, "…") || strings.Contains(text, "\x1b") || !strings.Contains(text, "  -  ") {
		t.Errorf("without a terminal:\n%s", text)
	}
}
