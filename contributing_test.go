package purser_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestHowToAddNamesFiles: the files that "How to add…" in CONTRIBUTING.md names exist.
func TestHowToAddNamesFiles(t *testing.T) {
	t.Parallel()
	_, part, _ := strings.Cut(readPage(t, "CONTRIBUTING.md"), "\n## How to add…\n")
	part, _, _ = strings.Cut(part, "\n## ")
	names := regexp.MustCompile("`([\\w./-]+\\.(?:go|sql|md|html|css|json|yaml|txt))`").FindAllStringSubmatch(part, -1)
	if len(names) < 50 {
		t.Fatalf("the table names %d files; it should name all that an addition needs", len(names))
	}
	var files []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		files = append(files, "/"+filepath.ToSlash(path))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(files, "\n") + "\n"
	for _, m := range names {
		if !strings.Contains(all, "/"+m[1]+"\n") {
			t.Errorf("CONTRIBUTING.md names %s, which doesn't exist", m[1])
		}
	}
}
