package purser_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`\b(?:purser|loose_foreign_key)_[a-z0-9_]+`)

// metricsInCode returns the text of all Go files that aren't tests, in which the names of metrics
// are.
func metricsInCode(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		text.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// knowsMetrics fails the test if an expression of a file names a metric that doesn't exist.
func knowsMetrics(t *testing.T, code, file, expression string) {
	t.Helper()
	names := metricName.FindAllString(expression, -1)
	if len(names) == 0 && !strings.Contains(expression, `up{job="purser"}`) { // which Prometheus has by itself
		t.Errorf("%s: no metric in %q", file, expression)
	}
	for _, name := range names {
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			name = strings.TrimSuffix(name, suffix)
		}
		if family, found := strings.CutPrefix(name, "purser_db_pool_"); found { // named in parts
			name = family
		}
		if !strings.Contains(code, `"`+name+`"`) {
			t.Errorf("%s: no metric is called %s", file, name)
		}
	}
}

// TestAlerts: alerts name metrics that exist, and docs/operations.md says what each means.
func TestAlerts(t *testing.T) {
	const file = "deploy/prometheus/alerts.yaml"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(content)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	manual, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	code, known := metricsInCode(t), map[string]bool{}
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			known[r.Alert] = true
			knowsMetrics(t, code, file+": "+r.Alert, r.Expr)
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["runbook"] != "docs/operations.md#"+strings.ToLower(r.Alert) {
				t.Errorf("%s lacks a severity, a summary or its place in the documentation: %+v", r.Alert, r)
			}
			if !strings.Contains(string(manual), "\n#### "+r.Alert+"\n") {
				t.Errorf("docs/operations.md says nothing of %s", r.Alert)
			}
		}
	}
	if len(known) < 10 {
		t.Errorf("%d alerts", len(known))
	}
	for _, m := range regexp.MustCompile(`(?m)^#### (Purser\w+)$`).FindAllStringSubmatch(string(manual), -1) {
		if !known[m[1]] {
			t.Errorf("docs/operations.md describes %s, which is no alert", m[1])
		}
	}
}

// TestWorkersAreInAlerts: each worker of the registry is in some alert. The loop of package worker tells
// when it last succeeded, if it has metrics, and one alert watches all of these; the worker of loose
// foreign keys has metrics of its own.
func TestWorkersAreInAlerts(t *testing.T) {
	content, err := os.ReadFile("deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, metric := range []string{"purser_worker_last_success_timestamp_seconds", "purser_redis_up", "loose_foreign_key_run_failures_total", "loose_foreign_key_oldest_pending_seconds"} {
		if !strings.Contains(string(content), metric) {
			t.Errorf("no alert has %s", metric)
		}
	}
	workers := 0
	for _, dir := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				options, ok := n.(*ast.CompositeLit)
				if ok && isSelector(options.Type, "worker", "Options") {
					workers++
					if !slices.ContainsFunc(options.Elts, func(e ast.Expr) bool {
						kv, ok := e.(*ast.KeyValueExpr)
						return ok && fmt.Sprint(kv.Key) == "Metrics" && fmt.Sprint(kv.Value) != "nil"
					}) {
						t.Errorf("%s: a worker without metrics is in no alert", path)
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
	if workers < 25 {
		t.Errorf("%d workers were found", workers)
	}
}

// isSelector says whether an expression is a name of a package.
func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && s.Sel.Name == name && fmt.Sprint(s.X) == pkg
}

// TestDashboard: the dashboard's queries name metrics that exist.
func TestDashboard(t *testing.T) {
	const file = "deploy/grafana/purser.json"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	code, queries := metricsInCode(t), 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			knowsMetrics(t, code, file+": "+p.Title, target.Expr)
			queries++
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
}
