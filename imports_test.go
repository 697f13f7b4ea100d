package purser_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/purser-registry/purser"

// rule says which packages of this module a package may import.
type rule struct {
	// layer is the package's layer. The package may import packages of lower layers (in
	// layer 0: none) and the packages in also.
	layer int
	// also has further packages that may be imported, whatever their layer.
	also []string
	// only says that the package may import nothing of this module but the packages in
	// also.
	only bool
	// testing marks packages that are made for tests. Only tests and other such packages
	// may import them.
	testing bool
}

// layers has the import rule of each package. A package of a low layer can be understood,
// tested and changed without the layers above it. Packages of one layer don't import each
// other, so each is used only through its exported names, and no import cycle can arise.
// Each package gets its settings through its own Options, so only the commands know the
// configuration file and the environment.
var layers = map[string]rule{
	"": {only: true}, // this test
	// The public packages are used without Purser.
	"loosefk/internal/pg":        {only: true},
	"loosefk/internal/installed": {only: true, also: []string{"loosefk/internal/pg"}},
	"loosefk/internal/testdb":    {only: true, testing: true, also: []string{"loosefk/internal/pg"}},
	"loosefk": {only: true, also: []string{"loosefk/internal/pg", "loosefk/internal/installed",
		"loosefk/doctor", "loosefk/generate"}}, // its tests alone use these: both import it
	"loosefk/integrationtest":   {only: true, testing: true, also: []string{"loosefk", "loosefk/generate", "loosefk/internal/testdb", "internal/builtinpg/pgtest", "internal/db/dbtest"}},
	"loosefk/contrib/metrics":   {only: true, also: []string{"loosefk"}},
	"loosefk/contrib/redislock": {only: true, also: []string{"loosefk"}},
	"loosefk/doctor":            {only: true, also: []string{"loosefk", "loosefk/internal/pg", "loosefk/internal/installed"}},
	"loosefk/generate":          {only: true, also: []string{"loosefk", "loosefk/internal/pg", "loosefk/internal/installed"}},
	"loosefk/loosefktest": {only: true, testing: true,
		also: []string{"loosefk", "loosefk/doctor", "loosefk/internal/pg"}},
	"loosefk/contrib/cli": {only: true, // the commands of both tools
		also: []string{"loosefk", "loosefk/doctor", "loosefk/generate"}},
	"tools/suite":                          {only: true},                // "make test" and "make test-all"
	"tools/mutate":                         {only: true},                // which statements are tested
	"internal/testtool":                    {only: true, testing: true}, // the programs that tests drive
	"internal/testscale":                   {only: true, testing: true}, // how much tests do
	"docs":                                 {only: true},                // the pages, as files
	"internal/handbook":                    {only: true, also: []string{"docs"}},
	"internal/boundedcache":                {only: true}, // the only one that knows otter
	"internal/memory":                      {only: true},
	"internal/pgsession":                   {only: true},
	"internal/limit":                       {only: true},
	"internal/netguard":                    {only: true}, // which addresses users may make Purser call
	"internal/worker":                      {only: true},
	"internal/operatorfile":                {only: true}, // how files that settings name are read
	"internal/fileowner":                   {only: true}, // whose files are that root makes
	"internal/gc/events":                   {only: true},
	"internal/oci":                         {layer: 1},
	"internal/upstream":                    {layer: 2}, // reads other registries
	"internal/builtinpg":                   {layer: 1},
	"internal/builtinpg/pgtest":            {layer: 1, also: []string{"internal/builtinpg"}, testing: true},
	"internal/builtinpg/pgtest/testserver": {only: true, also: []string{"internal/builtinpg/pgtest"}, testing: true},
	"internal/config":                      {layer: 1},
	"internal/db":                          {layer: 2},
	"internal/db/dbtest":                   {layer: 2, also: []string{"internal/db"}, testing: true},
	"internal/blob":                        {layer: 2},
	"internal/blob/s3":                     {layer: 2, also: []string{"internal/blob"}},
	"internal/blob/blobtest": {layer: 2, testing: true,
		also: []string{"internal/blob", "internal/blob/s3"}},
	"internal/audit":      {layer: 2, also: []string{"internal/db"}},
	"internal/diskspace":  {layer: 2, also: []string{"internal/db", "internal/blob", "internal/clock"}}, // when disks are full
	"internal/hold":       {layer: 2, also: []string{"internal/db", "internal/audit", "internal/clock"}},
	"internal/clock":      {layer: 2, also: []string{"internal/db"}},                                       // whether clocks are fit to delete by
	"internal/quota":      {layer: 2, also: []string{"internal/db", "internal/audit", "internal/catalog"}}, // its tests alone use the catalog, which imports it
	"internal/protection": {layer: 2, also: []string{"internal/db", "internal/audit"}},                     // rules that protect tags
	"internal/catalog": {layer: 3, also: []string{
		"internal/catalog/browse", "internal/catalog/trash"}}, // its tests alone use these: both import it
	"internal/catalog/browse": {layer: 3, also: []string{"internal/catalog"}},                            // what lists and descriptions read
	"internal/catalog/trash":  {layer: 3, also: []string{"internal/catalog", "internal/catalog/browse"}}, // its tests alone browse
	"internal/auth":           {layer: 3, also: []string{"internal/auth/token", "internal/auth/throttle", "internal/auth/session"}},
	"internal/auth/password":  {layer: 2}, // hashes, the htpasswd file, results of checks
	"internal/auth/token":     {layer: 3}, // registry tokens and the keys that sign them
	"internal/auth/identity":  {layer: 2}, // OpenID Connect and LDAP
	"internal/auth/identity/identitytest": {layer: 2,
		testing: true},
	"internal/auth/throttle":     {layer: 3}, // limits on log-ins and requests
	"internal/auth/session":      {layer: 3}, // log-ins of browsers
	"internal/acme":              {layer: 3},
	"internal/acme/acmetest":     {only: true, testing: true, also: []string{"internal/worker", "internal/testtool"}},
	"internal/pullstats":         {layer: 3, also: []string{"internal/pullstats/statsdb", "internal/pullstats/redispulls"}},
	"internal/pullstats/statsdb": {layer: 3}, // writes the statistics' database
	"internal/pullstats/redispulls": {layer: 3, // counts pulls in Redis
		also: []string{"internal/pullstats/statsdb"}},
	"internal/pullstats/redistest": {only: true, testing: true},
	"internal/webhook":             {layer: 3},
	"internal/usage":               {layer: 3}, // measures what is stored
	"internal/gc":                  {layer: 4},
	"internal/gc/explain":          {layer: 4, also: []string{"internal/gc"}},
	"internal/catalog/catalogtest": {layer: 5, testing: true, also: []string{"internal/check"}}, // it has reviews too
	"internal/check":               {layer: 5},
	"internal/storeid":             {layer: 5, also: []string{"internal/check"}},
	"internal/autoprune": {layer: 4, also: []string{"internal/autoprune/policies", "internal/autoprune/snapshot", "internal/autoprune/warnings",
		"internal/autoprune/forecast"}}, // its tests alone use the last one: it doesn't import autoprune either
	"internal/autoprune/policies": {layer: 4}, // the policies that are stored
	"internal/autoprune/snapshot": {layer: 4}, // reads what policies judge
	"internal/autoprune/warnings": {layer: 4, also: []string{"internal/autoprune/policies", "internal/autoprune/snapshot"}},
	"internal/autoprune/forecast": {layer: 4, also: []string{"internal/autoprune/policies", "internal/autoprune/snapshot",
		"internal/autoprune"}}, // its tests alone use the last one, to compare with runs
	"internal/autoprune/autoprunetest": {layer: 4, testing: true, also: []string{"internal/autoprune/policies", "internal/autoprune/warnings"}},
	"internal/policy":                  {layer: 3},
	"internal/judge":                   {layer: 3, also: []string{"internal/policy"}},
	"internal/backup":                  {layer: 5},
	"internal/registryimport":          {layer: 5, also: []string{"internal/check"}}, // takes over the storage of another registry; its tests check
	"internal/api":                     {layer: 5, also: []string{"internal/check"}}, // what the management API and the command line share
	"internal/server":                  {layer: 5},                                   // what its APIs share
	"internal/server/runs":             {layer: 6},                                   // what operators start on demand
	"internal/server/distribution":     {layer: 6},
	"internal/server/management":       {layer: 6, also: []string{"internal/server/runs"}},
	"internal/server/login":            {layer: 6},
	"internal/server/ui":               {layer: 6, also: []string{"internal/server/ui/chart", "internal/server/ui/format"}},
	"internal/server/ui/chart":         {layer: 0},
	"internal/server/ui/format":        {layer: 0},
	"internal/server/ui/imagetree":     {layer: 5, also: []string{"internal/api"}}, // what belongs to an image; commands show it too
	"internal/server/servertest": {layer: 6, testing: true,
		also: []string{"internal/server/distribution", "internal/server/management", "internal/server/login", "internal/server/ui"}},
	"cmd/purser/internal/command":     {layer: 7}, // what all commands share
	"cmd/purser/internal/backend":     {layer: 7}, // what a server and operators' commands open
	"cmd/purser/internal/report":      {layer: 7}, // what a host or a cluster runs
	"cmd/purser/internal/report/kube": {layer: 7, also: []string{"cmd/purser/internal/report"}},
	"cmd/purser/internal/mirror":      {layer: 7}, // copies repositories of other registries
	"cmd/purser/internal/takeover":    {layer: 7}, // plans what a namespace gets of another product's project
	"cmd/purser/internal/client":      {layer: 8}, // commands that ask a registry over the management API
	"cmd/purser/internal/operate":     {layer: 8}, // commands on the database and the store
	"cmd/purser/internal/serve":       {layer: 8}, // the running of a server
	"cmd/purser/internal/demo": {layer: 8, // a tour of a registry that it runs itself
		also: []string{"cmd/purser/internal/serve"}},
	"cmd/purser/internal/servetest": {layer: 7, testing: true},
	"cmd/purser":                    {layer: 9},
	"cmd/loosefk":                   {only: true, also: []string{"loosefk", "loosefk/contrib/cli", "loosefk/contrib/metrics", "loosefk/contrib/redislock", "internal/pgsession", "internal/limit"}}, // the tool of the public package
	// The tests in e2e use Purser from outside, as clients do. Of this module they import
	// only the helpers that give them an empty database and say how much to do.
	"e2e": {only: true, also: []string{"internal/db/dbtest", "internal/testscale", "internal/testtool"}},
	// The benchmarks are a module of their own. bench/registries sends requests to any
	// registry, so it imports nothing of Purser. Benchmarks that measure a part of Purser
	// from inside import that part.
	"bench":            {layer: 8},
	"bench/meter":      {only: true},
	"bench/registries": {only: true, also: []string{"bench/meter"}},
	"bench/instance":   {only: true, also: []string{"bench/meter"}},
	"bench/auth":       {only: true, also: []string{"bench/instance", "bench/meter"}},
	"bench/holds":      {only: true, also: []string{"bench/instance", "bench/meter"}},
	"bench/quota":      {only: true, also: []string{"bench/instance", "bench/meter"}},
	"bench/ui":         {only: true, also: []string{"bench/instance", "bench/meter"}},
	"bench/idle":       {only: true},
	"bench/gc":         {layer: 7},
	"bench/prune":      {layer: 7},
	"bench/pulls":      {layer: 7},
	"bench/loosefk":    {layer: 7},
}

// clients are client libraries for external services and frameworks. Only the listed
// packages may import them, so that a library can be replaced, and failures of its service
// be handled, in one place.
var clients = []struct {
	module  string
	allowed []string
	reason  string
}{
	{"github.com/minio/minio-go", []string{"internal/blob/s3", "internal/blob/blobtest"},
		"the S3 client is known to internal/blob/s3, and to its tests' buckets, alone; all others use blob.Store"},
	{"github.com/danielgtaylor/huma", []string{"internal/api", "internal/server/management"},
		"huma is the management API's; what its operations do are plain functions of other packages"},
	{"github.com/redis/go-redis", []string{"internal/pullstats/redispulls", "internal/pullstats", "loosefk/contrib/redislock"}, // of pullstats, only tests
		"Redis is optional and losable; whoever else knew it could come to depend on it"},
	{"github.com/coreos/go-oidc", []string{"internal/auth/identity"},
		"which claims are trusted is decided in one place"},
	{"k8s.io/client-go", []string{"cmd/purser/internal/report/kube"},
		"Kubernetes is known to the report of clusters alone"},
	{"github.com/containerd/containerd", []string{"cmd/purser/internal/report"},
		"containerd is known to the report of hosts alone"},
	{"github.com/go-ldap/ldap", []string{"internal/auth/identity", "internal/auth/identity/identitytest"},
		"directories are known to internal/auth/identity, and to its tests' server, alone"},
}

// pkg has the members of "go list -json" that the tests use.
type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// path returns the package's path inside the module.
func (p pkg) path() string { return inside(p.ImportPath) }

func inside(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

func ours(importPath string) bool {
	return importPath == module || strings.HasPrefix(importPath, module+"/")
}

func TestImports(t *testing.T) {
	t.Parallel()
	packages := list(t)
	if len(packages) < 2 {
		t.Fatalf("go list found %d packages; it should find all of the module's", len(packages))
	}
	for _, p := range packages {
		for _, problem := range check(p) {
			t.Error(problem)
		}
	}
}

// TestPublicModuleIsSmall: an application that imports loosefk gets PostgreSQL's driver and a parser of
// YAML, with what these need, into its go.sum, and nothing of the registry. Prometheus, Redis and cobra are
// therefore in the module loosefk/contrib.
func TestPublicModuleIsSmall(t *testing.T) {
	t.Parallel()
	watchSources(t)
	here, err := filepath.Abs("loosefk")
	if err != nil {
		t.Fatal(err)
	}
	const path = module + "/loosefk"
	app := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/app\n\ngo 1.26.0\n\nrequire " + path + " v0.0.0\n\nreplace " + path + " => " + strconv.Quote(here) + "\n",
		"main.go": fmt.Sprintf("package main\n\nimport (\n_ %q\n_ %q\n_ %q\n)\n\nfunc main() {}\n", path, path+"/doctor", path+"/generate"),
	} {
		if err := os.WriteFile(filepath.Join(app, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=mod", "-deps", ".")
	cmd.Dir = app
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off", "GOSUMDB=off") // what this module's tests have fetched and checked
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go list in an application: %v\n%s", err, out)
	}
	sums, err := os.ReadFile(filepath.Join(app, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	// The last four are of the tests of PostgreSQL's driver.
	allowed := []string{"github.com/jackc/", "go.yaml.in/yaml/", "golang.org/x/text", "golang.org/x/sync",
		"github.com/stretchr/", "github.com/davecgh/go-spew", "github.com/pmezard/go-difflib", "gopkg.in/"}
	if !bytes.Contains(sums, []byte("github.com/jackc/pgx/v5 ")) {
		t.Fatalf("go.sum lacks PostgreSQL's driver:\n%s", sums)
	}
	for line := range strings.Lines(string(sums)) {
		if !slices.ContainsFunc(allowed, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			t.Errorf("loosefk brings %s: whoever imports it gets that too", strings.Fields(line)[0])
		}
	}
}

// TestModulesAlone: a go.mod names all that its packages need, so that the module can be built without
// go.work, as tools/deb and tools/image build a release. With go.work a missing module isn't noticed.
func TestModulesAlone(t *testing.T) {
	t.Parallel()
	watchSources(t)
	for _, dir := range []string{".", "loosefk", "loosefk/contrib"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./...")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("go list in %s without go.work: %v\n%s", dir, err, stderr.String())
		}
	}
}

// TestImportRule checks allowed and forbidden imports against the rules: each forbidden
// one must be reported with the right reason.
func TestImportRule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                 string
		path                 string
		imports, testImports []string
		want                 string // part of the problem, "" for none
	}{
		{"down", "internal/catalog", in("internal/db", "internal/oci"), nil, ""},
		{"up", "internal/db", in("internal/catalog"), nil, "not below it"},
		{"sideways", "internal/catalog", in("internal/auth"), nil, "not below it"},
		{"sideways and meant", "internal/blob/s3", in("internal/blob"), nil, ""},
		{"config", "internal/server", in("internal/config"), nil, "own Options"},
		{"config in a command", "cmd/purser/internal/serve", in("internal/config"), nil, ""},
		{"one kind of commands in another", "cmd/purser/internal/client", in("cmd/purser/internal/operate"), nil, "not below it"},
		{"test package", "internal/gc", in("internal/db/dbtest"), nil, "for tests"},
		{"test package in a test", "internal/db", nil, in("internal/db/dbtest"), ""},
		{"up in a test", "internal/db", nil, in("internal/gc"), "not below it"},
		{"public package", "loosefk", in("internal/oci"), nil, "may import loosefk/internal"},
		{"public package's test", "loosefk", nil, in("internal/db/dbtest"), ""},
		{"bench", "bench/registries", in("internal/oci"), nil, "may import bench/meter"},
		{"e2e", "e2e", nil, in("internal/db"), "may import internal/db/dbtest"},
		{"e2e and its database", "e2e", nil, in("internal/db/dbtest"), ""},
		{"unknown package", "internal/utils", nil, nil, "add it to the table"},
		{"one API in another", "internal/server/management", in("internal/server/distribution"), nil, "not below it"},
		{"OpenAPI", "internal/server", []string{"github.com/danielgtaylor/huma/v2"}, nil, "huma"},
		{"S3 client", "internal/server", []string{"github.com/minio/minio-go/v7"}, nil, "S3 client"},
		{"S3 client at home", "internal/blob/s3", []string{"github.com/minio/minio-go/v7/pkg/credentials"}, nil, ""},
		{"Redis client in a test", "internal/gc", nil, []string{"github.com/redis/go-redis/v9"}, "Redis"},
	} {
		problems := check(pkg{ImportPath: module + "/" + tt.path, Imports: tt.imports, XTestImports: tt.testImports})
		switch {
		case tt.want == "" && len(problems) > 0:
			t.Errorf("%s: refused: %s", tt.name, problems)
		case tt.want != "" && (len(problems) != 1 || !strings.Contains(problems[0], tt.want)):
			t.Errorf("%s: problems are %q, want one with %q", tt.name, problems, tt.want)
		}
	}
}

func in(paths ...string) []string {
	list := make([]string, len(paths))
	for i, path := range paths {
		list[i] = module + "/" + path
	}
	return list
}

// check returns a problem, with the reason, for each package that p imports against its
// rule. A package without a rule is also a problem.
func check(p pkg) []string {
	if _, ok := layers[p.path()]; !ok {
		return []string{p.path() + " isn't in the table of imports_test.go: add it to the table, in the layer where it belongs"}
	}
	var problems []string
	for _, imported := range p.Imports {
		if problem := checkImport(p.path(), imported, false); problem != "" {
			problems = append(problems, problem)
		}
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		if slices.Contains(p.Imports, imported) {
			continue // reported already
		}
		if problem := checkImport(p.path(), imported, true); problem != "" {
			problems = append(problems, problem)
		}
	}
	return problems
}

// checkImport returns the reason why the package at path may not import imported, or "" if
// it may.
func checkImport(path, imported string, fromTest bool) string {
	for _, c := range clients {
		if (imported == c.module || strings.HasPrefix(imported, c.module+"/")) && !slices.Contains(c.allowed, path) {
			return path + " imports " + imported + ": " + c.reason
		}
	}
	if !ours(imported) || inside(imported) == path {
		return ""
	}
	from, target := layers[path], inside(imported)
	to, known := layers[target]
	switch {
	case !known:
		return "" // reported as a package
	case slices.Contains(from.also, target):
		return ""
	case to.testing && fromTest:
		return ""
	case from.only && len(from.also) == 0:
		return path + " imports " + target + ": it may import nothing of this module"
	case from.only:
		return path + " imports " + target + ": of this module it may import " + strings.Join(from.also, ", ") + " alone"
	case to.testing && !fromTest && !from.testing:
		return path + " imports " + target + ", which is for tests"
	case target == "internal/config" && !strings.HasPrefix(path, "cmd/"):
		return path + " imports internal/config: only commands do; give the package its own Options"
	case to.layer >= from.layer:
		return path + " imports " + target + ", which is not below it; imports only point down: " +
			"move what both need into a lower package, or pass it in"
	}
	return ""
}

// list returns the module's packages.
func list(t *testing.T) []pkg {
	t.Helper()
	watchSources(t)
	command := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports",
		"./...", "./bench/...", "./e2e/...", "./loosefk/...", "./loosefk/contrib/...", "./loosefk/integrationtest/...")
	out, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var packages []pkg
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("reading what go list printed: %v", err)
		}
		packages = append(packages, p)
	}
}

// watchSources reads the directories of the module. go test caches a test's result until a
// file or directory that the test itself has opened changes. It doesn't notice what "go
// list" reads, so without this call a changed import wouldn't run the test again.
func watchSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatalf("reading the module's directories: %v", err)
	}
}
