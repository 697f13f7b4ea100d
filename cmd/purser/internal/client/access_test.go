package client

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// office is a registry with access control, its administrator "root", and a user of the command
// line with a home of his own.
type office struct {
	t       *testing.T
	r       *servertest.Registry
	environ []string
	file    string // the log-ins
}

func newOffice(t *testing.T, change ...func(*servertest.Options, *db.DB)) *office {
	t.Helper()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	r := servertest.NewReplica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		o.Access = &auth.Options{}
		var err error
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: pool, Catalog: o.Catalog, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		for _, f := range change {
			f(o, pool)
		}
	})
	r.Listen(t)
	r.AddAccount(t, "root", true)
	a := r.Do(t, http.MethodPost, "/api/v1/organization", `{"name": "acme"}`, append(servertest.As("root"), "Content-Type", "application/json")...)
	if a.StatusCode != http.StatusCreated {
		t.Fatalf("creating the namespace: %d %s", a.StatusCode, a.Content)
	}
	dir := t.TempDir()
	return &office{t, r, []string{"XDG_CONFIG_HOME=" + dir, "PURSER_SERVER=" + r.URL}, filepath.Join(dir, "purser", "credentials.json")}
}

// purser runs a command line with this standard input.
func (o *office) purser(stdin string, args ...string) (code int, stdout, stderr string) {
	o.t.Helper()
	var out, errOut bytes.Buffer
	src := &command.Source{Environ: o.environ}
	root := command.NewRoot(src, Commands(src)...)
	Complete(src, root)
	root.SetIn(strings.NewReader(stdin))
	code = command.Execute(o.t.Context(), root, args, &out, &errOut)
	return code, out.String(), errOut.String()
}

func (o *office) ok(stdin string, args ...string) string {
	o.t.Helper()
	code, stdout, stderr := o.purser(stdin, args...)
	if code != 0 || stderr != "" {
		o.t.Fatalf("purser %q: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	return stdout
}

func (o *office) fails(want string, code int, stdin string, args ...string) {
	o.t.Helper()
	got, stdout, stderr := o.purser(stdin, args...)
	if got != code || !strings.Contains(stderr, want) || stdout != "" {
		o.t.Errorf("purser %q: exit code %d\n%s%s\nwant %d, %q", args, got, stdout, stderr, code, want)
	}
	if strings.TrimSpace(stdin) != "" && strings.Contains(stderr, strings.TrimSpace(stdin)) {
		o.t.Errorf("purser %q prints the secret that it was given: %s", args, stderr)
	}
}

// login logs the user in.
func (o *office) login(name string) {
	o.t.Helper()
	o.ok(servertest.PasswordOf(name)+"\n", "login", "--username", name, "--password-stdin")
}

// stored returns the log-ins in the file.
func (o *office) stored() map[string]command.Login {
	o.t.Helper()
	raw, err := os.ReadFile(o.file)
	if err != nil {
		o.t.Fatal(err)
	}
	var content struct{ Servers map[string]command.Login }
	if err := json.Unmarshal(raw, &content); err != nil {
		o.t.Fatal(err)
	}
	if strings.Contains(string(raw), "password-of-") {
		o.t.Error("the file contains a password")
	}
	return content.Servers
}

// TestLoginReplacesNothingUnasked: the log-in of another account stays unless the user says that it may go.
func TestLoginReplacesNothingUnasked(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.r.AddAccount(t, "alice", false)
	as := func(name string, flags ...string) []string {
		return append([]string{"login", "--username", name, "--password-stdin"}, flags...)
	}
	o.ok(servertest.PasswordOf("alice"), as("alice")...)
	before := o.stored()
	o.fails("as alice. Replace that log-in by one of root? There is no terminal to ask for confirmation: add --replace to go on", 3, servertest.PasswordOf("root"), as("root")...)
	if now := o.stored(); len(now) != 1 || !maps.Equal(tokensOf(now), tokensOf(before)) {
		t.Error("the log-in was replaced")
	}
	if list := column(t, o.ok("", "token", "list"), "UUID"); len(list) != 1 {
		t.Errorf("alice has the tokens %q", list)
	}
	o.ok(servertest.PasswordOf("alice"), as("alice")...) // the same account
	o.ok(servertest.PasswordOf("root"), as("root", "--replace")...)
	for _, l := range o.stored() {
		if l.Name != "root" {
			t.Errorf("the log-in is of %s", l.Name)
		}
	}
	if list := column(t, o.ok("", "token", "list"), "UUID"); len(list) != 1 {
		t.Errorf("root has the tokens %q: a log-in that was refused has left one", list)
	}
}

func tokensOf(logins map[string]command.Login) map[string]string {
	tokens := make(map[string]string)
	for server, l := range logins {
		tokens[server] = l.Token
	}
	return tokens
}

func TestLogin(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.fails("purser login "+o.r.URL, 3, "", "namespace", "create", "tools")
	o.fails("--password-stdin", 2, "", "login", "--username", "root")
	o.fails("--username", 2, "", "login", "--password-stdin")
	o.fails("the password is empty", 2, "\n", "login", "--username", "root", "--password-stdin")
	o.fails("", 3, "a-wrong-password\n", "login", "--username", "root", "--password-stdin")
	if _, err := os.Stat(o.file); err == nil {
		t.Fatal("a failed log-in stores something")
	}
	if text := o.ok(servertest.PasswordOf("root")+"\r\n", "login", o.r.URL, "--username", "root", "--password-stdin"); !strings.Contains(text, " as root.\n") {
		t.Errorf("it prints %q", text)
	}
	info, err := os.Stat(o.file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v: want mode 0600", info.Mode(), err)
	}
	first := o.stored()[o.r.URL]
	if first.Name != "root" || !strings.HasPrefix(first.Token, "purser_pat_") || first.TokenID == "" || first.Expires != nil {
		t.Errorf("stored: %+v", first)
	}
	o.ok("", "namespace", "create", "tools")
	if text := o.ok("", "token", "list"); !strings.Contains(text, first.TokenID) || !strings.Contains(text, "purser CLI on ") {
		t.Errorf("tokens:\n%s", text)
	}
	// Another log-in replaces the token, and revokes the one before.
	if text := o.ok(servertest.PasswordOf("root")+"\n", "login", o.r.URL, "--username", "root", "--password-stdin", "--expires", "90d"); !strings.Contains(text, " as root. The log-in ends on ") {
		t.Errorf("it prints %q", text)
	}
	if o.stored()[o.r.URL].Expires == nil {
		t.Error("the end isn't stored")
	}
	o.login("root")
	second := o.stored()[o.r.URL]
	bearer := func(token string, status int) {
		t.Helper()
		if a := o.r.Do(t, http.MethodGet, "/api/v1/user/apptoken", "", servertest.Bearer(token)...); a.StatusCode != status {
			t.Errorf("the token's answer is %d, want %d", a.StatusCode, status)
		}
	}
	bearer(first.Token, 401)
	bearer(second.Token, 200)
	if text := o.ok("", "logout"); text != "Logged out of "+o.r.URL+".\n" {
		t.Errorf("it prints %q", text)
	}
	bearer(second.Token, 401)
	if len(o.stored()) != 0 {
		t.Errorf("after logout: %v", o.stored())
	}
	if text := o.ok("", "logout"); !strings.Contains(text, "not logged in") {
		t.Errorf("a second logout prints %q", text)
	}
	o.fails("purser login "+o.r.URL, 3, "", "user", "list")
}

// TestLoginWithSecret: a personal token or a robot's secret in place of the password is stored
// as it is.
func TestLoginWithSecret(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	secret := secretIn(t, o.ok("", "robot", "create", "acme+ci", "--role", "administrator"), "purser_robot_")
	token := secretIn(t, o.ok("", "token", "create", "laptop"), "purser_pat_")
	o.ok("", "logout")
	for name, secret := range map[string]string{"acme+ci": secret, "root": token} {
		o.ok(secret, "login", "--username", name, "--password-stdin")
		if got := o.stored()[o.r.URL]; got.Name != name || got.Token != secret || got.TokenID != "" {
			t.Errorf("stored: %+v", got)
		}
		if text := o.ok("", "user", "show"); !strings.Contains(text, name) {
			t.Errorf("I am\n%s", text)
		}
		o.ok("", "logout")
		o.environ = append(o.environ, "PURSER_TOKEN="+secret)
		o.ok("", "robot", "list", "acme")
		o.environ = o.environ[:2]
	}
}

// secretIn returns the secret in a text, which must contain it once.
func secretIn(t *testing.T, text, prefix string) string {
	t.Helper()
	found := regexp.MustCompile(prefix+`[0-9A-Za-z]{30,}`).FindAllString(text, -1)
	if len(found) != 1 {
		t.Fatalf("%d secrets in %q, want one", len(found), text)
	}
	return found[0]
}

func TestLoginToOpenRegistry(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	dir := t.TempDir()
	o := &office{t, r, []string{"XDG_CONFIG_HOME=" + dir}, filepath.Join(dir, "purser", "credentials.json")}
	if text := o.ok("", "login", r.URL); !strings.Contains(text, " is open: ") {
		t.Errorf("it prints %q", text)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("it stores %v, %v", entries, err)
	}
	o.fails("unencrypted", 1, "the-password", "login", "http://registry.invalid", "--username", "somebody", "--password-stdin")
}

func TestUserCommands(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	made := o.ok("", "user", "create", "alice", "--email", "alice@example.com")
	pass := regexp.MustCompile(`told again: (\S+)\n`).FindStringSubmatch(made)[1]
	o.fails("there is an account alice already", 3, "", "user", "create", "alice")
	if text := o.ok("the-new-password\n", "user", "create", "bob", "--password-stdin", "--admin", "-o", "json"); strings.Contains(text, "the-new-password") || !strings.Contains(text, `"super_user": true`) {
		t.Errorf("it prints %s", text)
	}
	if text := o.ok("", "user", "list"); !strings.Contains(text, "alice@example.com  enabled ") || !strings.Contains(text, "enabled, administrator") {
		t.Errorf("users:\n%s", text)
	}
	o.ok("", "user", "disable", "alice")
	o.fails("", 3, pass, "login", "--username", "alice", "--password-stdin")
	o.ok("", "user", "enable", "alice")
	o.fails("add --yes", 3, "", "user", "revoke", "alice")
	if text := o.ok("", "user", "revoke", "alice", "--personal-tokens", "--yes"); !strings.Contains(text, "Ended for alice: log-ins of browsers 0, refresh tokens 0, personal tokens 0.") {
		t.Errorf("revoked:\n%s", text)
	}
	o.ok("", "user", "admin", "bob", "off")
	if text := o.ok("", "user", "show", "bob"); strings.Contains(text, "administrator") {
		t.Errorf("bob:\n%s", text)
	}
	if text := o.ok("", "user", "password", "alice"); !strings.Contains(text, "told again: ") || !strings.Contains(text, "purser user revoke alice --personal-tokens") {
		t.Errorf("a new password:\n%s", text)
	}
	var changed struct{ Password string }
	if err := json.Unmarshal([]byte(o.ok("", "user", "password", "alice", "-o", "json")), &changed); err != nil || changed.Password == "" || changed.Password == pass {
		t.Errorf("the new password is %+v, %v", changed, err)
	}
	alice := &office{t, o.r, []string{"XDG_CONFIG_HOME=" + t.TempDir(), "PURSER_SERVER=" + o.r.URL}, ""}
	alice.ok(changed.Password, "login", "--username", "alice", "--password-stdin")
	alice.fails("", 3, "", "user", "list")
	alice.fails("current_password", 3, "wrong-password\nthe-own-password\n", "user", "password", "--password-stdin")
	alice.fails("on the second", 2, "only-one-line\n", "user", "password", "--password-stdin")
	if text := alice.ok(changed.Password+"\nthe-own-password\n", "user", "password", "alice", "--password-stdin"); !strings.Contains(text, "Your personal tokens stay") {
		t.Errorf("an own new password:\n%s", text)
	}
	alice.ok("", "user", "show") // by the token of the log-in
	alice.ok("the-own-password", "login", "--username", "alice", "--password-stdin")
	o.fails("add --yes", 3, "", "user", "delete", "alice")
	o.ok("", "user", "delete", "alice", "--yes")
	o.fails("alice", 3, "", "user", "show", "alice")
	o.fails("administrator", 3, "", "user", "disable", "root")
}

func TestRobotCommands(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	text := o.ok("", "robot", "create", "acme", "ci", "--role", "writer", "--repositories", "acme/app,acme/tools/**", "--actions", "pull,push", "--expires", "90d")
	secret := secretIn(t, text, "purser_robot_")
	if !strings.Contains(text, "docker login "+strings.TrimPrefix(o.r.URL, "http://")+" --username acme+ci --password-stdin\n") {
		t.Errorf("it prints\n%s", text)
	}
	show := o.ok("", "robot", "show", "acme+ci")
	for _, want := range []string{"acme/app,acme/tools/**", "pull,push", "writer"} {
		if !strings.Contains(show, want) {
			t.Errorf("no %q in\n%s", want, show)
		}
	}
	if strings.Contains(show+o.ok("", "robot", "show", "acme", "ci", "-o", "json"), secret) {
		t.Error("show prints the secret again")
	}
	o.ok("", "robot", "limit", "acme+ci", "--actions", "pull", "--all-repositories")
	if list := o.ok("", "robot", "list", "acme"); !strings.Contains(list, "acme+ci  enabled  all           pull ") {
		t.Errorf("robots:\n%s", list)
	}
	works := func(secret string, status int) {
		t.Helper()
		if a := o.r.Do(t, http.MethodGet, "/api/v1/user", "", servertest.Basic("acme+ci", secret)...); a.StatusCode != status {
			t.Errorf("logging in is answered with %d, want %d", a.StatusCode, status)
		}
	}
	var rotated struct{ Token string }
	if err := json.Unmarshal([]byte(o.ok("", "robot", "rotate", "acme+ci", "--overlap", "1h", "-o", "json")), &rotated); err != nil {
		t.Fatal(err)
	}
	works(secret, 200)
	works(rotated.Token, 200)
	last := secretIn(t, o.ok("", "robot", "rotate", "acme+ci"), "purser_robot_")
	works(rotated.Token, 401)
	works(last, 200)
	o.ok("", "robot", "disable", "acme+ci")
	works(last, 401)
	o.ok("", "robot", "enable", "acme+ci")
	for _, args := range []string{"create acme", "create acme+ci extra", "show acme/app+ci", "limit acme+ci", "rotate acme+ci --overlap 1000h", "federate acme+ci",
		"create acme+x --role owner", "create acme+x --actions fly", "create acme+x --repositories Acme", "create acme+x --expires 2020-01-01", "create acme+x --expires 3x"} {
		o.fails("", 2, "", append([]string{"robot"}, strings.Fields(args)...)...)
	}
	o.fails("add --yes", 3, "", "robot", "delete", "acme+ci")
	o.ok("", "robot", "delete", "acme+ci", "-y")
	works(last, 401)
}

// TestCommandsKeepEmptyLimits: each command that takes limits can say that nothing is allowed, and
// what it makes is shown so.
func TestCommandsKeepEmptyLimits(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	same := func(form string, got, want []string) {
		t.Helper()
		if (got == nil) != (want == nil) || !slices.Equal(got, want) {
			t.Errorf("%s: %#v, want %#v", form, got, want)
		}
	}
	var limits struct{ Repositories, Actions []string }
	read := func(args ...string) {
		t.Helper()
		limits.Repositories, limits.Actions = nil, nil
		if err := json.Unmarshal([]byte(o.ok("", append(args, "-o", "json")...)), &limits); err != nil {
			t.Fatal(err)
		}
	}
	read("robot", "create", "acme+idle", "--no-actions", "--no-repositories")
	same("a new robot's actions", limits.Actions, []string{})
	same("a new robot's repositories", limits.Repositories, []string{})
	if list := o.ok("", "robot", "list", "acme"); !strings.Contains(list, "acme+idle  enabled  none          none ") {
		t.Errorf("robots:\n%s", list)
	}
	for _, c := range []struct {
		flags                 []string
		repositories, actions []string
	}{
		{[]string{"--all-actions"}, []string{}, nil},
		{[]string{"--actions", "pull", "--all-repositories"}, nil, []string{"pull"}},
		{[]string{"--no-repositories"}, []string{}, []string{"pull"}},
		{[]string{"--no-actions", "--repositories", "acme/app"}, []string{"acme/app"}, []string{}},
	} {
		o.ok("", append([]string{"robot", "limit", "acme+idle"}, c.flags...)...)
		read("robot", "show", "acme+idle")
		same(strings.Join(c.flags, " ")+": actions", limits.Actions, c.actions)
		same(strings.Join(c.flags, " ")+": repositories", limits.Repositories, c.repositories)
	}
	read("token", "create", "idle", "--no-actions")
	same("a new token's actions", limits.Actions, []string{})
	same("a new token's repositories", limits.Repositories, nil)
	for _, line := range []string{"robot limit acme+idle --no-actions --actions pull", "robot limit acme+idle --no-actions --all-actions",
		"token create x --repositories acme/app --no-repositories"} {
		o.fails("leave all but one out", 2, "", strings.Fields(line)...)
	}
}

// TestSessionCommands: a log-in of a browser is listed, and ends for good.
func TestSessionCommands(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	form := "username=root&password=" + servertest.PasswordOf("root")
	o.r.Do(t, http.MethodPost, "/auth/login", form, "Content-Type", "application/x-www-form-urlencoded", "User-Agent", "Netscape").WantStatus(t, http.StatusSeeOther)
	list := o.ok("", "session", "list")
	ids := column(t, list, "ID")
	if len(ids) != 1 || !strings.Contains(list, "Netscape") {
		t.Fatalf("log-ins:\n%s", list)
	}
	if text := o.ok("", "session", "end", ids[0]); text != "Ended log-in "+ids[0]+".\n" {
		t.Errorf("it prints %q", text)
	}
	o.fails("", 3, "", "session", "end", ids[0])
	o.fails("ID", 2, "", "session", "end", "this")
	if left := strings.TrimSpace(o.ok("", "session", "list", "-q")); left != "" {
		t.Errorf("left: %q", left)
	}
}

func TestTeamAndGrantCommands(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.r.AddAccount(t, "alice", false)
	o.login("root")
	o.ok("", "repo", "create", "acme/app")
	if text := o.ok("", "team", "create", "acme", "dev", "--role", "writer", "--description", "writes"); text != "Created team dev of acme.\n" {
		t.Errorf("it prints %q", text)
	}
	o.ok("", "team", "add", "acme", "dev", "alice", "root")
	o.ok("", "team", "remove", "acme", "dev", "root")
	if list := o.ok("", "team", "list", "acme"); !strings.Contains(list, "dev   writer  1        writes") {
		t.Errorf("teams:\n%s", list)
	}
	if list := o.ok("", "team", "members", "acme", "dev"); !strings.Contains(list, "alice  user  added") || strings.Contains(list, "root") {
		t.Errorf("members:\n%s", list)
	}
	o.ok("", "robot", "create", "acme+ci")
	o.ok("", "grant", "set", "acme/app", "maintainer", "--user", "alice")
	o.ok("", "grant", "set", "acme/app", "reader", "--robot", "ci")
	o.ok("", "grant", "set", "acme/app", "administrator", "--team", "dev")
	var grants []grantView
	if err := json.Unmarshal([]byte(o.ok("", "grant", "list", "acme/app", "-o", "json")), &grants); err != nil {
		t.Fatal(err)
	}
	if want := []grantView{{"robot", "acme+ci", "reader"}, {"user", "alice", "maintainer"}, {"team", "dev", "administrator"}}; !slices.Equal(grants, want) {
		t.Errorf("grants: %v, want %v", grants, want)
	}
	if list := o.ok("", "team", "roles", "acme", "dev"); !strings.Contains(list, "acme/app    administrator") {
		t.Errorf("the team's roles:\n%s", list)
	}
	o.ok("", "grant", "remove", "acme/app", "--robot", "acme+ci")
	o.fails("", 3, "", "grant", "remove", "acme/app", "--robot", "acme+ci")
	o.fails("name one of", 2, "", "grant", "set", "acme", "reader")
	o.fails("name one of", 2, "", "grant", "set", "acme", "reader", "--user", "a", "--team", "b")
	o.fails("ROLE", 2, "", "grant", "set", "acme", "owner", "--user", "alice")
	o.ok("", "grant", "set", "acme", "reader", "--user", "alice")
	if text := o.ok("", "repo", "visibility", "acme/app", "public"); text != "Repository acme/app is public now.\n" {
		t.Errorf("it prints %q", text)
	}
	o.fails("", 2, "", "repo", "visibility", "acme/app", "open")
	for line, want := range map[string]string{"team members acme ": "dev", "user show al": "alice", "robot show acme+": "acme+ci", "robot show ac": "acme+", "team remove acme dev ": "alice"} {
		if _, list, _ := o.purser("", append([]string{"__completeNoDesc"}, strings.Split(line, " ")...)...); !slices.Contains(strings.Split(list, "\n"), want) {
			t.Errorf("%s is completed with %q, want %q", line, list, want)
		}
	}
	o.fails("add --yes", 3, "", "team", "delete", "acme", "dev")
	o.ok("", "team", "delete", "acme", "dev", "--yes")
}
