package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

var update = flag.Bool("update", false, "write testdata/surface.txt anew")

// TestSurface lists what users, scripts and dashboards rely on: routes, commands with their
// flags, settings, metrics, tables, functions and triggers. The list must equal
// testdata/surface.txt; after a wanted change, run the test with -update, so that a
// reviewer sees the change.
func TestSurface(t *testing.T) {
	t.Parallel()
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t)))
	var lines []string
	lines = append(lines, surfaceOfDistribution(t)...)
	lines = append(lines, surfaceOfManagement(t, s.Registry)...)
	lines = append(lines, surfaceOfCommands(newRoot(new(command.Source)))...)
	lines = append(lines, surfaceOfSettings(t)...)
	lines = append(lines, surfaceOfDatabase(t, dbtest.DSN(t))...)
	slices.Sort(lines)
	got := strings.Join(slices.Compact(lines), "\n") + "\n"

	file := filepath.Join("testdata", "surface.txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	is, was := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("new: %s", line)
		}
	}
	if t.Failed() {
		t.Log("if that is intended: go test ./cmd/purser -run TestSurface -update")
	}
}

// surfaceOfDistribution returns the routes below /v2/ and the metrics. It finds them as
// string literals in the source, since /metrics doesn't show a metric that has no values
// yet.
func surfaceOfDistribution(t *testing.T) []string {
	t.Helper()
	var lines []string
	metric, route := regexp.MustCompile(`^purser_[a-z_]+$`), regexp.MustCompile(`^/v2/(\{name\}/|_catalog)[^ ?]*$`)
	sourceLiterals(t, func(text string) {
		switch {
		case metric.MatchString(text):
			lines = append(lines, "metric or function "+text)
		case route.MatchString(text):
			lines = append(lines, "route "+text)
		}
	})
	return lines
}

// sourceLiterals calls `f` with each string literal of the Go source, tests excluded.
func sourceLiterals(t *testing.T, f func(text string)) {
	t.Helper()
	for _, dir := range []string{"cmd", "internal", "loosefk"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil {
						f(text)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func surfaceOfManagement(t *testing.T, registry string) []string {
	t.Helper()
	status, text := askAs(t, http.MethodGet, registry+"/api/v1/openapi.json", "")
	if status != http.StatusOK {
		t.Fatalf("the API's document: %d %s", status, text)
	}
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
			Access     string `json:"x-access"`
		}
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for path, operations := range document.Paths {
		for method, o := range operations {
			line := fmt.Sprintf("API %s %s (%s)", path, strings.ToUpper(method), o.Access)
			for _, p := range o.Parameters {
				line += " " + p.In + ":" + p.Name
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func surfaceOfCommands(c *cobra.Command) []string {
	line := "command " + c.CommandPath()
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { line += " --" + f.Name })
	lines := []string{line}
	for _, child := range c.Commands() {
		if child.Hidden { // only purser itself uses it
			continue
		}
		lines = append(lines, surfaceOfCommands(child)...)
	}
	return lines
}

// surfaceOfSettings returns the settings from the table in docs/configuration.md. Another
// test checks that this table has exactly the settings of the code.
func surfaceOfSettings(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| `(PURSER_[A-Z0-9_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, "setting "+row[1]+" "+row[2])
	}
	return lines
}

func surfaceOfDatabase(t *testing.T, dsn string) []string {
	t.Helper()
	d := dbtest.Open(t, dsn)
	rows, err := d.Pool.Query(t.Context(), `
		SELECT 'table ' || c.relname || ' (' || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) || ')'
		FROM pg_class c
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
		GROUP BY c.oid, c.relname
		UNION ALL
		SELECT 'function ' || p.oid::regprocedure || ' returns ' || pg_get_function_result(p.oid)
		FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prokind = 'f'
		UNION ALL
		SELECT 'trigger ' || t.tgname || ' on ' || c.relname || ' calls ' || p.proname
		FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal AND NOT c.relispartition`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
