package catalog

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestRefusals compares the reasons that SQL statements pass to purser_refuse with the
// constants of the type refusal. Each reason must be a constant, and each constant must occur
// as a reason.
func TestRefusals(t *testing.T) {
	t.Parallel()
	given, known := found(t, `purser_refuse\('([^']*)'\)`), found(t, `\brefusal += "(.*)"`)
	for _, reason := range given {
		if !slices.Contains(known, reason) {
			t.Errorf("no constant is %q", reason)
		}
	}
	for _, reason := range known {
		if !slices.Contains(given, reason) {
			t.Errorf("no statement refuses with %q", reason)
		}
	}
	if calls := found(t, `(purser_refuse\([^']\S*)`); len(calls) > 0 {
		t.Errorf("reasons that aren't literals: %q", calls)
	}
}

// found searches the package's code, without tests, for the regular expression `pattern`, and
// returns the texts that its group ( ) has matched, sorted and without duplicates.
func found(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob("*.*")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, name := range files {
		if match, _ := filepath.Match("*_test.go", name); match {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
