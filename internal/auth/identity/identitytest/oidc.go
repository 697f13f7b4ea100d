package identitytest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/testtool"
)

// Provider is an OpenID Connect provider for one test, made by [OIDC]. It is a process of its
// own, with a log-in page for browsers: the program tools/oidcprovider.
type Provider struct {
	Issuer string // http://127.0.0.1:PORT
	// ClientID and ClientSecret are those of a client that may be redirected to any path of
	// 127.0.0.1 and localhost, with http and https. Its ID tokens have all claims of the scopes
	// profile and email. The claims "groups" and "realm_access.roles" have the user's groups.
	ClientID, ClientSecret string
	// UserinfoClientID is a further client with the same secret. Its ID tokens name the user
	// only by sub; the userinfo endpoint has the other claims.
	UserinfoClientID string
	// Users are those that can log in: alice, bob and eve, in this order, if OIDC got none.
	Users []User
}

// User is an account at a [Provider].
type User struct {
	Subject         string // the claim sub
	Name            string // the claim preferred_username, with which the user logs in
	Password        string
	Email           string
	EmailUnverified bool // the claim email_verified is false
	Groups          []string
}

// OIDC starts a provider with the given users, which runs until the test ends. Without users,
// the provider has three: alice, in the groups "staff" and "registry-admins"; bob, in the group
// "staff"; and eve, in no group, with an address that isn't verified. The provider's program is
// built if it isn't in the user's cache directory yet. If it can't be built, the test is skipped,
// or fails if the environment variable CI is set.
//
// A test of a whole server gives its Issuer, ClientID and ClientSecret to the server and calls
// [Provider.LogIn] with the URL at which the server's log-in starts. A test that handles the
// redirection back to the client itself calls [Provider.Authorize].
func OIDC(t testing.TB, users ...User) *Provider {
	t.Helper()
	binary, err := testtool.Path("oidcprovider")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no OpenID Connect provider to test with: %v", err)
		}
		t.Skipf("no OpenID Connect provider to test with: %v", err)
	}
	if len(users) == 0 {
		users = []User{
			{Subject: "id-1", Name: "alice", Password: "alice's password", Email: "alice@example.org", Groups: []string{"staff", "registry-admins"}},
			{Subject: "id-2", Name: "bob", Password: "bob's password", Email: "bob@example.org", Groups: []string{"staff"}},
			{Subject: "id-3", Name: "eve", Password: "eve's password", Email: "alice@example.org", EmailUnverified: true},
		}
	}
	p := &Provider{ClientID: "purser", ClientSecret: "secret of purser", UserinfoClientID: "purser-userinfo", Users: users}
	if err := p.start(t, binary); err != nil {
		t.Fatalf("starting the OpenID Connect provider: %v", err)
	}
	return p
}

// start starts the process, and arranges its end. The process ends when its standard input
// does, so also when the test's process dies.
func (p *Provider) start(t testing.TB, binary string) error {
	settings, err := json.Marshal(map[string]any{
		"ClientID": p.ClientID, "Secret": p.ClientSecret, "UserinfoClientID": p.UserinfoClientID, "Users": p.Users,
	})
	if err != nil {
		return err
	}
	var log bytes.Buffer
	cmd := exec.Command(binary)
	cmd.Stderr = &log
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the OpenID Connect provider: %v\n%s", err, log.Bytes())
		}
	})
	if _, err := in.Write(settings); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("it printed no issuer: %w", err)
	}
	p.Issuer = strings.TrimSpace(line)
	return nil
}

// User returns the user with a name. The test fails if there is none.
func (p *Provider) User(t testing.TB, name string) User {
	t.Helper()
	for _, u := range p.Users {
		if u.Name == name {
			return u
		}
	}
	t.Fatalf("the provider has no user %q", name)
	return User{}
}

// LogIn does what a browser with its user does: it requests start, follows redirects to the
// provider's log-in page, fills in the form with the user's name and password, submits it, and
// follows redirects to the end. It returns the last answer, whose body the caller closes.
//
// The client should have a cookie jar. A nil client is replaced by a new one that has one.
func (p *Provider) LogIn(t testing.TB, client *http.Client, start string, user User) *http.Response {
	t.Helper()
	if client == nil {
		client = newBrowser(t)
	}
	resp, err := client.Get(start)
	if err != nil {
		t.Fatalf("logging in: %v", err)
	}
	action, fields := p.form(t, resp)
	fields.Set("username", user.Name)
	fields.Set("password", user.Password)
	resp, err = client.PostForm(action, fields)
	if err != nil {
		t.Fatalf("submitting the provider's form: %v", err)
	}
	return resp
}

// Authorize logs a user in at an authorization URL of the provider, as LogIn does, but it stops
// at the redirection to the client. It returns the URL with the code and the state that the
// provider sends the browser to.
func (p *Provider) Authorize(t testing.TB, authorizationURL string, user User) *url.URL {
	t.Helper()
	browser := newBrowser(t)
	browser.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if p.serves(r.URL) {
			return nil
		}
		return http.ErrUseLastResponse
	}
	resp := p.LogIn(t, browser, authorizationURL, user)
	defer resp.Body.Close()
	location, err := resp.Location()
	if err != nil {
		t.Fatalf("the provider answered %s and redirects to no client: %v", resp.Status, err)
	}
	return location
}

func newBrowser(t testing.TB) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport}
}

func (p *Provider) serves(u *url.URL) bool { return u.Scheme+"://"+u.Host == p.Issuer }

var (
	formAction  = regexp.MustCompile(`<form method="POST" action="([^"]+)"`)
	hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)"`)
)

// form returns where the form on the provider's log-in page is sent, and its hidden fields. It
// closes the answer's body.
func (p *Provider) form(t testing.TB, resp *http.Response) (action string, fields url.Values) {
	t.Helper()
	defer resp.Body.Close()
	var page bytes.Buffer
	if _, err := page.ReadFrom(resp.Body); err != nil {
		t.Fatalf("reading the provider's log-in page: %v", err)
	}
	found := formAction.FindStringSubmatch(page.String())
	if !p.serves(resp.Request.URL) || found == nil {
		t.Fatalf("%s isn't the provider's log-in page; it answered %s:\n%s", resp.Request.URL, resp.Status, page.String())
	}
	target, err := resp.Request.URL.Parse(html.UnescapeString(found[1]))
	if err != nil {
		t.Fatalf("the provider's form: %v", err)
	}
	fields = url.Values{}
	for _, field := range hiddenField.FindAllStringSubmatch(page.String(), -1) {
		fields.Set(html.UnescapeString(field[1]), html.UnescapeString(field[2]))
	}
	return target.String(), fields
}
