package client

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// harborAnswers are those of Harbor's API about a project, by path.
var harborAnswers = map[string]string{
	"/api/v2.0/projects/acme": `{"project_id":2,"name":"acme","metadata":{"retention_id":"4"}}`,
	"/api/v2.0/projects/acme/members": `[{"entity_name":"alice","entity_type":"u","role_id":4,"role_name":"maintainer"},
		{"entity_name":"nobody","entity_type":"u","role_id":2,"role_name":"developer"},{"entity_name":"devs\u001b[2J","entity_type":"g","role_id":2,"role_name":"developer"}]`,
	"/api/v2.0/robots": `[{"name":"robot$acme+ci","description":"","expires_at":-1,"permissions":[{"access":[{"resource":"repository","action":"push"},{"resource":"repository","action":"pull"}]}]}]`,
	"/api/v2.0/retentions/4": `{"rules":[{"action":"retain","template":"latestPushedK","params":{"latestPushedK":10},"tag_selectors":[{"kind":"doublestar","decoration":"matches","pattern":"**"}],
		"scope_selectors":{"repository":[{"kind":"doublestar","decoration":"repoMatches","pattern":"**"}]}}]}`,
}

// TestImportHarbor expects that a dry run shows what an import makes, that nothing is made without a yes, and that
// a second import changes nothing.
func TestImportHarbor(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.r.AddAccount(t, "alice", false)
	harbor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := harborAnswers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, answer) //nolint:errcheck // in a test
	}))
	t.Cleanup(harbor.Close)
	o.login("root")
	source := strings.TrimPrefix(harbor.URL, "http://") + "/acme"
	run := func(wantCode int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errOut bytes.Buffer
		src := &command.Source{Environ: o.environ}
		root := command.NewRoot(src, append(Commands(src), command.Group("import", "", ImportCommands(src)...))...)
		root.SetIn(strings.NewReader(""))
		code := command.Execute(t.Context(), root, append([]string{"import", "harbor"}, args...), &out, &errOut)
		if code != wantCode {
			t.Fatalf("import harbor %q: exit code %d, want %d\n%s%s", args, code, wantCode, out.String(), errOut.String())
		}
		return out.String(), errOut.String()
	}
	plan, _ := run(4, source, "--namespace", "shop", "--dry-run")
	for _, want := range []string{"robot shop+ci: writer\n", "role of alice: maintainer\n", `"newest":10`, `"mode":"observe"`, "left out: the group devs"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan has no %q:\n%s", want, plan)
		}
	}
	if strings.Contains(plan, "\x1b") {
		t.Errorf("%q", plan)
	}
	run(3, source, "--namespace", "shop") // there is no terminal to ask
	o.fails("shop", 3, "", "namespace", "show", "shop")
	made, _ := run(4, source, "--namespace", "shop", "--yes")
	for _, want := range []string{"namespace shop: made\n", "robot shop+ci: made. Its secret, which isn't told again: purser_robot_", "writer for robot shop+ci: made\n",
		"maintainer for alice: made\n", "writer for nobody: not made: ", "policy of shop for what is kept by none of"} {
		if !strings.Contains(made, want) {
			t.Errorf("no %q in:\n%s", want, made)
		}
	}
	for _, c := range []struct{ line, want string }{
		{"grant list shop", "alice"}, {"robot list shop", "shop+ci"}, {"policy list shop", "observe"},
	} {
		if got := o.ok("", strings.Fields(c.line)...); !strings.Contains(got, c.want) {
			t.Errorf("%s has no %q:\n%s", c.line, c.want, got)
		}
	}
	again, _ := run(4, source, "--namespace", "shop", "--yes")
	if strings.Contains(again, ": made") || strings.Contains(again, "secret") || strings.Count(again, "is there already") != 5 {
		t.Errorf("the second import:\n%s", again)
	}
	for _, bad := range []string{"harbor.example.com", "harbor.example.com/a/b", "/acme", "harbor.example.com/A"} {
		if _, stderr := run(2, bad, "--dry-run"); !strings.Contains(stderr, "HOST/NAME") {
			t.Errorf("%s: %s", bad, stderr)
		}
	}
}
