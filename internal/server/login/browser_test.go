package login_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

const sessionCookie = "purser_session" // over http on loopback

// logIn sends the log-in form and returns the header with the session's cookie.
func logIn(t *testing.T, r *servertest.Registry, name, password string, headers ...string) []string {
	t.Helper()
	form := url.Values{"username": {name}, "password": {password}}.Encode()
	a := r.Do(t, "POST", "/auth/login", form, append(headers, "Content-Type", "application/x-www-form-urlencoded")...).WantStatus(t, 303)
	return []string{"Cookie", cookieOf(t, a).Name + "=" + cookieOf(t, a).Value}
}

func cookieOf(t *testing.T, a servertest.Answer) *http.Cookie {
	t.Helper()
	for _, c := range a.Cookies() {
		if c.Name == sessionCookie {
			return c
		}
	}
	t.Fatalf("%s sets no cookie", a.Request.URL)
	return nil
}

// accountOf returns the account that the headers log in as, "" for nobody.
func accountOf(t *testing.T, r *servertest.Registry, headers ...string) string {
	t.Helper()
	var out struct{ Account *struct{ Name string } }
	r.Do(t, "GET", "/auth/session", "", headers...).Into(t, 200, &out)
	if out.Account == nil {
		return ""
	}
	return out.Account.Name
}

// TestSession: a browser logs in by the form or by JSON, gets a cookie that scripts can't read,
// uses the management API with it, and logs out. The registry takes no secret from the browser,
// and ends the session that the browser had before.
func TestSession(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Reader})
	page := r.Do(t, "GET", "/auth/login?next=/ui/%3Fa=b", "").WantStatus(t, 200)
	for _, want := range []string{`<form method="post" action="/auth/login">`, `value="/ui/?a=b"`, `type="password"`} {
		if !strings.Contains(string(page.Content), want) {
			t.Errorf("the page lacks %s:\n%s", want, page.Content)
		}
	}
	if policy := page.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
	made := strings.Repeat("A", 43)
	a := r.Do(t, "POST", "/auth/login", `{"username":"ann","password":"password-of-ann","next":"//evil.example"}`,
		"Content-Type", "application/json", "Cookie", sessionCookie+"="+made).WantStatus(t, 200)
	if string(a.Content) != `{"account":"ann","next":"/auth/login"}` {
		t.Errorf("the answer is %s", a.Content)
	}
	c := cookieOf(t, a)
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" || c.Value == made {
		t.Errorf("the cookie is %v", c)
	}
	first := []string{"Cookie", sessionCookie + "=" + c.Value}
	if got := accountOf(t, r, first...); got != "ann" {
		t.Errorf("the session is %q's", got)
	}
	if got := accountOf(t, r, "Cookie", sessionCookie+"="+made); got != "" {
		t.Errorf("a secret of the browser's own is %q's session", got)
	}
	r.Do(t, "GET", "/api/v1/repository?namespace=acme", "", first...).WantStatus(t, 200)
	r.Do(t, "GET", "/v2/", "", first...).Want(t, 401, oci.Unauthorized) // it is for clients with tokens
	second := logIn(t, r, "ann", "password-of-ann", first...)
	if got := accountOf(t, r, first...); got != "" {
		t.Errorf("the session before the log-in is %q's", got)
	}
	if page := r.Do(t, "GET", "/auth/login", "", second...); !strings.Contains(string(page.Content), "<strong>ann</strong>") {
		t.Errorf("the page doesn't say who is logged in:\n%s", page.Content)
	}
	out := r.Do(t, "POST", "/auth/logout", "", append(second, "Sec-Fetch-Site", "same-origin")...).WantStatus(t, 204)
	if c := cookieOf(t, out); c.Value != "" || c.MaxAge >= 0 {
		t.Errorf("the log-out sets %v", c)
	}
	if got := accountOf(t, r, second...); got != "" {
		t.Errorf("after the log-out the session is %q's", got)
	}
	r.Do(t, "POST", "/auth/logout", "").WantStatus(t, 204)
	var entries int
	if err := r.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM auditlog WHERE kind IN ('login_success', 'logout_success') AND actor = 'ann'`).Scan(&entries); err != nil || entries != 3 {
		t.Errorf("%d entries in the audit log (%v)", entries, err)
	}
}

// typedName is the name that the page shows again.
var typedName = regexp.MustCompile(`value="[^"]*"`)

// TestRefusedSessions: wrong and unsuitable credentials begin no session. The answer doesn't say
// whether the account exists, and many wrong ones are refused unchecked.
func TestRefusedSessions(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Writer, "off": auth.Reader})
	disabled := true
	if err := r.Auth.ChangeAccount(t.Context(), "off", auth.AccountChange{Disabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	_, personal, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "laptop", auth.Limits{Actions: []auth.Action{auth.ActionPull}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	try := func(name, password string, headers ...string) servertest.Answer {
		a := r.Do(t, "POST", "/auth/login", url.Values{"username": {name}, "password": {password}}.Encode(),
			append(headers, "Content-Type", "application/x-www-form-urlencoded")...)
		if a.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s gets a cookie", name)
		}
		return a
	}
	wrong := try("ann", "wrong").WantStatus(t, 401)
	for _, name := range []string{"nobody", "off", "acme+robot"} {
		a := try(name, "password-of-"+name).WantStatus(t, 401)
		// The page has the name as it was typed, and nothing else tells one from the other.
		if text := typedName.ReplaceAllString(string(a.Content), `value="ann"`); text != string(wrong.Content) {
			t.Errorf("the answer to %s is %s", name, a.Content)
		}
	}
	form := url.Values{"username": {`an"n`}, "password": {"wrong"}, "next": {"/ui/repositories?q=a"}}
	kept := r.Do(t, "POST", "/auth/login", form.Encode(), "Content-Type", "application/x-www-form-urlencoded").WantStatus(t, 401)
	for _, text := range []string{`value="an&#34;n"`, `name="next" value="/ui/repositories?q=a"`, `required autofocus aria-describedby="problem"`} {
		if !strings.Contains(string(kept.Content), text) {
			t.Errorf("after a wrong password, the page lacks %s:\n%s", text, kept.Content)
		}
	}
	form.Set("next", "//evil.example")
	if kept := r.Do(t, "POST", "/auth/login", form.Encode(), "Content-Type", "application/x-www-form-urlencoded"); strings.Contains(string(kept.Content), "evil") || strings.Contains(string(kept.Content), "wrong\"") {
		t.Errorf("the page has kept too much:\n%s", kept.Content)
	}
	try("ann", personal).WantStatus(t, 403) // a session would have all rights of the account
	// A page of another site can't log its visitor in.
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		try("ann", "password-of-ann", headers...).WantStatus(t, 403)
	}
	r.Do(t, "POST", "/auth/login", "{", "Content-Type", "application/json").WantStatus(t, 400)
	r.Do(t, "POST", "/auth/login", "x", "Content-Type", "text/plain").WantStatus(t, 415)
	r.Do(t, "DELETE", "/auth/login", "").WantStatus(t, 405)
	r.Do(t, "GET", "/auth/logout", "").WantStatus(t, 405)
	r.Do(t, "GET", "/auth/oidc/login", "").WantStatus(t, 404) // there is no provider
	for i := 0; ; i++ {
		a := try("ann", "wrong")
		if a.StatusCode == 429 && a.Header.Get("Retry-After") != "" {
			break
		}
		if a.WantStatus(t, 401); i > 20 {
			t.Fatal("guesses aren't limited")
		}
	}
	try("ann", "password-of-ann").WantStatus(t, 429)
}

// TestCrossSite: with the cookie, requests of other sites' pages that change something are
// refused, and a GET changes nothing.
func TestCrossSite(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Administrator})
	cookie := logIn(t, r, "root", "password-of-root")
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
		all := append(headers, cookie...)
		for _, q := range [][2]string{{"POST", "/auth/logout"}, {"DELETE", "/api/v1/repository/acme/app/tag/v1"}, {"POST", "/token"}} {
			if a := r.Do(t, q[0], q[1], "", all...); a.StatusCode != 403 {
				t.Errorf("%s %s by another site: %d %s", q[0], q[1], a.StatusCode, a.Content)
			}
		}
		r.Do(t, "GET", "/auth/logout", "", all...).WantStatus(t, 405)
	}
	if got := accountOf(t, r, cookie...); got != "root" {
		t.Errorf("the session is %q's", got)
	}
}

// TestEndedLogIns: a new password, a disabled and a deleted account end the sessions and the
// refresh tokens at once in the process that makes the change.
func TestEndedLogIns(t *testing.T) {
	t.Parallel()
	hash, disabled := "", true
	for name, end := range map[string]func(*servertest.Registry) error{
		"password": func(r *servertest.Registry) (err error) {
			if hash, err = r.Auth.Passwords().Hash(t.Context(), "another password"); err != nil {
				return err
			}
			return r.Auth.ChangeAccount(t.Context(), "ann", auth.AccountChange{PasswordHash: &hash})
		},
		"disabled": func(r *servertest.Registry) error {
			return r.Auth.ChangeAccount(t.Context(), "ann", auth.AccountChange{Disabled: &disabled})
		},
		"deleted": func(r *servertest.Registry) error { return r.Auth.DeleteAccount(t.Context(), "ann") },
	} {
		t.Run(name, func(t *testing.T) {
			r := closed(t, map[string]auth.Role{"ann": auth.Reader})
			cookie := logIn(t, r, "ann", "password-of-ann")
			var out struct {
				RefreshToken string `json:"refresh_token"`
			}
			r.Do(t, "GET", "/token?offline_token=true&service=purser", "", servertest.As("ann")...).Into(t, 200, &out)
			refresh := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {out.RefreshToken}, "service": {"purser"}}.Encode()
			post := func() servertest.Answer {
				return r.Do(t, "POST", "/token", refresh, "Content-Type", "application/x-www-form-urlencoded")
			}
			post().WantStatus(t, 200)
			if got := accountOf(t, r, cookie...); got != "ann" {
				t.Fatalf("the session is %q's", got)
			}
			if err := end(r); err != nil {
				t.Fatal(err)
			}
			if got := accountOf(t, r, cookie...); got != "" {
				t.Errorf("the session is still %q's", got)
			}
			post().WantStatus(t, 401)
		})
	}
}
