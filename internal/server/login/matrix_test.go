package login_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// client is a principal with one of its credentials.
type client struct {
	name    string
	headers []string
	// credential is "none", "basic", "token" (a registry token), "bearer" (a generated secret)
	// or "cookie".
	credential string
	who        who
	own        string // the name of the account
}

// seen is how an interface sees the client: only one of them takes registry tokens and only the
// other takes cookies. ok is false if the interface refuses the credentials.
func (c client) seen(management bool) (w who, ok bool) {
	switch {
	case management && c.credential == "token":
		return who{}, false
	case !management && c.credential == "cookie":
		return who{}, true
	}
	return c.who, true
}

// matrix makes the principals of the test, each with its credentials.
type matrix struct {
	*servertest.Registry
	t       *testing.T
	clients []client
}

// The repositories of the matrix. The role of a principal of one repository is in each of them.
var repositories = map[string]any{"acme/private": false, "acme/public": true, "acme/default": nil}

// add adds a principal with the given headers, and with the registry token that they get.
func (m *matrix) add(name, own, credential string, headers []string, w who) {
	m.clients = append(m.clients, client{name + " by " + credential, headers, credential, w, own})
}

// addToken adds the registry token that the headers get for everything.
func (m *matrix) addToken(name string, headers []string, w who) {
	scopes := []string{"registry:catalog:*"}
	for repository := range repositories {
		scopes = append(scopes, "repository:"+repository+":*")
	}
	w.anonymous = true
	m.add(name, "", "token", servertest.Bearer(m.Token(m.t, headers, scopes...)), w)
}

// addPerson creates an account and adds it with its password and a registry token, and with all
// other credentials if `all` is set.
func (m *matrix) addPerson(name string, w who, all bool) {
	w.account = true
	a := person(m.t, m.Registry, name, w.superuser)
	switch w.where {
	case "namespace":
		m.Grant(m.t, "acme", name, roleOf(m.t, w.role))
	case "elsewhere":
		m.Grant(m.t, "beta", name, roleOf(m.t, w.role))
	case "repository":
		for repository := range repositories {
			m.Grant(m.t, repository, name, roleOf(m.t, w.role))
		}
	}
	m.add(name, name, "basic", secret(name), w)
	m.addToken(name, secret(name), w)
	if !all {
		return
	}
	cookie, err := m.Auth.Sessions().Create(m.t.Context(), a.ID, "192.0.2.1", "test")
	if err != nil {
		m.t.Fatal(err)
	}
	m.add(name, name, "cookie", []string{"Cookie", "purser_session=" + cookie}, w)
	m.add(name, name, "bearer", servertest.Bearer(m.personal(name, auth.Limits{})), w)
}

func (m *matrix) personal(account string, l auth.Limits) string {
	m.t.Helper()
	_, text, err := m.Auth.CreateToken(m.t.Context(), &auth.Principal{Name: account}, "test", l, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// addLimited adds a personal token of an account with limits, with which a robot of the same
// role is added too.
func (m *matrix) addLimited(name, account string, w who) {
	w.account = true
	l := auth.Limits{Repositories: w.repositories}
	for _, a := range w.actions {
		l.Actions = append(l.Actions, auth.Action(a))
	}
	text := m.personal(account, l)
	m.add("personal token: "+name, account, "basic", servertest.Basic("$token", text), w)
	m.add("personal token: "+name, account, "bearer", servertest.Bearer(text), w)
	m.addToken("personal token: "+name, servertest.Basic(account, text), w)
	if w.superuser {
		return
	}
	short := strings.ReplaceAll(name, " ", "-")
	robot, text, err := m.Auth.CreateRobot(m.t.Context(), "acme", short, "", l, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Grant(m.t, "acme", robot.Name, roleOf(m.t, w.role))
	w.robot = true
	m.add("robot: "+name, robot.Name, "basic", servertest.Basic(robot.Name, text), w)
	m.add("robot: "+name, robot.Name, "bearer", servertest.Bearer(text), w)
	m.addToken("robot: "+name, servertest.Basic(robot.Name, text), w)
}

func roleOf(t *testing.T, name string) auth.Role {
	t.Helper()
	role, err := auth.ParseRole(name)
	if err != nil {
		t.Fatal(err)
	}
	return role
}

// newMatrix starts a registry with the repositories and all principals.
func newMatrix(t *testing.T) *matrix {
	t.Helper()
	m := &matrix{Registry: whole(t, &auth.Options{AnonymousPull: true}), t: t}
	person(t, m.Registry, "root", true)
	root := m.With(secret("root"))
	for repository, public := range repositories {
		root.Put(t, repository, "v1", root.Simple(t, repository, 1, nil))
		visibility(t, m.Registry, repository, public)
	}
	root.Put(t, "beta/app", "v1", root.Simple(t, "beta/app", 1, nil))
	m.add("nobody", "", "none", nil, who{})
	m.addToken("nobody", nil, who{})
	m.addPerson("stranger", who{}, true)
	for _, role := range roles[1:] {
		m.addPerson(role, who{role: role, where: "namespace"}, true)
		m.addPerson(role+"-repository", who{role: role, where: "repository"}, false)
		m.addPerson(role+"-elsewhere", who{role: role, where: "elsewhere"}, false)
	}
	m.addPerson("operator", who{superuser: true}, true)
	w := who{role: "administrator", where: "namespace"}
	m.addLimited("unlimited", "administrator", w)
	w.actions = []string{"pull"}
	m.addLimited("pull", "administrator", w)
	w.actions = []string{"pull", "push"}
	m.addLimited("push", "administrator", w)
	w.actions = []string{"delete"}
	m.addLimited("delete", "administrator", w)
	w.actions, w.repositories = nil, []string{"acme/private"}
	m.addLimited("pattern", "administrator", w)
	m.addLimited("pattern of the operator", "operator", who{superuser: true, repositories: []string{"acme/private"}})
	m.addLimited("pull of the operator", "operator", who{superuser: true, actions: []string{"pull"}})
	return m
}

// TestMatrix: each principal, with each of its credentials, is allowed or denied each operation
// of both interfaces as the documented rules say.
func TestMatrix(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	list := operations(t, m.Registry)
	management := 0
	for _, o := range list {
		if _, ok := accesses[o.access]; !ok {
			t.Errorf("%s: the rules don't say who has the access %q", o, o.access)
			continue
		}
		if want := []string{ruleOfOCI(o.method, o.pattern)}; !o.management && !slices.Contains(want, o.access) {
			t.Errorf("%s needs the access %q, want %q", o, o.access, want)
		}
		if want := ruleOf(o.method, o.pattern); o.management && !slices.Contains(want, o.access) {
			t.Errorf("%s needs the access %q, want one of %q", o, o.access, want)
		}
		if o.management {
			management++
		}
		for _, c := range m.clients {
			for _, p := range o.places(c) {
				m.check(o, c, p)
			}
		}
	}
	if len(m.clients) < 50 || management < 60 || len(list)-management < 20 {
		t.Errorf("%d clients, %d operations, %d of them of the management API", len(m.clients), len(list), management)
	}
}

// places returns the places to which the matrix sends an operation.
func (o operation) places(c client) (list []place) {
	switch {
	case o.ofRepository():
		for repository, public := range repositories {
			list = append(list, place{namespace: "acme", repository: repository, public: public == true})
		}
	case o.ofNamespace():
		list = append(list, place{namespace: "acme"})
	case strings.HasPrefix(o.pattern, "/api/v1/user/"):
		list = append(list, place{namespace: c.own, own: true})
	case o.ofHolds():
		list = append(list, place{namespace: "acme"}, place{})
	default:
		list = append(list, place{})
	}
	return list
}

// check sends one request and compares its status with the rules.
func (m *matrix) check(o operation, c client, p place) {
	w, ok := c.seen(o.management)
	want, access := 0, o.access
	if accesses[access].role != "" && p == (place{}) {
		// The handler asks for the access to what the body or the query names: here to the
		// whole registry, and only if the request is valid.
		access = "ping"
		if o.ofHolds() || o.method == "GET" && !strings.Contains(o.pattern, "{") {
			access = "operate"
		}
	}
	switch {
	case access == "any" && !w.refuses(o.method, o.pattern):
	case !ok:
		want = 401
	case !o.management && access == "list" && !w.may("ping", p): // who sends nothing is asked for credentials
		want = 401
	case w.may(access, p) && !w.refuses(o.method, o.pattern):
	case w.account:
		want = 403
	default: // another registry token might do
		want = 401
	}
	path := o.path(p.namespace, p.repository)
	if o.ofHolds() && p.namespace != "" {
		path += "?namespace=" + p.namespace
	}
	q := o.request(path, c.headers...)
	a := serve(m.t.Context(), m.Registry, q)
	got := a.Code
	if got != 401 && got != 403 {
		if got == 500 {
			m.t.Errorf("%s: %s: %d %s", c.name, q.URL.Path, got, a.Body)
		}
		got = 0
	}
	if got != want {
		m.t.Errorf("%s: %s %s (%s): %d %.200s, want %d (0 for any other status)", c.name, o.method, q.URL.Path, o.access, a.Code, a.Body, want)
	}
	offered := o.management && o.access == "list" && !w.account // credentials may show more
	if challenge := a.Header().Get("WWW-Authenticate"); (challenge != "") != (a.Code == 401 || offered) {
		m.t.Errorf("%s: %s %s: status %d with the challenge %q", c.name, o.method, q.URL.Path, a.Code, challenge)
	}
}

// TestPublicByDefault: in a registry whose repositories are public by default, everybody may
// pull from one without a visibility of its own, and only that. If anonymous pulls are off,
// every account may, and nobody else.
func TestPublicByDefault(t *testing.T) {
	t.Parallel()
	for _, anonymous := range []bool{true, false} {
		r := closed(t, map[string]auth.Role{"stranger": auth.NoRole}, func(o *servertest.Options) {
			o.Access.PublicByDefault, o.Access.AnonymousPull = true, anonymous
		})
		root := r.With(servertest.As("root"))
		root.Put(t, "acme/private", "v1", root.Simple(t, "acme/private", 1, nil))
		visibility(t, r, "acme/private", false)
		nobody := 200
		if !anonymous {
			nobody = 401
		}
		const open, shut, absent = "/v2/acme/app/manifests/v1", "/v2/acme/private/manifests/v1", "/v2/acme/absent/manifests/v1"
		r.Do(t, "GET", open, "").WantStatus(t, nobody)
		r.Do(t, "GET", shut, "").WantStatus(t, 401)
		r.Do(t, "GET", absent, "").WantStatus(t, 401)
		r.Do(t, "GET", open, "", servertest.As("stranger")...).WantStatus(t, 200)
		r.Do(t, "GET", shut, "", servertest.As("stranger")...).WantStatus(t, 403)
		r.Do(t, "GET", absent, "", servertest.As("stranger")...).WantStatus(t, 403)
		r.Do(t, "PUT", open, "{}", servertest.As("stranger")...).WantStatus(t, 403)
		r.Do(t, "DELETE", open, "", servertest.As("stranger")...).WantStatus(t, 403)
		r.Do(t, "GET", "/token?"+url.Values{"scope": {"repository:acme/app:pull"}}.Encode(), "").WantStatus(t, nobody)
	}
}
