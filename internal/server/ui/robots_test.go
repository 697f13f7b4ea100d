package ui_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

const acmeRobot = "/ui/namespaces/acme/-/robots/ci"

// TestRobotRoles: the page of a robot gives and takes roles in the namespace and in single repositories. A
// form that says two things at once, or names another namespace, gives nothing.
func TestRobotRoles(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	ann.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	lacks(t, ann.open(t, acmeRobot, "has no role of its own"), "Take away")
	role := func(want auth.Role, where auth.Resource) {
		t.Helper()
		if got, err := s.Auth.RoleIn(t.Context(), "acme+ci", where); err != nil || got != want {
			t.Errorf("the role in %v is %v, %v; want %v", where, got, err, want)
		}
	}
	app := auth.OfRepository("acme/app")
	ann.send(t, acmeRobot, url.Values{"do": {"give"}, "role": {"write"}, "where": {"repository"}, "repository": {" acme/app "}}, "has the role", ">acme/app</a>", ">writer<")
	role(auth.Writer, app)
	role(auth.NoRole, auth.OfNamespace("acme"))
	for _, c := range []struct {
		status int
		form   url.Values
		text   string
	}{
		{400, url.Values{"where": {"namespace"}, "repository": {"acme/app"}, "role": {"admin"}}, "leave one of them out"},
		{400, url.Values{"where": {"repository"}, "role": {"admin"}}, "Name a repository of this namespace"},
		{400, url.Values{"where": {"repository"}, "repository": {"other/app"}, "role": {"admin"}}, "Name a repository of this namespace"},
		{400, url.Values{"where": {"repository"}, "repository": {"acmes/app"}, "role": {"admin"}}, "Name a repository of this namespace"},
		{400, url.Values{"role": {"admin"}}, "where the role holds"},
		{404, url.Values{"where": {"repository"}, "repository": {"acme/none"}, "role": {"admin"}}, `value="acme/none"`},
	} {
		c.form.Set("do", "give")
		ann.post(t, c.status, acmeRobot, c.form, `role="alert"`, c.text, `value="admin" selected`)
	}
	role(auth.NoRole, auth.OfNamespace("acme"))
	ann.send(t, acmeRobot, url.Values{"do": {"give"}, "role": {"read"}, "where": {"namespace"}}, "the whole namespace", ">reader<")
	role(auth.Reader, auth.OfNamespace("acme"))
	ann.send(t, acmeRobot, url.Values{"do": {"take"}, "where": {"repository"}, "repository": {"acme/app"}}, "was taken away")
	role(auth.Reader, app)
	lacks(t, ann.send(t, acmeRobot, url.Values{"do": {"take"}, "where": {"namespace"}}, "was taken away"), "Take away")
	role(auth.NoRole, auth.OfNamespace("acme"))
	s.as("bob").post(t, 403, acmeRobot, url.Values{"do": {"give"}, "role": {"read"}, "where": {"namespace"}})
	s.Do(t, "GET", acmeRobot, "", servertest.As("bob")...).WantStatus(t, 403)

	s.Exec(t, `INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/r' || i FROM top_level_namespaces, generate_series(1, 130) i WHERE name = 'acme'`)
	s.Exec(t, `INSERT INTO grants (top_level_namespace_id, repository_id, account_id, role) SELECT r.top_level_namespace_id, r.id, a.id, 'reader' FROM repositories r, accounts a WHERE r.path LIKE 'acme/r%' AND a.name = 'acme+ci'`)
	if n := len(ann.walk(t, acmeRobot, regexp.MustCompile(`>(acme/r\d+)</a>`))); n != 130 {
		t.Errorf("%d roles are listed", n)
	}
}

// TestRobotFederation: rules are added one by one and removed one by one. A page that was opened before
// somebody else changed the rules removes none.
func TestRobotFederation(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	ann.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	const issuer = "https://token.actions.githubusercontent.com"
	rules := func(want ...string) {
		t.Helper()
		var list []api.FederationRule
		ann.Manage(t, "GET", "/organization/acme/robots/ci/federation", "").Into(t, 200, &list)
		var got []string
		for _, r := range list {
			got = append(got, r.Subject)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("the robot has the rules %q, want %q", got, want)
		}
	}
	example := ann.open(t, acmeRobot+"?example=github", `name="issuer" value="`+issuer+`"`, `name="subject" value="" placeholder="repo:OWNER/`)
	lacks(t, example, `name="subject" value="repo`)
	ann.open(t, acmeRobot+"?example=kubernetes", `name="issuer" value=""`, "system:serviceaccount:")
	form := func(more ...string) url.Values {
		return merge(url.Values{"do": {"federate"}, "issuer": {issuer}, "subject": {"repo:acme/app:**"}, "audience": {"purser"}}, more...)
	}
	ann.send(t, acmeRobot, form("claims", " ref = refs/heads/main \n\nenvironment=a=b\n"), "The rule was added", "<code>repo:acme/app:**</code>", "<code>ref=refs/heads/main</code>", "<code>environment=a=b</code>", "id-token: write", "audience=purser")
	stale := formAfter(t, ann.open(t, acmeRobot), `<h2 id="rules">`)
	ann.post(t, 400, acmeRobot, form("subject", "repo:*", "claims", "x=<y>"), `role="alert"`, "<p>Anybody can get tokens of", `value="repo:*"`, "x=&lt;y&gt;</textarea>")
	ann.post(t, 400, acmeRobot, form("claims", "ref"), "Write a claim as NAME=PATTERN")
	ann.post(t, 400, acmeRobot, form("claims", "ref=a\nref=b"), "is there twice")
	rules("repo:acme/app:**")
	ann.send(t, acmeRobot, form("issuer", "https://gitlab.com", "subject", "project_path:acme/app:**"), "The rule was added", "PURSER_TOKEN")
	rules("repo:acme/app:**", "project_path:acme/app:**")
	ann.post(t, 409, acmeRobot, merge(stale, "do", "unfederate"), "changed meanwhile")
	rules("repo:acme/app:**", "project_path:acme/app:**")
	ann.send(t, acmeRobot, merge(formAfter(t, ann.open(t, acmeRobot), `<h2 id="rules">`), "do", "unfederate"), "The rule was removed")
	rules("project_path:acme/app:**")
	// A rule that was allowed once is named when it keeps another one from being added.
	s.Exec(t, `UPDATE robotfederations SET claims = '{"sub": "*"}'`)
	ann.post(t, 400, acmeRobot, form(), "Rule 1 of the list isn&#39;t allowed any more, remove it first")
	ann.send(t, acmeRobot, form("do", "unfederate-all"), "has no rules now")
	rules()
	s.as("bob").post(t, 403, acmeRobot, form())
	rules()

	s.Exec(t, `INSERT INTO robotfederations (id, account_id, issuer, audience, claims) SELECT gen_random_uuid(), a.id, 'https://' || repeat('<', 500), repeat('<', 512),
		(SELECT jsonb_object_agg('claim' || n, repeat('<', 512)) FROM generate_series(1, 20) n) FROM accounts a, generate_series(1, 50) WHERE a.name = 'acme+ci'`)
	ann.open(t, acmeRobot, "Remove all rules") // and not too large
}

// readyForm finds the ready lines of a page, with their names.
var readyForm = regexp.MustCompile(`<summary>([^<]+)</summary><div class="line"><pre>([^<]*)</pre>`)

// TestReadyLines: the lines have the address as clients reach it and the robot's name, and the secret only
// where it was just made. Over http they say so to each client.
func TestReadyLines(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"http://registry.internal:5000", "https://registry.example.com"} {
		s := site{servertest.Setup(t, func(o *servertest.Options) { o.Access, o.Server.ExternalURL = &auth.Options{}, address })}
		s.AddAccount(t, "root", true)
		root := s.as("root")
		root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
		host := address[strings.Index(address, "//")+2:]
		lines := func(page string) map[string]string {
			found := make(map[string]string)
			for _, m := range readyForm.FindAllStringSubmatch(page, -1) {
				found[m[1]] = html.UnescapeString(m[2])
			}
			return found
		}
		page := root.send(t, "/ui/namespaces/acme/-/robots", url.Values{"do": {"create"}, "robot": {"ci"}})
		secret := secretOf(t, page)
		made, later := lines(page), lines(root.open(t, acmeRobot))
		if len(made) != len(later) || len(made) < 8 {
			t.Errorf("%d and %d lines", len(made), len(later))
		}
		for name, text := range made {
			if strings.ReplaceAll(text, secret, "PASTE-THE-SECRET-HERE") != later[name] {
				t.Errorf("%s: %s and later %s", name, text, later[name])
			}
			pipeline := name == "GitHub Actions" || name == "GitLab CI"
			if has := strings.Contains(text, secret); has == (pipeline || strings.HasPrefix(name, "containerd&#39;s")) {
				t.Errorf("%s has the secret: %v", name, has)
			}
			if !strings.Contains(text, host) {
				t.Errorf("%s lacks the address: %s", name, text)
			}
		}
		plain := strings.HasPrefix(address, "http:")
		for name, flag := range map[string]string{
			"podman, skopeo": " --tls-verify=false ", "containerd (ctr)": " --plain-http ", "containerd (nerdctl)": " --insecure-registry ", "helm": " --plain-http ", "GitLab CI": "--insecure-registry=" + host,
		} {
			if strings.Contains(made[name], flag) != plain {
				t.Errorf("%s: %s", address, made[name])
			}
		}
		if _, ok := made["containerd&#39;s hosts.toml"]; ok != plain {
			t.Errorf("%s: hosts.toml: %v", address, ok)
		}
		if strings.Contains(page, "insecure-registries") != plain {
			t.Errorf("%s: the hint for Docker's daemon", address)
		}
		if want := "docker login " + host + " --username 'acme+ci' --password-stdin"; !strings.HasSuffix(made["docker"], want) {
			t.Errorf("docker: %s", made["docker"])
		}
	}
}
