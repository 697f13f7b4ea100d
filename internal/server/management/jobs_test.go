package management_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var updateJobs = flag.Bool("update", false, "write the table of jobs in the documentation")

const (
	jobsFile   = "../../../docs/jobs.md"
	apiPackage = "../../api"
	uiPackage  = "../ui"
	commands   = "../../../cmd/purser/internal/client"
	operating  = "../../../cmd/purser/internal/operate"
)

// uiPages says on which page of the UI a file's operations are.
var uiPages = map[string]string{
	"users.go": "Users", "attention.go": "Overview", "audit.go": "Audit log", "chart.go": "Pulls",
	"changes.go": "Settings", "gc.go": "Garbage collection", "clients.go": "Image", "forecast.go": "Policy", "holds.go": "Holds", "image.go": "Image", "imagetree.go": "Image",
	"namespace.go": "Namespaces", "overview.go": "Overview", "pattern.go": "Tags by a pattern",
	"policies.go": "Policies", "policy_form.go": "Policy", "repositories.go": "Repositories", "repository.go": "Repository",
	"robots.go": "Robots", "runs.go": "Pruning", "search.go": "Search", "settings.go": "Settings", "system.go": "System", "tag.go": "Tag",
	"usage.go": "Storage", "teams.go": "Teams", "webhooks.go": "Webhooks",
}

// noPlace says why an operation has no place in the UI or among the commands.
type noPlace struct{ ui, command string }

// elsewhere are the operations without a place, by the names of their variables.
var elsewhere = map[string]noPlace{
	"AddQuotaLimit":        {"Settings save a quota as a whole", "`purser quota set` saves a quota as a whole"},
	"AggregateLogs":        {command: "the figures of `purser pulls`"},
	"ChangeQuotaLimit":     {"Settings save a quota as a whole", "`purser quota set` saves a quota as a whole"},
	"CheckRuns":            {command: "`purser check` checks in its own process"},
	"DeleteQuotaLimit":     {"Settings save a quota as a whole", "`purser quota set` saves a quota as a whole"},
	"FindImage":            {ui: "the page of an image has it by its digest"},
	"FindShortDigest":      {ui: "the search finds short digests"},
	"FlushPulls":           {ui: "for scripts that read counts at once"},
	"GCRuns":               {command: "`purser gc run` collects in its own process"},
	"GetGCActivity":        {command: "a chart"},
	"GetLooseStatus":       {command: "`purser loosefk status` asks the database"},
	"GetManifestPulls":     {"the image's description has them", "`purser tag list` has those of tags"},
	"GetQuota":             {command: "`purser quota show` reads the namespace's quota"},
	"GetQuotaLimit":        {"part of a quota", "part of a quota"},
	"GetRepositoryPulls":   {"the repository's description has them", "`purser pulls` has them"},
	"GetSystem":            {command: "`purser doctor` and `purser health`"},
	"GetTagPulls":          {"the tag's description has them", "`purser tag show` has them"},
	"GetToken":             {ui: "the list of tokens has all of it"},
	"GetUser":              {ui: "the list of accounts has all of it"},
	"GetTransitiveRole":    {"Members say where a role comes from", "`purser grant list`"},
	"GetUserHistory":       {command: "a chart"},
	"ListCollaborators":    {"of Quay's API", "of Quay's API"},
	"ListNamespaceMembers": {"of Quay's API", "of Quay's API"},
	"ListQuotaLimits":      {"part of a quota", "part of a quota"},
	"ListRepositoryHolds":  {"the page of an image says who holds it", "`purser gc explain` says who holds an image"},
	"ListTopTags":          {ui: "the list of tags is sorted by pulls"},
	"ListWaitingAsks":      {command: "`purser prune asks` lists those of a namespace"},
	"LooseRuns":            {"for operators of databases", "`purser loosefk run` works in its own process"},
	"QueueLogExport":       {"of Quay's API; the page exports at once", "`purser audit export` exports at once"},
	"RecountQuota":         {ui: "never needed unless rows were changed by hand"},
	"ReportHolds":          {ui: "clusters and hosts report by `purser report`"},
	"ResetPullCounts":      {ui: "a step after a restore, which is done by commands"},
	"RotateTokenKeys":      {"for incidents, by the API", "for incidents, by the API"},
}

// withoutVariable are the operations that only answer clients of Quay, and the texts of errors.
var withoutVariable = map[string]bool{"listStarredRepos": true, "createStar": true, "deleteStar": true, "changeUserDetails": true, "getErrorDescription": true}

// frames are files of the UI that make no page by themselves.
var frames = []string{"format.go", "render.go", "request.go", "ui.go", "words.go"}

// job is an operation of the management API with its places.
type job struct {
	id, method, path, summary, tag string
	ui, commands                   []string
	none                           noPlace
}

// TestJobs: each operation of the management API has a place in the UI and one among the commands, or
// a line above that says why not; and the documentation has the table of all of them.
func TestJobs(t *testing.T) {
	r := whole(t)
	jobs := jobsOf(t, r)
	for _, j := range jobs {
		for where, here := range map[string]struct {
			found []string
			why   string
		}{"the UI": {j.ui, j.none.ui}, "the commands": {j.commands, j.none.command}} {
			switch {
			case len(here.found) == 0 && here.why == "":
				t.Errorf("%s (%s %s) has no place in %s: give it one, or say in elsewhere why not", j.id, j.method, j.path, where)
			case len(here.found) > 0 && here.why != "":
				t.Errorf("%s has a place in %s, and elsewhere says why it has none", j.id, where)
			}
		}
	}
	text := jobsTable(jobs)
	if *updateJobs {
		if err := os.WriteFile(jobsFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if there, err := os.ReadFile(jobsFile); err != nil || string(there) != text {
		t.Errorf("%s isn't what the code says (%v): go test ./internal/server/management -run TestJobs -update", jobsFile, err)
	}
}

// jobsOf returns the operations of the OpenAPI document with the places of the variables that describe
// them.
func jobsOf(t *testing.T, r *registry) []job {
	t.Helper()
	var document struct {
		Paths map[string]map[string]struct {
			OperationID, Summary string
			Tags                 []string
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &document)
	variables := operationVariables(t)
	inUI, inCommands := uses(t, uiPackage, uiPages), uses(t, commands, nil)
	for name, files := range uses(t, operating, nil) { // some of these commands ask a registry too
		inCommands[name] = append(inCommands[name], files...)
	}
	used := make(map[string]bool)
	var list []job
	for path, methods := range document.Paths {
		for method, op := range methods {
			if withoutVariable[op.OperationID] {
				continue
			}
			var found []string
			for name, pattern := range variables {
				if pattern.MatchString(op.OperationID) {
					found = append(found, name)
				}
			}
			if len(found) != 1 {
				t.Errorf("%s is described by the variables %q of the package api, and should be by one", op.OperationID, found)
				continue
			}
			variable := found[0]
			used[variable] = true
			list = append(list, job{op.OperationID, strings.ToUpper(method), path, op.Summary, strings.Join(op.Tags, ","),
				inUI[variable], inCommands[variable], elsewhere[variable]})
		}
	}
	for name := range elsewhere {
		if !used[name] {
			t.Errorf("elsewhere has %s, which describes no operation", name)
		}
	}
	slices.SortFunc(list, func(a, b job) int {
		return cmp.Or(cmp.Compare(a.tag, b.tag), cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method))
	})
	return list
}

// groups are the variables that describe several operations.
var groups = map[string]string{
	"UserRoles": `(list|get|change|delete)(Repo|Org)?UserPermissions`, "TeamRoles": `(list|get|change|delete)(Repo|Org)?TeamPermissions`,
}

// operationVariables returns the variables of the package api that describe operations, each with the
// pattern of their ids.
func operationVariables(t *testing.T) map[string]*regexp.Regexp {
	t.Helper()
	found := make(map[string]*regexp.Regexp)
	each(t, apiPackage, func(_ string, f *ast.File) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if len(v.Values) == 1 && v.Names[0].IsExported() {
					if pattern := idPattern(v.Names[0].Name, v.Values[0]); pattern != "" {
						found[v.Names[0].Name] = regexp.MustCompile("^(?:" + pattern + ")$")
					}
				}
			}
		}
	})
	return found
}

// idPattern returns the pattern of the ids of the operations that an expression describes, "" if it
// describes none.
func idPattern(name string, e ast.Expr) string {
	if pattern := groups[name]; pattern != "" {
		return pattern
	}
	id, function := "", ""
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && id == "" && (key.Name == "ID" || key.Name == "name") {
				id = literal(n.Value)
			}
		case *ast.CallExpr:
			if id == "" && len(n.Args) > 0 {
				id, function = literal(n.Args[0]), called(n)
			}
		}
		return true
	})
	switch {
	case id == "":
		return ""
	case function == "trial":
		id += "{Place}AutoPrunePolicy"
	case slices.Contains([]string{"GCRuns", "CheckRuns", "LooseRuns"}, name):
		return `(start|list|get|cancel)` + id + `s?`
	}
	return strings.ReplaceAll(regexp.QuoteMeta(id), `\{Place\}`, `(All|Default|Namespace|Org|Organization|Registry|Repo|Repository|User|)`)
}

func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.IndexListExpr:
		if name, ok := f.X.(*ast.Ident); ok {
			return name.Name
		}
	case *ast.Ident:
		return f.Name
	}
	return ""
}

func literal(e ast.Expr) string {
	if b, ok := e.(*ast.BasicLit); ok && b.Kind == token.STRING {
		text, _ := strconv.Unquote(b.Value)
		return text
	}
	return ""
}

// uses returns where the files below a directory use variables of the package api: the name that a
// file has in `names` or, without names, the command of the file's name.
func uses(t *testing.T, dir string, names map[string]string) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	each(t, dir, func(file string, f *ast.File) {
		name, ok := "`purser "+strings.TrimSuffix(file, ".go")+"`", true
		if names != nil {
			name, ok = names[file]
			if slices.Contains(frames, file) {
				return
			}
		} else {
			command, _, _ := strings.Cut(strings.TrimSuffix(file, ".go"), "_")
			name = "`purser " + cmp.Or(map[string]string{"auditlog": "audit", "checks": "clock", "identify": "completion", "commands": "completion"}[command], command) + "`"
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, isSelector := n.(*ast.SelectorExpr)
			if !isSelector {
				return true
			}
			if x, isIdent := s.X.(*ast.Ident); isIdent && x.Name == "api" && token.IsExported(s.Sel.Name) {
				if !ok {
					t.Errorf("uiPages doesn't say which page %s is", file)
					ok = true
				}
				if !slices.Contains(found[s.Sel.Name], name) && name != "`purser completion`" {
					found[s.Sel.Name] = append(found[s.Sel.Name], name)
				}
			}
			return true
		})
	})
	return found
}

// each parses the files below a directory that aren't tests.
func each(t *testing.T, dir string, do func(file string, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			do(filepath.Base(path), f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// jobsTable returns the page of the documentation.
func jobsTable(jobs []job) string {
	var b strings.Builder
	b.WriteString("# What can be done where\n\nEvery operation of the [management API](api.md), with its page in the [web UI](web-ui.md) and its [command](cli.md). " +
		"A test writes this table from the code.\n")
	byTag := make(map[string][]job)
	for _, j := range jobs {
		byTag[j.tag] = append(byTag[j.tag], j)
	}
	for _, tag := range slices.Sorted(maps.Keys(byTag)) {
		fmt.Fprintf(&b, "\n## %s\n\n| job | UI | command | API |\n|---|---|---|---|\n", strings.ToUpper(tag[:1])+tag[1:])
		for _, j := range byTag[tag] {
			fmt.Fprintf(&b, "| %s | %s | %s | `%s %s` |\n", j.summary, placeText(j.ui, j.none.ui), placeText(j.commands, j.none.command), j.method, j.path)
		}
	}
	return b.String()
}

func placeText(found []string, why string) string {
	if len(found) == 0 {
		return "no: " + why
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}
