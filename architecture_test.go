package purser_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitecture: ARCHITECTURE.md names each package and each table, and what it links to exists.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	page := readPage(t, "ARCHITECTURE.md")
	for path, r := range layers {
		part := strings.HasPrefix(path, "bench/") || strings.HasPrefix(path, "loosefk/internal/")
		if path != "" && !part && !r.testing && !strings.Contains(path, "test") && !strings.Contains(page, "`"+path+"`") {
			t.Errorf("ARCHITECTURE.md doesn't say what the package %s does", path)
		}
	}
	tables := 0
	for _, pattern := range []string{"internal/db/migrations/*.sql", "internal/db/stats/*.sql"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, m := range regexp.MustCompile(`(?m)^CREATE (?:UNLOGGED )?TABLE (\w+)`).FindAllStringSubmatch(readPage(t, file), -1) {
				if tables++; !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(page) {
					t.Errorf("the picture in ARCHITECTURE.md lacks the table %s", m[1])
				}
			}
		}
	}
	if tables < 50 {
		t.Fatalf("the migrations create %d tables; they should create all", tables)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllStringSubmatch(page, -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("ARCHITECTURE.md links to what doesn't exist: %v", err)
		}
	}
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
