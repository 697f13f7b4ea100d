package purser_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRaceDetector: "make test" tests a package that starts goroutines with the race detector.
// The file tools/race lists these packages, each once.
func TestRaceDetector(t *testing.T) {
	t.Parallel()
	listed := racePackages(t)
	for path, r := range layers {
		if listed[path] || r.testing || path == "" || strings.HasPrefix(path, "bench") {
			continue // what tests use runs in the tests of other packages; the benchmarks aren't shipped
		}
		if at := startsGoroutine(t, path); at != "" {
			t.Errorf("%s starts a goroutine, but its package isn't in tools/race: add %s", at, path)
		}
	}
}

func racePackages(t *testing.T) map[string]bool {
	f, err := os.Open("tools/race")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		path, _, _ := strings.Cut(lines.Text(), "#")
		if path = strings.TrimSpace(path); path == "" {
			continue
		}
		if list[path] {
			t.Errorf("tools/race lists %s twice", path)
		}
		list[path] = true
	}
	if lines.Err() != nil || len(list) == 0 {
		t.Fatalf("tools/race: %d packages, %v", len(list), lines.Err())
	}
	return list
}

// startsGoroutine returns where the package in the directory dir has a go statement, or calls
// the method Go of a group, outside of its tests; "" if nowhere.
func startsGoroutine(t *testing.T, dir string) (at string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				at = set.Position(n.Pos()).String()
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" {
					at = set.Position(n.Pos()).String()
				}
			}
			return at == ""
		})
	}
	return at
}
