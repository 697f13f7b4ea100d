package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
)

const redirectURL = "http://127.0.0.1:1/auth/oidc/callback"

// newProvider makes a Provider whose connections end with the test.
func newProvider(t *testing.T, o ProviderOptions) *Provider {
	t.Helper()
	o.HTTP = newClient(t)
	p, err := NewProvider(o)
	must(t, err)
	return p
}

func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// providerOptions returns options for a client of a test's provider.
func providerOptions(op *identitytest.Provider) ProviderOptions {
	return ProviderOptions{Issuer: op.Issuer, ClientID: op.ClientID, ClientSecret: op.ClientSecret}
}

// logIn goes through a whole log-in of a user.
func logIn(t *testing.T, op *identitytest.Provider, p *Provider, user string) (Identity, error) {
	t.Helper()
	a, err := p.Begin(t.Context(), redirectURL)
	must(t, err)
	back := op.Authorize(t, a.URL, op.User(t, user))
	if !strings.HasPrefix(back.String(), redirectURL+"?") {
		t.Fatalf("the provider redirects to %s", back)
	}
	return p.Finish(t.Context(), a, redirectURL, back.Query())
}

// wantError checks that err wraps the kind and contains the texts.
func wantError(t *testing.T, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("the error is %v, want one that wraps %q", err, kind)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %q, want it to contain %q", err, text)
		}
	}
}

func TestLogIn(t *testing.T) {
	t.Parallel()
	op := identitytest.OIDC(t)
	for name, change := range map[string]func(*ProviderOptions){
		"claims in the ID token": func(*ProviderOptions) {},
		"claims from userinfo":   func(o *ProviderOptions) { o.ClientID = op.UserinfoClientID },
		"nested claim":           func(o *ProviderOptions) { o.GroupsClaim = "realm_access.roles" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := providerOptions(op)
			o.AdminGroups = []string{"nobody", "registry-admins"}
			change(&o)
			p := newProvider(t, o)
			for _, want := range []Identity{
				{Source: SourceOIDC, Subject: op.Issuer + " id-1", Name: "alice", Email: "alice@example.org", Groups: []string{"registry-admins", "staff"}, Superuser: true},
				{Source: SourceOIDC, Subject: op.Issuer + " id-2", Name: "bob", Email: "bob@example.org", Groups: []string{"staff"}},
				{Source: SourceOIDC, Subject: op.Issuer + " id-3", Name: "eve"}, // her address isn't verified
			} {
				got, err := logIn(t, op, p, want.Name)
				must(t, err)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
		})
	}
}

// TestBrowser: LogIn of the test package goes through a log-in with a client that handles its own
// redirections, as a browser does.
func TestBrowser(t *testing.T) {
	t.Parallel()
	op := identitytest.OIDC(t)
	p := newProvider(t, providerOptions(op))
	attempts := make(chan Attempt, 1)
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/login", func(w http.ResponseWriter, r *http.Request) {
		a, err := p.Begin(r.Context(), server.URL+"/callback")
		if err != nil {
			t.Error(err)
		}
		attempts <- a
		http.Redirect(w, r, a.URL, http.StatusFound)
	})
	mux.HandleFunc("/callback", func(w http.ResponseWriter, r *http.Request) {
		who, err := p.Finish(r.Context(), <-attempts, server.URL+"/callback", r.URL.Query())
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Who", who.Name)
	})
	resp := op.LogIn(t, nil, server.URL+"/login", op.User(t, "bob"))
	defer resp.Body.Close()
	if resp.Header.Get("Who") != "bob" {
		t.Errorf("%s answered %s %v", resp.Request.URL, resp.Status, resp.Header)
	}
}

func TestNamesAndGroups(t *testing.T) {
	t.Parallel()
	op := identitytest.OIDC(t,
		identitytest.User{Subject: "1", Name: "Carol.Jones", Password: "p", Email: "Carol@Example.org"},
		identitytest.User{Subject: "2", Name: "has space", Password: "p", Email: "x@example.org"},
		identitytest.User{Subject: "3", Name: "\u212Aim", Password: "p", Email: "kim@example.org"}, // the sign for Kelvin
		identitytest.User{Subject: "4", Name: "mallory", Password: "p", Email: "carol@example.org", EmailUnverified: true},
		identitytest.User{Subject: "5", Name: "dan", Password: "p", Email: "dan@example.org", Groups: []string{"staff"}},
		identitytest.User{Subject: "6", Name: "ns+robot", Password: "p", Email: "r@example.org"},
	)
	p := newProvider(t, providerOptions(op))
	got, err := logIn(t, op, p, "Carol.Jones")
	must(t, err)
	if got.Name != "carol.jones" || got.Email != "Carol@Example.org" {
		t.Errorf("got %+v", got)
	}
	for _, name := range []string{"has space", "\u212Aim", "ns+robot"} {
		_, err := logIn(t, op, p, name)
		wantError(t, err, ErrRefused, `"preferred_username"`, name)
	}

	o := providerOptions(op)
	o.UsernameClaim = "email"
	byEmail := newProvider(t, o)
	got, err = logIn(t, op, byEmail, "Carol.Jones")
	must(t, err)
	if got.Name != "carol@example.org" {
		t.Errorf("got %+v", got)
	}
	_, err = logIn(t, op, byEmail, "mallory")
	wantError(t, err, ErrRefused, "email_verified")

	o = providerOptions(op)
	o.UsernameClaim = "nickname"
	_, err = logIn(t, op, newProvider(t, o), "dan")
	wantError(t, err, ErrRefused, `no claim "nickname"`)

	o = providerOptions(op)
	o.RequiredGroups = []string{"other", "staff"}
	strict := newProvider(t, o)
	got, err = logIn(t, op, strict, "dan")
	must(t, err)
	if !slices.Equal(got.Groups, []string{"staff"}) || got.Superuser {
		t.Errorf("got %+v", got)
	}
	_, err = logIn(t, op, strict, "mallory")
	wantError(t, err, ErrRefused, "none of the groups")

	var log bytes.Buffer
	o.Log, o.RequiredGroups = slog.New(slog.NewTextHandler(&log, nil)), []string{"stuff"}
	_, err = logIn(t, op, newProvider(t, o), "dan")
	wantError(t, err, ErrRefused, "none of the groups")
	if want := "setting=auth.oidc.required_groups group=stuff people=0 groups_of_the_last=staff"; strings.Count(log.String(), want) != 1 {
		t.Errorf("the log doesn't say %s once:\n%s", want, &log)
	}
}

// TestAnswers: the browser brings answers that the provider didn't give to this log-in.
func TestAnswers(t *testing.T) {
	t.Parallel()
	op := identitytest.OIDC(t)
	p := newProvider(t, providerOptions(op))
	a, err := p.Begin(t.Context(), redirectURL)
	must(t, err)
	good := op.Authorize(t, a.URL, op.User(t, "alice")).Query()
	finish := func(a Attempt, change url.Values) error {
		query := maps.Clone(good)
		maps.Copy(query, change)
		_, err := p.Finish(t.Context(), a, redirectURL, query)
		return err
	}
	wantError(t, finish(a, url.Values{"state": {"x"}}), ErrRefused, "log in again")
	wantError(t, finish(a, url.Values{"state": nil}), ErrRefused, "log in again")
	wantError(t, finish(Attempt{}, url.Values{"state": nil}), ErrRefused, "log in again")
	wantError(t, finish(a, url.Values{"iss": {"https://evil.example"}}), ErrRefused, "evil.example")
	wantError(t, finish(a, url.Values{"error": {"access_denied"}, "error_description": {"no\nthanks"}}), ErrRefused, "access_denied", "no thanks")
	wantError(t, finish(a, url.Values{"code": nil}), ErrRefused, "no code")
	wantError(t, finish(a, url.Values{"code": {"invented"}}), ErrRefused)

	// The code was stolen from another browser's log-in, which has another verifier.
	other, err := p.Begin(t.Context(), redirectURL)
	must(t, err)
	err = finish(Attempt{State: a.State, Nonce: a.Nonce, Verifier: other.Verifier}, nil)
	wantError(t, err, ErrRefused)

	must(t, finish(a, url.Values{"iss": {op.Issuer}})) // the good answer
	wantError(t, finish(a, nil), ErrRefused)           // the code was used

	other, err = p.Begin(t.Context(), redirectURL)
	must(t, err)
	query := op.Authorize(t, other.URL, op.User(t, "alice")).Query()
	_, err = p.Finish(t.Context(), Attempt{State: other.State, Nonce: a.Nonce, Verifier: other.Verifier}, redirectURL, query)
	wantError(t, err, ErrRefused, "nonce")

	o := providerOptions(op)
	o.ClientSecret = "wrong"
	_, err = logIn(t, op, newProvider(t, o), "alice")
	wantError(t, err, ErrUnavailable, "invalid_client")
	if strings.Contains(err.Error(), "wrong") {
		t.Errorf("the error has the secret: %v", err)
	}
}

// TestProviderIsDown: the provider fails when the first people log in. They get errors, the
// provider isn't asked at each attempt, and log-ins succeed soon after it is back.
func TestProviderIsDown(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	var clock atomic.Int64
	p := newProvider(t, ProviderOptions{Issuer: issuer.URL, ClientID: "c", Now: func() time.Time { return time.Unix(clock.Load(), 0) }})
	clock.Store(time.Now().Unix())
	issuer.Serve(http.NotFoundHandler())
	for range 3 {
		_, err := p.Begin(t.Context(), redirectURL)
		wantError(t, err, ErrUnavailable, "404")
	}
	if n := issuer.Requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	issuer.Serve(discovery(issuer.URL, nil))
	clock.Add(6)
	_, err := p.Begin(t.Context(), redirectURL)
	must(t, err)
	issuer.Serve(http.NotFoundHandler())
	for range 3 {
		clock.Add(3600)
		_, err = p.Begin(t.Context(), redirectURL) // with the old answer
		must(t, err)
	}
}

// discovery answers all requests with a provider's discovery document.
func discovery(issuer string, change map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		document := map[string]any{
			"issuer": issuer, "authorization_endpoint": issuer + "/auth", "token_endpoint": issuer + "/token",
			"userinfo_endpoint": issuer + "/userinfo", "jwks_uri": issuer + "/jwks",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		}
		maps.Copy(document, change)
		writeJSON(w, document)
	}
}

// TestIDTokens: a provider, which may be another one in the disguise of the right one, answers
// with ID tokens that aren't valid. The provider's keys are those of the test's issuer.
func TestIDTokens(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	foreign := identitytest.NewIssuer(t)
	now := time.Now()
	base := map[string]any{"aud": "client", "sub": "s", "nonce": "n", "preferred_username": "alice", "email": "a@example.org", "groups": "staff"}
	sign := func(i *identitytest.Issuer, change map[string]any) string {
		claims := maps.Clone(base)
		maps.Copy(claims, change)
		return i.Sign(t, claims)
	}
	none := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"iss": issuer.URL, "aud": "client", "sub": "s", "nonce": "n"})
	unsigned, err := none.SignedString(jwt.UnsafeAllowNoneSignatureType)
	must(t, err)
	for name, test := range map[string]struct{ token, want string }{
		"good":                 {sign(issuer, nil), ""},
		"azp":                  {sign(issuer, map[string]any{"aud": []string{"other", "client"}, "azp": "client"}), ""},
		"a group that is gone": {sign(issuer, map[string]any{"groups": []any{nil, "staff", nil}}), ""},
		"clocks":               {sign(issuer, map[string]any{"exp": now.Add(-30 * time.Second).Unix(), "iat": now.Add(30 * time.Second).Unix()}), ""},
		"nonce":                {sign(issuer, map[string]any{"nonce": "m"}), "nonce"},
		"no nonce":             {sign(issuer, map[string]any{"nonce": nil}), "nonce"},
		"audience":             {sign(issuer, map[string]any{"aud": "other"}), "audience"},
		"issuer":               {sign(issuer, map[string]any{"iss": foreign.URL}), "different provider"},
		"foreign key":          {sign(foreign, map[string]any{"iss": issuer.URL}), "signature"},
		"other azp":            {sign(issuer, map[string]any{"azp": "other"}), "azp"},
		"odd azp":              {sign(issuer, map[string]any{"azp": []string{"client"}}), "azp"},
		"audiences, no azp":    {sign(issuer, map[string]any{"aud": []string{"client", "other"}}), "azp"},
		"expired":              {sign(issuer, map[string]any{"exp": now.Add(-2 * time.Minute).Unix()}), "expired"},
		"no exp":               {sign(issuer, map[string]any{"exp": nil}), "expired"},
		"no iat":               {sign(issuer, map[string]any{"iat": nil}), "iat"},
		"future":               {sign(issuer, map[string]any{"iat": now.Add(2 * time.Minute).Unix()}), "iat"},
		"no sub":               {sign(issuer, map[string]any{"sub": nil}), "no sub"},
		"at_hash":              {sign(issuer, map[string]any{"at_hash": "AAAA"}), "access token"},
		"alg none":             {unsigned, "ID token"},
		"not a token":          {"x", "ID token"},
		"too many groups":      {sign(issuer, map[string]any{"groups": nil, "_claim_names": map[string]any{"groups": "s"}, "_claim_sources": map[string]any{"s": map[string]any{"endpoint": "https://x"}}}), "too many groups"},
		"groups are objects":   {sign(issuer, map[string]any{"groups": []any{map[string]any{}}}), `"groups"`},
	} {
		p := newProvider(t, ProviderOptions{Issuer: issuer.URL, ClientID: "client"})
		issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/jwks":
				writeJSON(w, issuer.JWKS())
			case "/token":
				writeJSON(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": test.token})
			case "/userinfo":
				writeJSON(w, map[string]any{"sub": "s"})
			default:
				discovery(issuer.URL, nil)(w, r)
			}
		}))
		a, err := p.Begin(t.Context(), redirectURL)
		must(t, err)
		a.Nonce = "n"
		who, err := p.Finish(t.Context(), a, redirectURL, url.Values{"state": {a.State}, "code": {"c"}})
		switch {
		case test.want == "" && (err != nil || who.Name != "alice"):
			t.Errorf("%s: %+v, %v", name, who, err)
		case test.want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want an error with %q", name, err, test.want)
		}
	}
}

// TestNoKeys: while the provider's keys can't be fetched, nobody knows whether an ID token is
// valid.
func TestNoKeys(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/jwks":
			http.Error(w, "broken", http.StatusInternalServerError)
		case "/token":
			writeJSON(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": issuer.Sign(t, map[string]any{"aud": "client", "sub": "s", "nonce": "n"})})
		default:
			discovery(issuer.URL, nil)(w, r)
		}
	}))
	p := newProvider(t, ProviderOptions{Issuer: issuer.URL, ClientID: "client"})
	a, err := p.Begin(t.Context(), redirectURL)
	must(t, err)
	_, err = p.Finish(t.Context(), a, redirectURL, url.Values{"state": {a.State}, "code": {"c"}})
	wantError(t, err, ErrUnavailable, "500")
}

// TestUserinfoOfAnother: the userinfo endpoint's answer must be about the person of the ID token.
func TestUserinfoOfAnother(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/jwks":
			writeJSON(w, issuer.JWKS())
		case "/token":
			writeJSON(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": issuer.Sign(t, map[string]any{"aud": "client", "sub": "s", "nonce": "n"})})
		case "/userinfo":
			writeJSON(w, map[string]any{"sub": "other", "preferred_username": "root"})
		default:
			discovery(issuer.URL, map[string]any{"authorization_response_iss_parameter_supported": true})(w, r)
		}
	}))
	p := newProvider(t, ProviderOptions{Issuer: issuer.URL, ClientID: "client"})
	a, err := p.Begin(t.Context(), redirectURL)
	must(t, err)
	a.Nonce = "n"
	query := url.Values{"state": {a.State}, "code": {"c"}}
	_, err = p.Finish(t.Context(), a, redirectURL, query)
	wantError(t, err, ErrRefused, "issuer") // iss is announced, but missing
	query.Set("iss", issuer.URL)
	_, err = p.Finish(t.Context(), a, redirectURL, query)
	wantError(t, err, ErrRefused, "another person")
}

func TestProviderOptions(t *testing.T) {
	t.Parallel()
	for issuer, want := range map[string]string{
		"https://id.example.com": "", "http://localhost:5556/dex": "", "http://[::1]:1": "",
		"http://id.example.com": "isn't https", "https://id.example.com?x=1": "must be a URL", "id.example.com": "must be a URL", "": "must be a URL",
	} {
		_, err := NewProvider(ProviderOptions{Issuer: issuer, ClientID: "c"})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", issuer, err, want)
		}
	}
	if _, err := NewProvider(ProviderOptions{Issuer: "https://id.example.com"}); err == nil {
		t.Error("no client id is needed")
	}
}

// TestDiscoveryDocuments: the provider's discovery document isn't usable.
func TestDiscoveryDocuments(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	secure := httptest.NewTLSServer(issuer)
	t.Cleanup(secure.Close)
	for want, change := range map[string]map[string]any{
		"did not match": {"issuer": "https://id.example.com"},
		"isn't https":   {"jwks_uri": "http://id.example.com/jwks"},
		"isn't a URL":   {"token_endpoint": ""},
		"1048576 bytes": {"padding": strings.Repeat("x", maxAnswer)},
	} {
		issuer.Serve(discovery(secure.URL, change))
		p, err := NewProvider(ProviderOptions{Issuer: secure.URL, ClientID: "c", HTTP: secure.Client()})
		must(t, err)
		_, err = p.Begin(t.Context(), redirectURL)
		wantError(t, err, ErrUnavailable, want)
	}
	issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("long ", 1000), http.StatusInternalServerError)
	}))
	long, err := NewProvider(ProviderOptions{Issuer: secure.URL, ClientID: "c", HTTP: secure.Client()})
	must(t, err)
	_, err = long.Begin(t.Context(), redirectURL)
	wantError(t, err, ErrUnavailable, "500")
	if len(err.Error()) > 500 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	issuer.Serve(http.RedirectHandler("https://evil.example", http.StatusFound))
	p, err := NewProvider(ProviderOptions{Issuer: secure.URL, ClientID: "c", HTTP: secure.Client()})
	must(t, err)
	_, err = p.Begin(t.Context(), redirectURL)
	wantError(t, err, ErrUnavailable, "evil.example", "redirects")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err = NewProvider(ProviderOptions{Issuer: secure.URL, ClientID: "c", HTTP: secure.Client()})
	must(t, err)
	_, err = p.Begin(ctx, redirectURL)
	wantError(t, err, ErrUnavailable)
}
