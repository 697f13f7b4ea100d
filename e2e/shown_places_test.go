package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/testtool"
)

// shownBy says how commands of other programs that the project shows are tested.
type shownBy struct {
	file    string // where they stand
	command string // as testtool.ShownCommands finds them; "": all others in the file
	test    string // the test that runs them
	not     string // why none does, and what is tested instead
}

// shownPrograms are the clients whose commands are looked for. The command lines of Purser and
// loosefk are compared with the programs, by tests beside them.
var shownPrograms = []string{"docker", "podman", "skopeo", "crane", "regctl", "oras", "helm", "nerdctl", "ctr", "cosign", "buildah", "kubectl", "curl"}

const noKubectl = "machines that test have no kubectl; TestChart and TestReportsOfKubernetes make the same objects through the API"

var shownPlaces = []shownBy{
	{file: "README.md", command: "docker login registry.example.com:5000 --username admin", test: "TestRecipes"},
	{file: "README.md", test: "TestOpsDocsReadme"},
	{file: "cmd/purser/internal/serve/access.go", test: "TestShownByServe"},
	{file: "cmd/purser/internal/serve/announce.go", test: "TestShownByServe"},
	{file: "cmd/purser/internal/client/robot.go", test: "TestShownLogins"},
	{file: "cmd/purser/internal/report/docker.go", command: "docker answered X with X: %.300s", not: "it is an error"},
	{file: "deploy/chart/purser/templates/NOTES.txt", not: noKubectl},
	{file: "deploy/kubernetes/report.yaml", not: noKubectl},
	{file: "docs/access-control.md", command: `curl -sH "Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" "$ACTIONS_ID_TOKEN_REQUEST_URL`, not: "only a job of GitHub gets its token"},
	{file: "docs/access-control.md", command: `curl -H "Authorization: Bearer $TOKEN" https://registry.example.com/api/v1/user`, test: "TestOpsDocsAccessControl"},
	{file: "docs/access-control.md", command: "kubectl create secret docker-registry purser --docker-server=registry.example.com --docker-username=acme+cluster --docker-password=\"$SECRET\"", not: noKubectl},
	{file: "docs/access-control.md", command: `kubectl patch serviceaccount default -p '{"imagePullSecrets": [{"name": "purser"}]}'`, not: noKubectl},
	{file: "docs/access-control.md", command: "kubectl get --raw /.well-known/openid-configuration", not: noKubectl},
	{file: "docs/access-control.md", command: "ctr images pull --user 'NAME:SECRET' registry.example.com/acme/app:v1", test: "TestShownLogins"},
	{file: "docs/access-control.md", test: "TestRecipes"},
	{file: "docs/api.md", test: "TestOpsDocsAPI"},
	{file: "docs/audit-log.md", test: "TestOpsDocsAuditLog"},
	{file: "docs/checking.md", test: "TestOpsDocsChecking"},
	{file: "docs/clients.md", command: "docker buildx build --cache-to type=registry", not: "buildx needs a builder in a container; it only names what the section is about"},
	{file: "docs/clients.md", test: "TestShownSparseIndexes"},
	{file: "docs/first-hour.md", command: "docker tag alpine 127.0.0.1:5000/acme/app:build-1", test: "TestShownPushes"},
	{file: "docs/first-hour.md", command: "docker login 127.0.0.1:5000 --username acme+ci --password-stdin", test: "TestShownLogins"},
	{file: "docs/first-hour.md", test: "TestOpsDocsFirstHour"},
	{file: "docs/garbage-collection.md", command: "crane delete registry/app:v1", test: "TestShownByGarbageCollection"},
	{file: "docs/garbage-collection.md", command: "crane tag registry/app@sha256:… v1", test: "TestShownByGarbageCollection"},
	{file: "docs/garbage-collection.md", test: "TestOpsDocsGarbageCollection"},
	{file: "docs/installing.md", command: "docker compose up -d", not: "an engine without a network runs no containers that talk to each other; TestOpsCompose runs the file's services as processes"},
	{file: "docs/installing.md", command: "crane push bin/image registry.example.com/tools/purser:v1.2.3", test: "TestContainerImage"},
	{file: "docs/installing.md", command: "skopeo copy --all oci:bin/image:v1.2.3 docker://registry.example.com/tools/purser:v1.2.3", test: "TestContainerImage"},
	{file: "docs/installing.md", command: "helm install purser deploy/chart/purser --namespace registry --values values.yaml", not: "an API server without nodes starts nothing to wait for; TestChart makes what helm renders from the page's values"},
	{file: "docs/installing.md", command: "helm test purser --namespace registry", not: "an API server without nodes runs no pods; TestChart lets it admit the pod that this command creates"},
	{file: "docs/installing.md", not: noKubectl},
	{file: "docs/pull-requests.md", command: "docker build --label io.purser.expires-after=14d -t registry.example.com/acme/app:pr-7-$SHA .", not: "an engine without a network has no base image; the tests of labels in internal/server/distribution push images with the label"},
	{file: "docs/pull-requests.md", command: `curl -sSfH "Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" "$ACTIONS_ID_TOKEN_REQUEST_URL`, not: "only a job of GitHub gets its token"},
	{file: "docs/pull-requests.md", command: `curl -sSf -u "acme+pr:$job" "$PURSER_SERVER/oauth2/federation/robot/token"`, not: "only a job of GitHub gets its token; TestFederation exchanges others at this path"},
	{file: "docs/pull-requests.md", command: `curl -sSf -u "acme+pr:$JOB_TOKEN" "$PURSER_SERVER/oauth2/federation/robot/token"`, not: "only a job of GitLab gets its token; TestFederation exchanges others at this path"},
	{file: "docs/pull-requests.md", test: "TestOpsDocsPullRequests"},
	{file: "internal/server/ui/users.go", test: "TestShownLogins"},
	{file: "internal/server/ui/clients.go", command: "kubectl create secret docker-registry purser --docker-server=X --docker-username=X --docker-password=X", not: noKubectl},
	{file: "internal/server/ui/clients.go", command: "nerdctl … login", not: "machines that test have no nerdctl; it takes the flags of docker login"},
	{file: "internal/server/ui/clients.go", command: `curl -sH "Authorization: bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=X" | jq -r .value`, not: "only a job of GitHub gets its token"},
	{file: "internal/server/ui/clients.go", command: "podman login …", test: "TestShownLogins"},
	{file: "internal/server/ui/clients.go", command: "helm registry login …", test: "TestShownLogins"},
	{file: "internal/server/ui/clients.go", command: "ctr images pull … --user X X", test: "TestShownLogins"},
	{file: "internal/server/ui/clients.go", command: "docker pull X", test: "TestShownCommandsOfDocker"},
	{file: "internal/server/ui/clients.go", command: "docker pull alpine:latest", test: "TestShownPushes"},
	{file: "internal/server/ui/clients.go", test: "TestShownCommandsOfArtifacts"},
	{file: "internal/server/ui/templates/explain.html", test: "TestShownPushes"},
	{file: "internal/server/ui/templates/namespaces.html", test: "TestShownPushes"},
	{file: "internal/server/ui/templates/overview.html", test: "TestShownPushes"},
	{file: "internal/server/ui/templates/repositories.html", test: "TestShownPushes"},
	{file: "internal/server/ui/templates/repository.html", test: "TestShownPushes"},
}

// TestEveryShownCommand: each command of another program that the documentation, a page, a command or a
// file for deployments shows is in the table above, with the test that runs it or the reason why
// none can. A command that is named without an argument, such as "docker login", is a name.
func TestEveryShownCommand(t *testing.T) {
	begin(t)
	tests := testsHere(t)
	used := make([]bool, len(shownPlaces))
	found, err := testtool.ShownCommands(shownPrograms...)
	if err != nil || len(found) < 50 {
		t.Fatalf("%d commands were found (%v)", len(found), err)
	}
	for _, s := range found {
		if name := regexp.MustCompile(`^[a-z]+( [a-z]+)*$`); !s.Block && name.MatchString(s.Line) {
			continue
		}
		i := slices.IndexFunc(shownPlaces, func(p shownBy) bool { return p.file == s.File && (p.command == "" || p.command == s.Line) })
		if i < 0 {
			t.Errorf("%s shows a command that no test runs: %s", s.File, s.Line)
			continue
		}
		used[i] = true
	}
	for i, p := range shownPlaces {
		if !used[i] {
			t.Errorf("%s doesn't show %q any more", p.file, p.command)
		}
		if (p.test == "") == (p.not == "") || p.test != "" && !tests[p.test] {
			t.Errorf("%s, %q: no test, or no reason why there is none: %q %q", p.file, p.command, p.test, p.not)
		}
	}
}

// pagesRunHere says of pages with blocks of commands that no test reads by readPage, newDaily or
// commandsOf, which test runs their commands.
var pagesRunHere = map[string]string{
	"CONTRIBUTING.md":            "", // these commands run the tests
	"docs/installing.md":         "TestOpsSystemdPackage",
	"docs/loose-foreign-keys.md": "", // the tests of loosefk/contrib/cli run each command; cmd/loosefk compares the page with them
	"docs/holds.md":              "TestReportsOfKubernetes",
}

var pageRead = regexp.MustCompile(`(?:readPage|newDaily|commandsOf)\(t, "([^"]+)"`)

// TestEveryPageIsRun: a test runs the blocks of commands of each page.
func TestEveryPageIsRun(t *testing.T) {
	begin(t)
	read := map[string]bool{}
	for _, file := range testFiles(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pageRead.FindAllStringSubmatch(string(text), -1) {
			read[m[1]] = true
		}
	}
	tests := testsHere(t)
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../ARCHITECTURE.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(page, "../")
		test, listed := pagesRunHere[name]
		switch blocks := regexp.MustCompile("(?m)^ *```(sh|console)$").MatchString(string(text)); {
		case blocks && !read[name] && !listed:
			t.Errorf("no test runs the commands of %s", name)
		case test != "" && !tests[test]:
			t.Errorf("%s: there is no test %s", name, test)
		}
	}
}

func testFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	return files
}

// testsHere returns the names of the tests of this package, those of "make test-all" too.
func testsHere(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	for _, file := range testFiles(t) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[f.Name.Name] = true
			}
		}
	}
	return tests
}
