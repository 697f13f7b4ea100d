package client

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/upstream"
)

// TestCopyLimits expects that --limit sets what it names, and that the documentation has the limits
// with their defaults.
func TestCopyLimits(t *testing.T) {
	t.Parallel()
	var l upstream.Limits
	f := &limitsFlag{&l}
	for _, text := range []string{"pages=1", "names=2", "list=3KiB", "depth=4", "manifests=5", "blob=6GiB", "redirects=7", "silence=8s", "rate=9B"} {
		if err := f.Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	want := upstream.Limits{Pages: 1, Names: 2, ListBytes: 3 << 10, Depth: 4, Manifests: 5, BlobBytes: 6 << 30, Redirects: 7, Silence: 8 * time.Second, Rate: 9}
	if l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	for _, text := range []string{"", "pages", "pages=", "pages=0", "pages=-1", "list=0", "list=much", "silence=0s", "silence=1000h", "rate=0", "nothing=1"} {
		if err := f.Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	docs, err := os.ReadFile("../../../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range copyLimits {
		if !strings.Contains(string(docs), "| `"+c.name+"` | "+c.of) || !strings.Contains(string(docs), "| "+c.text(upstream.Limits{}.WithDefaults())+" |") {
			t.Errorf("docs/migrating.md has no %s with its default", c.name)
		}
	}
}
