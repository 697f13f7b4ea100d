package client

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/takeover"
	"github.com/purser-registry/purser/internal/upstream"
)

// harborAnswers are those of Harbor's API about a project, by path.
var harborAnswers = map[string]string{
	"/api/v2.0/projects/acme": `{"project_id":2,"name":"acme","metadata":{"retention_id":"4"}}`,
	"/api/v2.0/projects/acme/members": `[{"entity_name":"alice","entity_type":"u","role_id":4,"role_name":"maintainer"},
		{"entity_name":"nobody","entity_type":"u","role_id":2,"role_name":"developer"},{"entity_name":"devs\u001b[2J","entity_type":"g","role_id":2,"role_name":"developer"}]`,
	"/api/v2.0/robots": `[{"name":"robot$acme+ci","description":"","expires_at":-1,"permissions":[{"access":[{"resource":"repository","action":"push"},{"resource":"repository","action":"pull"}]}]},
		{"name":"robot$acme+nightly","expires_at":4102444800,"permissions":[{"access":[{"resource":"repository","action":"pull"}]}]}]`,
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
	for _, want := range []string{"robot shop+ci: writer\n", "robot shop+nightly: reader, until 2", "role of alice: maintainer\n", `"newest":10`, `"mode":"observe"`, "left out: the group devs"} {
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
		{"grant list shop", "alice"}, {"robot list shop", "shop+ci"}, {"robot show shop+nightly -o json", `"2100-01-01T00:00:00Z"`}, {"policy list shop", "observe"},
	} {
		if got := o.ok("", strings.Fields(c.line)...); !strings.Contains(got, c.want) {
			t.Errorf("%s has no %q:\n%s", c.line, c.want, got)
		}
	}
	again, _ := run(4, source, "--namespace", "shop", "--yes")
	if strings.Contains(again, ": made") || strings.Contains(again, "secret") || strings.Count(again, "is there already") != 7 {
		t.Errorf("the second import:\n%s", again)
	}
	for _, bad := range []string{"harbor.example.com", "harbor.example.com/a/b", "/acme", "harbor.example.com/A"} {
		if _, stderr := run(2, bad, "--dry-run"); !strings.Contains(stderr, "HOST/NAME") {
			t.Errorf("%s: %s", bad, stderr)
		}
	}
}

// importPlan runs the import of a plan, as if another product had the project "acme" with what is in it.
func importPlan(t *testing.T, environ []string, p takeover.Plan) (code int, stdout, stderr string) {
	t.Helper()
	read := func(context.Context, *upstream.Registry, string, string) (*takeover.Plan, error) { return &p, nil }
	var out, errOut bytes.Buffer
	src := &command.Source{Environ: environ}
	root := command.NewRoot(src, importProjectCommand(src, read, &cobra.Command{Use: "import"}))
	code = command.Execute(t.Context(), root, []string{"import", "product.example.com/acme", "--namespace", p.Namespace, "--yes"}, &out, &errOut)
	return code, out.String(), errOut.String()
}

// TestImportBesideOthers expects that robots and teams that merely have the name of a planned one get nothing by an
// import, and that those that an interrupted import left get the rest.
func TestImportBesideOthers(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.r.AddAccount(t, "alice", false)
	o.login("root")
	for _, line := range []string{
		"namespace create shop",
		"robot create shop+ci --actions pull", "robot create shop+cleaner --actions delete,pull", "robot create shop+narrow --repositories shop/app",
		"team create shop owners --role reader", "team create shop admins", "team create shop writers --role writer", "team create shop developers",
	} {
		o.ok("", strings.Fields(line)...)
	}
	p := takeover.Plan{
		Namespace: "shop",
		Robots: []takeover.Robot{
			{Name: "ci", Role: "writer"}, {Name: "cleaner", Role: "maintainer", Actions: []string{"pull", "delete"}}, {Name: "narrow", Role: "reader"}, {Name: "new", Role: "reader"},
		},
		Teams: []takeover.Team{
			{Name: "owners", Role: "administrator", Members: []string{"alice"}}, {Name: "admins", Role: "administrator", Members: []string{"alice"}},
			{Name: "writers", Role: "writer", Members: []string{"alice"}}, {Name: "developers", Members: []string{"alice", "shop+ci", "shop+new"}},
		},
	}
	for _, made := range []string{"made", "is there already"} {
		code, stdout, stderr := importPlan(t, o.environ, p)
		got := strings.Split(strings.TrimSpace(stdout), "\n")
		for i, line := range got {
			got[i], _, _ = strings.Cut(line, ". Its secret")
		}
		want := []string{
			"namespace shop: is there already",
			"robot shop+ci: not made: a robot of this name is there with other limits",
			"robot shop+cleaner: is there already", "maintainer for robot shop+cleaner: " + made,
			"robot shop+narrow: not made: a robot of this name is there with other limits",
			"robot shop+new: " + made, "reader for robot shop+new: " + made,
			"team owners: not made: a team of this name is there with another role",
			"team admins: not made: a team of this name is there with another role",
			"team writers: is there already", "member alice of team writers: made",
			"team developers: is there already", "member alice of team developers: made",
			"member shop+ci of team developers: not made: a robot of this name is there with other limits",
			"member shop+new of team developers: made",
		}
		if code != 4 || !slices.Equal(got, want) {
			t.Errorf("exit code %d\n%s\n%s\nwant\n%s", code, stdout, stderr, strings.Join(want, "\n"))
		}
	}
	grants := o.ok("", "grant", "list", "shop")
	if strings.Contains(grants, "shop+ci") || strings.Contains(grants, "shop+narrow") || !strings.Contains(grants, "shop+cleaner") {
		t.Errorf("roles:\n%s", grants)
	}
	for team, has := range map[string]bool{"owners": false, "admins": false, "writers": true, "developers": true} {
		if members := o.ok("", "team", "members", "shop", team); strings.Contains(members, "alice") != has || strings.Contains(members, "shop+ci") {
			t.Errorf("members of %s:\n%s", team, members)
		}
	}
}

// TestImportInterrupted expects that an import that fails has printed the secrets of the robots that it made: nobody
// could learn them later.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	registry, err := url.Parse(o.r.URL)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(registry)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/permissions/") {
			panic(http.ErrAbortHandler)
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	environ := []string{o.environ[0], "PURSER_SERVER=" + front.URL, "PURSER_TOKEN=" + o.stored()[o.r.URL].Token}
	p := takeover.Plan{Namespace: "shop", Robots: []takeover.Robot{{Name: "ci", Role: "writer"}, {Name: "web", Role: "reader"}}}
	code, stdout, stderr := importPlan(t, environ, p)
	if code == 0 || code == 4 || !strings.Contains(stdout, "robot shop+ci: made. Its secret, which isn't told again: purser_robot_") || !strings.Contains(stderr, "EOF") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
}
