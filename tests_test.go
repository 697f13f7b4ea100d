package purser_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the list of tests in CONTRIBUTING.md")

// The lines of CONTRIBUTING.md between which the tests stand that only "make test-all" runs.
const (
	listBegin = "<!-- tests that only make test-all runs: \"go test . -run TestContributing -update\" writes this list -->"
	listEnd   = "<!-- end of the list -->"
)

// TestContributing: CONTRIBUTING.md says of each test that "make test" doesn't run that "make
// test-all" does, so that no test is forgotten between the two.
func TestContributing(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(text, []byte(listBegin))
	list, after, ok2 := bytes.Cut(rest, []byte(listEnd))
	if !ok || !ok2 {
		t.Fatalf("CONTRIBUTING.md lacks the line %q or %q", listBegin, listEnd)
	}
	want := "\n\n| file | tests |\n|---|---|\n" + strings.Join(testsOfTestAll(t), "") + "\n"
	if string(list) == want {
		return
	}
	if !*update {
		t.Fatalf("the list isn't up to date: go test . -run TestContributing -update\n%s", want)
	}
	text = slices.Concat(before, []byte(listBegin), []byte(want), []byte(listEnd), after)
	if err := os.WriteFile("CONTRIBUTING.md", text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPropertiesHaveExamples: a package that tests properties with rapid lets internal/testscale say with
// how many examples. Otherwise it tries rapid's own number in both runs.
func TestPropertiesHaveExamples(t *testing.T) {
	t.Parallel()
	properties, scaled := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if dir := filepath.Dir(path); dir != "." { // this file names both
			properties[dir] = properties[dir] || bytes.Contains(text, []byte("\t\"pgregory.net/rapid\"\n"))
			scaled[dir] = scaled[dir] || bytes.Contains(text, []byte("\ttestscale.Properties()\n"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	for dir, has := range properties {
		if !has {
			continue
		}
		if tested++; !scaled[dir] {
			t.Errorf("%s tests properties: its TestMain has to call testscale.Properties", dir)
		}
	}
	if tested == 0 {
		t.Error("no package tests properties")
	}
}

// testsOfTestAll returns a row of the table for each file with tests that "make test" doesn't
// build.
func testsOfTestAll(t *testing.T) (rows []string) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".":
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !onlyInTestAll(t, path, f) {
			return nil
		}
		var names []string
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && isTest(f.Name.Name) {
				names = append(names, "`"+f.Name.Name+"`")
			}
		}
		if len(names) > 0 {
			rows = append(rows, fmt.Sprintf("| `%s` | %s |\n", path, strings.Join(names, ", ")))
		}
		return nil
	})
	if err != nil || len(rows) == 0 {
		t.Fatalf("%d files with tests, %v", len(rows), err)
	}
	return rows
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz"))
}

// onlyInTestAll says whether a file is built with the tag "all" alone. A file that no run on
// this project's platforms builds is an error.
func onlyInTestAll(t *testing.T, path string, f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() > f.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			built := func(tags ...string) bool {
				return expr.Eval(func(tag string) bool { return slices.Contains(tags, tag) })
			}
			everywhere := []string{"linux", "unix", "darwin", "windows"}
			fast := built(append(everywhere, "race")...) || built(everywhere...) || built()
			if !fast && !built(append(everywhere, "race", "all")...) {
				t.Errorf("%s: neither make test nor make test-all builds it: %s", path, c.Text)
			}
			return !fast
		}
	}
	return false
}
