package login_test

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// withProvider starts a provider, and a registry at which its users log in.
func withProvider(t *testing.T, change ...func(*identity.ProviderOptions)) (*identitytest.Provider, *servertest.Registry) {
	t.Helper()
	p := identitytest.OIDC(t)
	r := closed(t, nil, func(o *servertest.Options) {
		var err error
		o.Access.SuperusersOf = []string{auth.SourceOIDC}
		options := identity.ProviderOptions{Issuer: p.Issuer, ClientID: p.ClientID,
			ClientSecret: p.ClientSecret, AdminGroups: []string{"registry-admins"}}
		for _, f := range change {
			f(&options)
		}
		o.Login.OIDC, err = identity.NewProvider(options)
		if err != nil {
			t.Fatal(err)
		}
	})
	return p, r
}

func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport}
}

// visit logs a user in with a browser, and returns the last answer's URL, status and body.
func visit(t *testing.T, p *identitytest.Provider, client *http.Client, start, user string) (*url.URL, int, string) {
	t.Helper()
	return read(t, p.LogIn(t, client, start, p.User(t, user)))
}

func read(t *testing.T, a *http.Response) (*url.URL, int, string) {
	t.Helper()
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.Request.URL, a.StatusCode, html.UnescapeString(string(body))
}

// TestOIDC: a browser logs in at the provider, and comes back to the page from which it came, and
// to no page of another site. Groups give roles, and take them away at the next log-in.
func TestOIDC(t *testing.T) {
	t.Parallel()
	p, r := withProvider(t)
	if _, err := r.Auth.PutTeam(t.Context(), "acme", "staff", auth.Writer, nil); err != nil {
		t.Fatal(err)
	}
	groups := func(names ...string) {
		var list []auth.TeamGroup
		for _, name := range names {
			list = append(list, auth.TeamGroup{Source: auth.SourceOIDC, Name: name})
		}
		if err := r.Auth.SetTeamGroups(t.Context(), "acme", "staff", list); err != nil {
			t.Fatal(err)
		}
	}
	groups("staff")
	alice := browser(t)
	at, status, body := visit(t, p, alice, r.URL+"/auth/oidc/login?next="+url.QueryEscape("/auth/session?x=1"), "alice")
	if at.RequestURI() != "/auth/session?x=1" || status != 200 || !strings.Contains(body, `"name":"alice","robot":false,"superuser":true`) || !strings.Contains(body, `"oidc":true`) {
		t.Errorf("alice arrives at %s, %d %s", at, status, body)
	}
	bob := browser(t)
	for _, next := range []string{"//evil.example", "/\\evil.example", "https://evil.example", "/%2f/evil.example"} {
		if at, status, _ := visit(t, p, browser(t), r.URL+"/auth/oidc/login?next="+url.QueryEscape(next), "bob"); at.Host != r.Listener.Addr().String() || at.Path != "/auth/login" || status != 200 {
			t.Errorf("next=%s leads to %s, %d", next, at, status)
		}
	}
	if _, _, body := visit(t, p, bob, r.URL+"/auth/oidc/login?next=/auth/session", "bob"); !strings.Contains(body, `"superuser":false`) {
		t.Errorf("bob is %s", body)
	}
	get := func(path string) int {
		a, err := bob.Get(r.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_, status, _ := read(t, a)
		return status
	}
	const tags = "/api/v1/repository/acme/app/tag"
	if status := get(tags); status != 200 {
		t.Errorf("bob of the group gets %d", status)
	}
	groups("other")
	if status := get(tags); status != 403 {
		t.Errorf("bob of no group gets %d", status)
	}
}

// TestOIDCRefused: who hasn't begun the log-in with this browser isn't logged in, and people whose
// account isn't theirs or is disabled are told so.
func TestOIDCRefused(t *testing.T) {
	t.Parallel()
	p, r := withProvider(t)
	r.AddAccount(t, "alice", false)
	start := r.URL + "/auth/oidc/login"
	if at, status, body := visit(t, p, nil, start, "alice"); at.Path != "/auth/oidc/callback" || status != 409 || !strings.Contains(body, "account alice") {
		t.Errorf("somebody else's name: %s %d\n%s", at, status, body)
	}
	if at, status, _ := visit(t, p, nil, start, "bob"); at.Path != "/auth/login" || status != 200 {
		t.Errorf("bob arrives at %s, %d", at, status)
	}
	if list := entries(t, r, "login_failure"); len(list) != 1 || !strings.Contains(list[0], `"account": "alice"`) || !strings.Contains(list[0], "another identity") ||
		!strings.Contains(list[0], `"source": "oidc"`) {
		t.Errorf("entries of refused log-ins: %q", list)
	}
	disabled := true
	if err := r.Auth.ChangeAccount(t.Context(), "bob", auth.AccountChange{Disabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	if _, status, body := visit(t, p, nil, start, "bob"); status != 403 || !strings.Contains(body, "bob is disabled") {
		t.Errorf("a disabled account: %d\n%s", status, body)
	}
	if list := entries(t, r, "login_failure"); len(list) != 2 || !strings.Contains(list[1], "bob is disabled") {
		t.Errorf("entries of refused log-ins: %q", list)
	}
	begin := func() (authorize, cookie string) {
		a := r.Do(t, "GET", "/auth/oidc/login", "").WantStatus(t, 303)
		c := a.Cookies()[0]
		if len(a.Cookies()) != 1 || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.MaxAge != 600 || c.Path != "/" || c.Domain != "" {
			t.Errorf("the cookies are %v", a.Cookies())
		}
		return a.Header.Get("Location"), c.Name + "=" + c.Value
	}
	// The attacker lets a victim's browser finish the attacker's log-in.
	attackers, mine := begin()
	back := p.Authorize(t, attackers, p.User(t, "eve")).RequestURI()
	_, victims := begin()
	for what, cookie := range map[string]string{"no cookie": "", "the victim's": victims, "a changed one": mine[:len(mine)-4] + "AAAA", "nonsense": strings.SplitN(mine, "=", 2)[0] + "=x"} {
		a := r.Do(t, "GET", back, "", "Cookie", cookie).WantStatus(t, 403)
		for _, c := range a.Cookies() {
			if c.Name == sessionCookie {
				t.Errorf("%s: there is a session", what)
			}
		}
		if q, _ := url.ParseQuery(strings.SplitN(back, "?", 2)[1]); strings.Contains(string(a.Content), q.Get("code")) {
			t.Errorf("%s: the page has the code", what)
		}
	}
	done := r.Do(t, "GET", back, "", "Cookie", mine).WantStatus(t, 303)
	if got := accountOf(t, r, "Cookie", sessionCookie+"="+cookieOf(t, done).Value); got != "eve" {
		t.Errorf("the log-in is %q's", got)
	}
	r.Do(t, "GET", back, "", "Cookie", mine).WantStatus(t, 403) // the provider takes a code once
	if a := r.Do(t, "GET", "/auth/oidc/callback?error=access_denied&state=x", "", "Cookie", victims); a.StatusCode != 403 {
		t.Errorf("an answer with another state: %d", a.StatusCode)
	}
	if list := entries(t, r, "login_failure"); len(list) != 2 {
		t.Errorf("log-ins that identified nobody have entries: %q", list)
	}
}

// TestOIDCRequiredGroups: the provider identifies a person who is in none of the required groups.
// The audit log must have the refusal with the person's name.
func TestOIDCRequiredGroups(t *testing.T) {
	t.Parallel()
	p, r := withProvider(t, func(o *identity.ProviderOptions) { o.RequiredGroups = []string{"nobody-is-in-it"} })
	if _, status, body := visit(t, p, nil, r.URL+"/auth/oidc/login", "bob"); status != 403 || !strings.Contains(body, "none of the groups") {
		t.Errorf("%d\n%s", status, body)
	}
	list := entries(t, r, "login_failure")
	if len(list) != 1 || !strings.Contains(list[0], `"account": "bob"`) || !strings.Contains(list[0], "none of the groups") || !strings.Contains(list[0], `"subject": "`+p.Issuer) {
		t.Errorf("entries of refused log-ins: %q", list)
	}
}
