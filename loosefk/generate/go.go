package generate

import (
	"cmp"
	"fmt"
	"go/format"
	goparser "go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/purser-registry/purser/loosefk"
)

// tests plans a test file for each parent, a test file for each child's column, and a file
// with the helpers that these tests share. It plans no file that exists.
func (c *conversion) tests() error {
	if c.Tests == "" || len(c.settled) == 0 {
		return nil
	}
	pkg, err := testPackage(c.Tests)
	if err != nil {
		return err
	}
	shared, call, err := c.sharedTest(pkg)
	if err != nil {
		return err
	}
	if err := c.goFile(sharedTestFile, shared); err != nil {
		return err
	}
	var parents []string
	for _, d := range c.settled {
		if !slices.Contains(parents, d.Parent) {
			parents = append(parents, d.Parent)
			if err := c.goFile(parentTest(d.Parent), call.Replace(fmt.Sprintf(parentTestText, pkg, camel(d.Parent), d.Parent))); err != nil {
				return err
			}
		}
		name, test, parent := childTest(d), camel(d.Child, d.Column), ""
		if slices.ContainsFunc(c.all, func(o loosefk.Definition) bool {
			return o.Child == d.Child && o.Column == d.Column && o.Parent != d.Parent
		}) {
			name, test, parent = childTestOf(d), camel(d.Child, d.Column, d.Parent), fmt.Sprintf(", Parent: %q", d.Parent)
		}
		if err := c.goFile(name, call.Replace(fmt.Sprintf(childTestText, pkg, test, d.Child, d.Column, parent))); err != nil {
			return err
		}
	}
	return nil
}

// sharedTestFile is the file with the helpers that the tests of a directory share.
const sharedTestFile = "loosefk_test.go"

func parentTest(parent string) string { return fileName(parent, "parent_loosefk_test") + ".go" }

func childTest(d loosefk.Definition) string {
	return fileName(d.Child, d.Column, "loosefk_test") + ".go"
}

// childTestOf returns the name of the test file for a child's column that refers to several
// parents.
func childTestOf(d loosefk.Definition) string {
	return fileName(d.Child, d.Column, d.Parent, "loosefk_test") + ".go"
}

// sharedTest returns the text of the file sharedTestFile, whose functions open the
// databases, and a replacer that inserts calls of these functions into the texts of tests.
// The tests get a single connection pool if there is one database and its schema is public;
// otherwise they get all databases.
func (c *conversion) sharedTest(pkg string) (text string, call *strings.Replacer, err error) {
	one := len(c.Databases) == 1 && in(&c.Databases[0]).Schema() == string(loosefk.DefaultSchema)
	if there, err := os.ReadFile(filepath.Join(c.Tests, sharedTestFile)); err == nil {
		one = !strings.Contains(string(there), "func loosefkDatabases(")
	}
	file, err := relative(c.Tests, c.File)
	if err != nil {
		return "", nil, err
	}
	if one {
		return fmt.Sprintf(sharedTestText, pkg, file), strings.NewReplacer("{open}", "pool, defs := loosefkDatabase(t)", "{pool}", "pool", "{in}", ""), nil
	}
	var list strings.Builder
	for i := range c.Databases {
		db := &c.Databases[i]
		variable := "LOOSEFK_TEST_DSN_" + strings.ToUpper(fileName(db.Name))
		fmt.Fprintf(&list, "{Name: %q, Pool: loosefkPool(t, %q), Schema: %q", db.Name, variable, in(db).Schema())
		if len(db.Tables) > 0 {
			fmt.Fprintf(&list, ", Tables: %#v", db.Tables)
		}
		list.WriteString("},\n")
	}
	return fmt.Sprintf(sharedTestsText, pkg, list.String(), file),
		strings.NewReplacer("{open}", "dbs, defs := loosefkDatabases(t)", "{pool}", "nil", "{in}", ", loosefktest.In(dbs)"), nil
}

// goFile plans a file in the directory of tests, unless the file exists.
func (c *conversion) goFile(name, text string) error {
	path := filepath.Join(c.Tests, name)
	if fileExists(path) {
		return nil
	}
	source, err := format.Source([]byte(text))
	if err != nil {
		return fmt.Errorf("making %s: %w", path, err)
	}
	c.plan.Files = append(c.plan.Files, PlannedFile{Path: path, Content: string(source)})
	return nil
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// testPackage returns the package name in a directory's Go files, if possible in its test
// files. If there are no Go files, it makes a package name from the directory's name.
func testPackage(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", fmt.Errorf("looking for tests in %s: %w", dir, err)
	}
	// Look for the package name in sharedTestFile first, which an earlier Convert wrote,
	// then in other test files, then in the remaining Go files.
	slices.SortStableFunc(files, func(a, b string) int {
		rank := func(name string) int {
			switch {
			case filepath.Base(name) == sharedTestFile:
				return 0
			case strings.HasSuffix(name, "_test.go"):
				return 1
			}
			return 2
		}
		return cmp.Compare(rank(a), rank(b))
	})
	for _, name := range files {
		if f, err := goparser.ParseFile(token.NewFileSet(), name, nil, goparser.PackageClauseOnly); err == nil {
			return f.Name.Name, nil
		}
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("looking for tests in %s: %w", dir, err)
	}
	name := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, filepath.Base(path))
	if name == "" || unicode.IsDigit(rune(name[0])) || token.IsKeyword(name) {
		name = "loosefk" + name
	}
	return name, nil
}

// relative returns the path of a file relative to dir, because dir will be the working
// directory of the tests in it.
func relative(dir, file string) (string, error) {
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("looking for tests in %s: %w", dir, err)
	}
	to, err := filepath.Abs(file)
	if err != nil {
		return "", fmt.Errorf("looking for the definitions %s: %w", file, err)
	}
	path, err := filepath.Rel(from, to)
	if err != nil {
		return "", fmt.Errorf("the path from the tests in %s to the definitions: %w", dir, err)
	}
	return filepath.ToSlash(path), nil
}

// camel makes a Go name in camel case from the names of tables and columns.
func camel(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		for word := range strings.SplitSeq(fileName(name), "_") {
			if word != "" {
				b.WriteString(strings.ToUpper(word[:1]) + word[1:])
			}
		}
	}
	return b.String()
}

const sharedTestText = `package %s

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
)

// loosefkDatabase opens the database that LOOSEFK_TEST_DSN leads to, with all
// migrations run, and reads the definitions. Where your tests have a database of
// their own, open that one here.
func loosefkDatabase(t *testing.T) (*pgxpool.Pool, loosefk.Definitions) {
	t.Helper()
	pool := loosefkPool(t, "LOOSEFK_TEST_DSN")
	defs, err := loosefk.Load(%q)
	if err != nil {
		t.Fatal(err)
	}
	return pool, defs
}
` + testPoolText

const sharedTestsText = `package %s

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
)

// loosefkDatabases opens the databases that the environment leads to, with all
// migrations run, and reads the definitions. Where your tests have databases of
// their own, open those here.
func loosefkDatabases(t *testing.T) (loosefk.Databases, loosefk.Definitions) {
	t.Helper()
	dbs := loosefk.Databases{
%s	}
	defs, err := loosefk.Load(%q)
	if err != nil {
		t.Fatal(err)
	}
	return dbs, defs
}
` + testPoolText

const testPoolText = `
func loosefkPool(t *testing.T, variable string) *pgxpool.Pool {
	t.Helper()
	dsn := os.Getenv(variable)
	if dsn == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("%%s is not set: loose foreign keys would go untested", variable)
		}
		t.Skipf("set %%s to a database with all migrations run", variable)
	}
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
`

const parentTestText = `package %s

import (
	"testing"

	"github.com/purser-registry/purser/loosefk/loosefktest"
)

func Test%sHasLooseForeignKeys(t *testing.T) {
	{open}
	loosefktest.HasLooseForeignKeys(t, {pool}, defs, %q{in})
}
`

const childTestText = `package %[1]s

import (
	"testing"

	"github.com/purser-registry/purser/loosefk/loosefktest"
)

func Test%[2]sCleanedUp(t *testing.T) {
	{open}
	loosefktest.CleanedUp(t, {pool}, defs, loosefktest.Child{Table: %[3]q, Column: %[4]q%[5]s}{in})
}
`
