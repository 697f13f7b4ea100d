package browse

import (
	"slices"
	"strings"
	"testing"
)

// TestPick lists the words that contain "1", page by page. The query for each page reads only
// a few words. All pages together must have each word that contains "1" once and in order.
func TestPick(t *testing.T) {
	t.Parallel()
	all := strings.Fields("a1 b c1 d e f g1 h i j1 k l1 m1 n o p")
	selects := func(s string) bool { return strings.Contains(s, "1") }
	want := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !selects(s) })
	for looked := 1; looked <= len(all)+1; looked++ {
		for n := 1; n <= len(want)+1; n++ {
			var got []string
			for from := 0; ; {
				found := all[from:min(from+looked, len(all))]
				page, next := pick(found, selects, 0, n, looked)
				if len(page) > n {
					t.Fatalf("a page of %d, at most %d", len(page), n)
				}
				if got = append(got, page...); next == nil {
					break
				}
				from = slices.Index(all, *next) + 1
			}
			if !slices.Equal(got, want) {
				t.Fatalf("looking at %d, %d on a page: %q, want %q", looked, n, got, want)
			}
		}
	}
	if page, next := pick(all, selects, 2, 2, len(all)+1); !slices.Equal(page, want[2:4]) || next == nil || *next != "k" {
		t.Errorf("after two: %q %v", page, next)
	}
}
