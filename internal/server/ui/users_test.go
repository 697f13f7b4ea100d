package ui_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

var secretForm = regexp.MustCompile(`<p class="secret"><code>([^<]+)</code>`)

// secretOf returns the secret that a page shows once.
func secretOf(t *testing.T, content string) string {
	t.Helper()
	m := secretForm.FindStringSubmatch(content)
	if m == nil {
		t.Fatalf("no secret:\n%s", content)
	}
	return m[1]
}

// TestAudit: the log is shown in words, by filters, to those who may see it.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root, ann := s.as("root"), s.as("ann")
	s.Do(t, "GET", "/v2/acme/app/manifests/v1", "", append(servertest.As("ann"), "User-Agent", "<b>evil</b>")...).WantStatus(t, 200)
	ann.Manage(t, "DELETE", "/repository/acme/app/tag/v1", "").WantStatus(t, 204)
	content := root.open(t, "/ui/audit", "deleted the tag", "other/app", ">ann", "/api/v1/logs/export?format=csv", "/api/v1/logs/export\"")
	lacks(t, content, "<b>evil")
	lacks(t, ann.open(t, "/ui/audit?namespace=acme", "deleted the tag", "/api/v1/organization/acme/logs/export"), "other/app")
	lacks(t, ann.open(t, "/ui/audit?repository=acme/app&kind=delete_tag", "deleted the tag", "kind=delete_tag"), "<td>pushed</td>")
	lacks(t, ann.open(t, "/ui/audit?actor=ann&address=127.0.0.0/8", "deleted the tag", "namespaces that you maintain", "address=127.0.0.0%2F8&amp;format=csv"), "other/app", `role="alert"`)
	ann.open(t, "/ui/audit?address=here", "neither an address", `role="alert"`, `value="here"`)
	s.as("bob").open(t, "/ui/audit", "there is none")
	lacks(t, s.as("bob").open(t, "/ui/"), `href="/ui/audit"`)
	ann.open(t, "/ui/", "maintain", `href="/ui/audit"`)
	lacks(t, ann.open(t, "/ui/audit?namespace=other", `role="alert"`), "other/app")
	root.open(t, "/ui/audit?to="+day(0), "deleted the tag")
	root.open(t, "/ui/audit?to="+day(2), "No entry matches")
	root.open(t, "/ui/audit?from=x", "not a day")
	root.open(t, "/ui/audit?kind=x", `role="alert"`, "no kind")
	root.open(t, "/ui/audit?actor="+url.QueryEscape(`"><script>`), "No entry matches", "&#34;&gt;&lt;script&gt;")
	for range 60 {
		if err := audit.New(s.DB).Append(t.Context(), audit.Entry{Kind: audit.RunGC, Actor: "root"}); err != nil {
			t.Fatal(err)
		}
	}
	next := regexp.MustCompile(`href="([^"]+)" rel="next"`).FindStringSubmatch(root.open(t, "/ui/audit?kind=run_gc", "ran garbage collection"))
	if next == nil {
		t.Fatal("no next page")
	}
	if n := strings.Count(root.open(t, strings.ReplaceAll(next[1], "&amp;", "&"), "First page"), "<td>ran garbage collection</td>"); n != 10 {
		t.Errorf("%d entries on the second page", n)
	}
	// Every kind has words of its own.
	for _, k := range audit.Kinds() {
		if !strings.Contains(content, `<option value="`+string(k)+`">`) {
			t.Errorf("the filter lacks %s", k)
		}
	}
}

// TestAccounts: an administrator creates accounts and changes them; each new password is shown
// once and works.
func TestAccounts(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root := s.as("root")
	root.open(t, "/ui/users", ">ann", ">bob", "Create a user")
	password := secretOf(t, root.send(t, "/ui/users", url.Values{"do": {"create"}, "name": {"eve"}}, "was created"))
	works := func(password string, status int) {
		t.Helper()
		s.Do(t, "GET", "/api/v1/user", "", servertest.Basic("eve", password)...).WantStatus(t, status)
	}
	works(password, 200)
	lacks(t, root.open(t, "/ui/users"), password)
	_, token, err := s.Auth.CreateToken(t.Context(), &auth.Principal{Name: "eve"}, "laptop", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again := secretOf(t, root.send(t, "/ui/users", url.Values{"do": {"reset"}, "name": {"eve"}}, "new password", "Its personal tokens stay"))
	works(password, 401)
	works(again, 200)
	works(token, 200)
	root.send(t, "/ui/users", url.Values{"do": {"disable"}, "name": {"eve"}}, "no longer log in", "disabled")
	works(again, 401)
	root.send(t, "/ui/users", url.Values{"do": {"enable"}, "name": {"eve"}}, "log in again")
	s.Do(t, "GET", "/token?offline_token=true&service=purser", "", servertest.Basic("eve", again)...).WantStatus(t, 200)
	root.send(t, "/ui/users", url.Values{"do": {"end"}, "name": {"eve"}}, "refresh tokens 1, personal tokens 0")
	root.send(t, "/ui/users", url.Values{"do": {"end"}, "name": {"eve"}, "personal_tokens": {"true"}}, "refresh tokens 0, personal tokens 1")
	works(token, 401)
	root.send(t, "/ui/users", url.Values{"do": {"promote"}, "name": {"eve"}}, "administers the registry now")
	root.send(t, "/ui/users", url.Values{"do": {"delete"}, "name": {"eve"}}, "was deleted")
	root.send(t, "/ui/users", url.Values{"do": {"demote"}, "name": {"root"}}, `role="alert"`)
	root.send(t, "/ui/users", url.Values{"do": {"create"}, "name": {"<b>"}}, `role="alert"`)
	lacks(t, root.open(t, "/ui/users?q=an", ">ann"), ">bob")
	s.Do(t, "GET", "/ui/users", "", servertest.As("ann")...).WantStatus(t, 403)
	s.Do(t, "POST", "/ui/users", "do=promote&name=ann", append(servertest.As("ann"), "Content-Type", "application/x-www-form-urlencoded")...).WantStatus(t, 403)
	if a, err := s.Auth.Person(t.Context(), "ann"); err != nil || a.Superuser {
		t.Errorf("ann: %+v %v", a, err)
	}
	s.Exec(t, "ALTER TABLE sessions RENAME TO moved")
	lacks(t, root.send(t, "/ui/users", url.Values{"do": {"end"}, "name": {"ann"}}, `role="alert"`), "relation", "SQLSTATE") // only the log says why
	open := site{servertest.Setup(t)}
	open.open(t, "/ui/users", "no access control", "PURSER_AUTH_ENABLED=true")
	open.open(t, "/ui/account", "no access control")
}

// TestRebindAccount: an administrator takes an account of the directory from its entry. Only accounts of
// the directory have the form, and who isn't an administrator can't send it.
func TestRebindAccount(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root := s.as("root")
	lacks(t, root.open(t, "/ui/users"), `value="rebind"`)
	if _, err := s.DB.Pool.Exec(t.Context(), "UPDATE accounts SET source = 'ldap', subject = 'uid=ann', entry_id = 'one', password_hash = NULL WHERE name = 'ann'"); err != nil {
		t.Fatal(err)
	}
	root.open(t, "/ui/users", `value="rebind"`, "purser user rebind NAME")
	root.send(t, "/ui/users", url.Values{"do": {"rebind"}, "name": {"ann"}}, "ann goes to the next entry", "Ended: log-ins of browsers")
	var awaits bool
	if err := s.DB.Pool.QueryRow(t.Context(), "SELECT awaits_entry AND entry_id IS NULL FROM accounts WHERE name = 'ann'").Scan(&awaits); err != nil || !awaits {
		t.Errorf("ann still has its entry: %v", err)
	}
	root.send(t, "/ui/users", url.Values{"do": {"rebind"}, "name": {"bob"}}, `role="alert"`, "of LDAP")
	s.Do(t, "POST", "/ui/users", "do=rebind&name=ann", append(servertest.As("bob"), "Content-Type", "application/x-www-form-urlencoded")...).WantStatus(t, 403)
}

// TestOwnAccount: a person makes a token and revokes it, and changes the password.
func TestOwnAccount(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	ann.open(t, "/ui/account", "Make a token", "acme", "administers it", "All your log-ins and refresh tokens end", "Personal tokens stay")
	token := secretOf(t, ann.send(t, "/ui/account", url.Values{"do": {"token"}, "title": {"<b>laptop"}, "action": {"pull"}, "repositories": {"acme/app acme/tools/**"}},
		"&lt;b&gt;laptop", "pull;", "acme/tools/**"))
	s.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("ann", token)...).WantStatus(t, 200)
	content := ann.open(t, "/ui/account")
	lacks(t, content, token)
	id := regexp.MustCompile(`name="id" value="([^"]+)"`).FindStringSubmatch(content)
	ann.send(t, "/ui/account", url.Values{"do": {"revoke"}, "id": {id[1]}}, "was revoked", "no tokens")
	s.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("ann", token)...).WantStatus(t, 401)
	// A refresh token, which a client has got, is listed and revoked as well.
	s.Do(t, "GET", "/token?offline_token=true&service=purser&client_id=docker", "", servertest.As("ann")...).WantStatus(t, 200)
	id = regexp.MustCompile(`name="id" value="([^"]+)"`).FindStringSubmatch(ann.open(t, "/ui/account", ">docker<", ">refresh<"))
	ann.send(t, "/ui/account", url.Values{"do": {"revoke"}, "id": {id[1]}}, "was revoked", "no tokens")
	ann.send(t, "/ui/account", url.Values{"do": {"token"}, "title": {"x"}, "expires": {"soon"}}, "is not a day")
	ann.send(t, "/ui/account", url.Values{"do": {"password"}, "current": {"wrong"}, "password": {"another-password"}, "again": {"another-password"}}, `role="alert"`, "wrong")
	ann.send(t, "/ui/account", url.Values{"do": {"password"}, "current": {"wrong"}, "password": {"a"}, "again": {"b"}}, "differ")
	person, err := s.Auth.Person(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	var cookies []string
	for range 3 {
		cookie, err := s.Auth.Sessions().Create(t.Context(), person.ID, "192.0.2.1", "<i>browser")
		if err != nil {
			t.Fatal(err)
		}
		cookies = append(cookies, cookie)
	}
	browser := site{s.With([]string{"Cookie", "purser_session=" + cookies[0]})}
	browser.open(t, "/ui/account", "&lt;i&gt;browser", "this one")
	browser.send(t, "/ui/account", url.Values{"do": {"end-others"}}, "2 other log-ins have ended")
	s.Do(t, "GET", "/api/v1/user", "", "Cookie", "purser_session="+cookies[1]).WantStatus(t, 401)
}

// TestTeamsAndRobots: an administrator of a namespace manages its teams and robots, and others
// can't see them.
func TestTeamsAndRobots(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	const teams, robots = "/ui/namespaces/acme/-/teams", "/ui/namespaces/acme/-/robots"
	const robot = robots + "/ci"
	ann.open(t, teams, "has no teams")
	ann.send(t, teams, url.Values{"do": {"create"}, "team": {"devs"}, "role": {"creator"}, "description": {"<b>dev"}}, "was created", "&lt;b&gt;dev")
	ann.send(t, teams, url.Values{"do": {"add"}, "team": {"devs"}, "member": {"bob"}}, "bob is a member", "1 member")
	if role, err := s.Auth.RoleIn(t.Context(), "bob", auth.OfNamespace("acme")); err != nil || role != auth.Writer {
		t.Errorf("bob has the role %v, %v", role, err)
	}
	ann.send(t, teams, url.Values{"do": {"save"}, "team": {"devs"}, "was_role": {"creator"}, "role": {"reader"}}, "was saved", "&lt;b&gt;dev")
	ann.send(t, teams, url.Values{"do": {"add"}, "team": {"devs"}, "member": {"nobody"}}, `role="alert"`)
	ann.send(t, teams, url.Values{"do": {"remove"}, "team": {"devs"}, "member": {"bob"}}, "no longer a member", "no members")
	ann.send(t, teams, url.Values{"do": {"delete"}, "team": {"devs"}}, "was deleted", "has no teams")

	ann.open(t, robots, "has no robots")
	secret := secretOf(t, ann.send(t, robots, url.Values{"do": {"create"}, "robot": {"ci"}, "description": {"builds"}, "action": {"pull"}, "expires": {"2099-01-01"}}, "acme&#43;ci", "builds"))
	s.Grant(t, "acme", "acme+ci", auth.Writer)
	pull := func(secret string, status int) {
		t.Helper()
		s.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("acme+ci", secret)...).WantStatus(t, status)
	}
	pull(secret, 200)
	lacks(t, ann.open(t, robots, "acme&#43;ci", "pull;", `href="`+robot+`"`), secret)
	lacks(t, ann.open(t, robot, "acme&#43;ci", "pull;", "builds"), secret)
	next := secretOf(t, ann.send(t, robot, url.Values{"do": {"rotate"}, "overlap": {"true"}}, "new secret"))
	pull(secret, 200)
	pull(next, 200)
	save := func() url.Values {
		return merge(formAfter(t, ann.open(t, robot), "Change the description and the limits"), "do", "save")
	}
	form := merge(save(), "description", "<b>other", "repositories", "acme/none")
	form.Del("action")
	ann.send(t, robot, form, "The robot was saved", "acme/none", "all actions", "&lt;b&gt;other")
	pull(next, 403)
	for _, action := range auth.Actions() { // a form that leaves one out would take the limit away
		picked := save()
		picked["action"] = []string{string(action)}
		ann.send(t, robot, picked, `value="`+string(action)+`" checked`)
	}
	form = merge(save(), "repositories", "")
	form.Del("action")
	ann.send(t, robot, form, "all actions", "all repositories")
	pull(next, 200)
	ann.send(t, robot, url.Values{"do": {"disable"}}, "no longer log in", "disabled")
	pull(next, 401)
	ann.send(t, robot, url.Values{"do": {"enable"}}, "can log in again", "enabled")
	pull(next, 200)
	ann.send(t, robot, url.Values{"do": {"rotate"}}, "new secret")
	pull(next, 401)
	ann.post(t, 400, robot, url.Values{"do": {"rotate"}, "expires": {"2001-01-01"}, "overlap": {"true"}}, `role="alert"`, `name="expires" value="2001-01-01"`, `name="overlap" value="true" checked`, `id="wrong-rotate-expires"`)
	ann.post(t, 400, robots, url.Values{"do": {"create"}, "robot": {"x y"}, "description": {"typed"}, "repositories": {"acme/typed"}, "no-actions": {"true"}},
		`role="alert"`, `id="wrong-create-robot"`, `name="robot" value="x y"`, `value="typed"`, `value="acme/typed"`, `name="no-actions" value="true" checked`)
	ann.post(t, 409, robots, url.Values{"do": {"create"}, "robot": {"ci"}}, `role="alert"`, `id="wrong-create-robot"`, `name="robot" value="ci"`)
	ann.post(t, 400, robots, url.Values{"do": {"create"}, "robot": {"new"}, "repositories": {"acme/**/"}}, `id="wrong-create-repositories"`)
	ann.send(t, robot, url.Values{"do": {"delete"}}, "was deleted", "has no robots")
	s.Do(t, "GET", robot, "", servertest.As("ann")...).WantStatus(t, 404)
	for _, path := range []string{teams, robots} {
		s.Do(t, "GET", path, "", servertest.As("bob")...).WantStatus(t, 403)
		site{servertest.Setup(t)}.Do(t, "GET", path, "").WantStatus(t, 404)
	}
}

// TestFormsKeepEmptyLimits: a robot or a token that may do nothing is shown so, and saving its form as
// the page has it keeps that.
func TestFormsKeepEmptyLimits(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	const robots, robot = "/ui/namespaces/acme/-/robots", "/ui/namespaces/acme/-/robots/ci"
	const noActions, noRepositories = `name="no-actions" value="true" checked`, `name="no-repositories" value="true" checked`
	secret := secretOf(t, ann.send(t, robots, url.Values{"do": {"create"}, "robot": {"ci"}}, "all actions", "all repositories"))
	s.Grant(t, "acme", "acme+ci", auth.Writer)
	for _, c := range []struct {
		body          string
		shown, hidden []string
		pull          int
	}{
		{`{"repositories": [], "actions": []}`, []string{"no actions; no repositories", noActions, noRepositories}, nil, 403},
		{`{"repositories": null, "actions": []}`, []string{"no actions", "all repositories", noActions}, []string{noRepositories}, 403},
		{`{"repositories": [], "actions": null}`, []string{"all actions", "no repositories", noRepositories}, []string{noActions}, 403},
		{`{"repositories": null, "actions": null}`, []string{"all actions", "all repositories"}, []string{noActions, noRepositories}, 200},
		{`{"repositories": ["acme/*"], "actions": ["pull"]}`, []string{"pull; acme/*"}, []string{noActions, noRepositories}, 200},
	} {
		ann.Manage(t, "PATCH", "/organization/acme/robots/ci", c.body).WantStatus(t, 200)
		content := ann.open(t, robot, c.shown...)
		lacks(t, content, c.hidden...)
		// The form as a browser would send it.
		ann.send(t, robot, merge(formAfter(t, content, "Change the description and the limits"), "do", "save"), append([]string{"Nothing was changed"}, c.shown...)...)
		ann.send(t, robot, merge(formAfter(t, content, "Change the description and the limits"), "do", "save", "description", c.body), append([]string{"The robot was saved"}, c.shown...)...)
		s.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("acme+ci", secret)...).WantStatus(t, c.pull)
	}
	ann.post(t, 400, robot, url.Values{"do": {"save"}, "action": {"pull"}, "no-actions": {"true"}}, `role="alert"`, "leave one of them out", "pull; acme/*", noActions, `value="pull" checked`)
	ann.send(t, robots, url.Values{"do": {"create"}, "robot": {"idle"}, "no-actions": {"true"}, "no-repositories": {"true"}}, "no actions; no repositories")
	token := secretOf(t, ann.send(t, "/ui/account", url.Values{"do": {"token"}, "title": {"idle"}, "no-actions": {"true"}}, "no actions", "all repositories"))
	s.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("ann", token)...).WantStatus(t, 403)
}
