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

// TestRaceDetector: "make test" tests a package that starts goroutines, by whatever way goroutineIn knows,
// with the race detector. The file tools/race lists these packages, each once.
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

// withoutDetector has files whose goroutines need no tests with the race detector, with the reason.
var withoutDetector = map[string]string{
	"cmd/purser/main.go": "at the first signal it only gives back the signals' default effect; the servers of its tests are in cmd/purser/internal/serve",
}

// startsGoroutine returns where the package in the directory dir begins, outside of its tests, what runs
// beside its caller; "" if nowhere.
func startsGoroutine(t *testing.T, dir string) (at string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || withoutDetector[filepath.ToSlash(name)] != "" {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if n := goroutineIn(f); n != nil {
			return set.Position(n.Pos()).String()
		}
	}
	return ""
}

// goroutineIn returns the first place of a file that starts a goroutine: a go statement, the method Go of
// a group, a function that a timer or the end of a context calls, a worker, or the cache, which has
// goroutines of its own and which many share. It returns nil if there is none.
func goroutineIn(f *ast.File) (at ast.Node) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = n
		case *ast.ImportSpec:
			if strings.HasPrefix(n.Path.Value, `"github.com/maypok86/otter/`) {
				at = n
			}
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			of, _ := s.X.(*ast.Ident)
			switch {
			case s.Sel.Name == "Go",
				of != nil && s.Sel.Name == "AfterFunc" && (of.Name == "time" || of.Name == "context"),
				of != nil && s.Sel.Name == "New" && of.Name == "worker":
				at = n
			}
		}
		return at == nil
	})
	return at
}

// TestGoroutinesAreSeen: each way to start a goroutine that the packages have is seen, and nothing else.
func TestGoroutinesAreSeen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want bool
	}{
		{"func f() { go g() }", true},
		{"func f() { for { defer func() { go g() }() } }", true},
		{"func f() { group.Go(g) }", true},
		{"func f() { x.y.Go(g) }", true},
		{"func f() { stop := time.AfterFunc(d, g); stop() }", true},
		{"func f() { defer context.AfterFunc(ctx, g)() }", true},
		{"func f() { loop = worker.New(worker.Options{Batch: g}) }", true},
		{`import "github.com/maypok86/otter/v2"`, true},
		{"func f() { g(); time.After(d); other.New(x); list.AfterFunc(g); Go() }", false},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+c.text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := goroutineIn(f) != nil; got != c.want {
			t.Errorf("%s: seen %v, want %v", c.text, got, c.want)
		}
	}
}
