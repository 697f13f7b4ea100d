package identity

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// ProviderOptions configure a Provider.
type ProviderOptions struct {
	// Issuer is the provider's URL, as its discovery document and its tokens write it. It is
	// https, or http on this machine.
	Issuer string
	// ClientID and ClientSecret are those of Purser at the provider. The secret may be empty for
	// a public client, which the provider knows by PKCE alone.
	ClientID, ClientSecret string
	// Scopes are asked for, besides openid. Default: profile and email.
	Scopes []string
	// The claims that have the person's name, email address and groups. A name "a.b" is the
	// member "b" of the claim "a". Defaults: preferred_username, email, groups.
	UsernameClaim, EmailClaim, GroupsClaim string
	// AdminGroups are the groups whose members are administrators of the registry: a member of
	// one of them is enough.
	AdminGroups []string
	// RequiredGroups are the groups whose members may log in: one of them is enough. Empty:
	// everyone whom the provider knows may.
	RequiredGroups []string
	// Timeout is how long an answer of the provider may take. A log-in, which needs up to five answers,
	// may take three times as long. Default 10 s.
	Timeout time.Duration
	// Roots are the authorities that may have signed the provider's certificate. Default: the
	// system's.
	Roots *x509.CertPool
	// HTTP sends the requests to the provider; Roots has no effect then. Default: a client with the
	// limit Timeout.
	HTTP *http.Client
	// Now is the clock. Default time.Now.
	Now func() time.Time
	Log *slog.Logger // default slog.Default()
}

// Provider logs people in at an OpenID Connect provider, by the authorization code flow with
// PKCE. It asks the provider only when somebody logs in, so a provider that is down delays
// nothing else.
type Provider struct {
	o      ProviderOptions
	client *http.Client
	asking singleflight.Group
	watch  *groupWatch

	mu       sync.Mutex
	known    *discovered // nil: not yet
	failed   error       // why the last discovery failed, nil if it didn't
	lastTime time.Time   // of the last discovery, whatever its outcome
}

const (
	discoveryLife  = time.Hour        // how long a discovery document is used
	discoveryPause = 5 * time.Second  // between failed requests for it
	answerLimit    = 10 * time.Second // the default of ProviderOptions.Timeout
	leeway         = time.Minute      // how far the clocks of issuers may differ from this one
)

// discovered is what the provider's discovery document says.
type discovered struct {
	provider *oidc.Provider
	endpoint oauth2.Endpoint
	namesIss bool // answers name the issuer (RFC 9207)
	userinfo bool // there is a userinfo endpoint
	keys     *keySet
}

// Attempt is a log-in that has begun. The caller keeps it where only the same browser can bring
// it back, such as in a cookie, and uses it once.
type Attempt struct {
	URL      string // of the provider: the browser is redirected there
	State    string
	Nonce    string
	Verifier string // of PKCE
}

// NewProvider checks the options. It sends no request.
func NewProvider(o ProviderOptions) (*Provider, error) {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, errors.New("the issuer of the OpenID Connect provider must be a URL such as https://id.example.com, without a query")
	case u.Scheme != "https" && !(u.Scheme == "http" && isLoopbackHost(u.Hostname())):
		return nil, fmt.Errorf("the issuer %s of the OpenID Connect provider isn't https; over http, others could forge its keys", o.Issuer)
	case o.ClientID == "":
		return nil, errors.New("the client id at the OpenID Connect provider is missing")
	}
	if len(o.Scopes) == 0 {
		o.Scopes = []string{"profile", "email"}
	}
	if !slices.Contains(o.Scopes, oidc.ScopeOpenID) {
		o.Scopes = slices.Insert(slices.Clone(o.Scopes), 0, oidc.ScopeOpenID)
	}
	o.UsernameClaim = cmp.Or(o.UsernameClaim, "preferred_username")
	o.EmailClaim = cmp.Or(o.EmailClaim, "email")
	o.GroupsClaim = cmp.Or(o.GroupsClaim, "groups")
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Timeout = cmp.Or(o.Timeout, answerLimit)
	client := http.Client{Timeout: o.Timeout}
	if o.HTTP != nil {
		client = *o.HTTP
	}
	if client.Transport == nil {
		client.Transport = transport(o.Roots)
	}
	client.Transport = boundedTransport{client.Transport}
	client.CheckRedirect = refuseRedirects
	return &Provider{o: o, client: &client, watch: newGroupWatch(o.Log, "auth.oidc.", o.RequiredGroups, o.AdminGroups)}, nil
}

// transport returns the default HTTP transport, with the authorities `roots` unless they are nil.
func transport(roots *x509.CertPool) http.RoundTripper {
	if roots == nil {
		return http.DefaultTransport
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return t
}

// discover returns what the discovery document says. It asks the provider if it hasn't an answer
// of the last hour. If the provider fails, an older answer is used.
func (p *Provider) discover(ctx context.Context) (*discovered, error) {
	p.mu.Lock()
	age := p.o.Now().Sub(p.lastTime)
	known, failed := p.known, p.failed
	p.mu.Unlock()
	switch {
	case failed == nil && known != nil && age < discoveryLife, known != nil && failed != nil && age < discoveryPause:
		return known, nil
	case failed != nil && age < discoveryPause:
		return nil, failed
	}
	answer := p.asking.DoChan("", func() (any, error) {
		// Others may wait for the answer too, so it doesn't end with this caller's context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.o.Timeout)
		defer cancel()
		found, err := p.request(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failed, p.lastTime = err, p.o.Now()
		if err == nil {
			p.known = found
		}
		if p.known == nil {
			return nil, err
		}
		return p.known, nil
	})
	select {
	case r := <-answer:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*discovered), nil
	case <-ctx.Done():
		return nil, unavailable("asking the OpenID Connect provider", ctx.Err())
	}
}

// Check reads the discovery document. It returns an ErrUnavailable if that can't be done.
func (p *Provider) Check(ctx context.Context) error {
	_, err := p.discover(ctx)
	return err
}

// request requests the discovery document.
func (p *Provider) request(ctx context.Context) (*discovered, error) {
	const doing = "reading the discovery document of the OpenID Connect provider"
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.o.Issuer)
	if err != nil {
		return nil, unavailable(doing, brief(err))
	}
	var document struct {
		JWKS        string   `json:"jwks_uri"`
		AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
		NamesIss    bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := provider.Claims(&document); err != nil {
		return nil, unavailable(doing, err)
	}
	d := &discovered{provider, provider.Endpoint(), document.NamesIss, provider.UserInfoEndpoint() != "", &keySet{
		fetch: func(ctx context.Context) ([]jose.JSONWebKey, error) { return fetchKeys(ctx, p.client, document.JWKS) },
		limit: p.o.Timeout, now: p.o.Now,
	}}
	for _, address := range []string{d.endpoint.AuthURL, d.endpoint.TokenURL, document.JWKS, provider.UserInfoEndpoint()} {
		u, err := url.Parse(address)
		switch {
		case address == "" && address == provider.UserInfoEndpoint():
		case err != nil || u.Host == "":
			return nil, unavailable(doing, fmt.Errorf("the endpoint %s isn't a URL", excerpt(address)))
		case u.Scheme != "https" && !strings.HasPrefix(p.o.Issuer, "http://"):
			return nil, unavailable(doing, fmt.Errorf("the endpoint %s isn't https", excerpt(address)))
		}
	}
	if m := document.AuthMethods; slices.Contains(m, "client_secret_post") && !slices.Contains(m, "client_secret_basic") {
		d.endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return d, nil
}

func (p *Provider) config(d *discovered, redirectURL string) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.o.ClientID, ClientSecret: p.o.ClientSecret, Endpoint: d.endpoint,
		RedirectURL: redirectURL, Scopes: p.o.Scopes,
	}
}

// Begin begins a log-in. The provider will send the browser to redirectURL, whose query is then
// given to Finish. An error wraps ErrUnavailable.
func (p *Provider) Begin(ctx context.Context, redirectURL string) (Attempt, error) {
	d, err := p.discover(ctx)
	if err != nil {
		return Attempt{}, err
	}
	a := Attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	a.URL = p.config(d, redirectURL).AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier))
	return a, nil
}

// Finish ends a log-in: query is the query with which the browser came to redirectURL, which is
// the one that Begin got. An error wraps ErrRefused, and says why in words for the person, or
// ErrUnavailable. If the provider has identified a person who may not log in, Finish returns the
// subject with the error, and the name if it is valid.
func (p *Provider) Finish(ctx context.Context, a Attempt, redirectURL string, query url.Values) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*p.o.Timeout)
	defer cancel()
	// Nothing of the query counts before the state shows that this browser began the log-in.
	if a.State == "" || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(a.State)) != 1 {
		return Identity{}, refused("the answer belongs to no log-in of this browser, or to an older one; log in again")
	}
	d, err := p.discover(ctx)
	if err != nil {
		return Identity{}, err
	}
	if iss := query.Get("iss"); (iss != "" || d.namesIss) && iss != p.o.Issuer {
		return Identity{}, refused("the answer comes from the issuer %s instead of %s", excerpt(iss), p.o.Issuer)
	}
	if code := query.Get("error"); code != "" {
		problem := "the provider answered " + excerpt(code)
		if description := query.Get("error_description"); description != "" {
			problem += ": " + excerpt(description)
		}
		return Identity{}, refused("%s", problem)
	}
	if query.Get("code") == "" {
		return Identity{}, refused("the provider's answer has no code; log in again")
	}
	ctx = oidc.ClientContext(ctx, p.client)
	token, err := p.config(d, redirectURL).Exchange(ctx, query.Get("code"), oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return Identity{}, exchangeError(err)
	}
	person, err := p.verify(ctx, d, token, a.Nonce)
	if err != nil {
		return Identity{}, err
	}
	i, err := p.identity(person)
	if err != nil {
		i = Identity{Source: SourceOIDC, Subject: person.subject, Name: i.Name}
	}
	return i, err
}
