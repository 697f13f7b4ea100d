package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/purser-registry/purser/internal/netguard"
)

// VerifierOptions configure a Verifier.
type VerifierOptions struct {
	// AllowPrivate allows issuers whose addresses aren't public, and issuers without TLS.
	AllowPrivate bool
	// OwnIssuers are issuers that give tokens to nobody else's pipelines. Rules with all others
	// must name the owner.
	OwnIssuers []string
	// RootCAs are the authorities that may have signed certificates of issuers. Default: those
	// of the system.
	RootCAs *x509.CertPool
	// MaxIssuers is for how many issuers keys are kept. Default 256.
	MaxIssuers int
	// Timeout limits the fetching of an issuer's keys. Default 5 s.
	Timeout time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Verifier verifies tokens with which pipelines log in. The issuers are URLs that administrators
// of namespaces wrote into rules. So an issuer may be an attacker's server, or point at a server
// that only Purser can reach. Therefore:
//
//   - Requests go to public addresses over TLS, unless AllowPrivate is set. No redirect is
//     followed, and no proxy is used (see the package netguard).
//   - An issuer has Timeout to answer. At most 1 MiB of each answer is read, and at most
//     maxFetches issuers are asked at a time, namespaceFetches for the rules of one namespace.
//     Issuers whose keys were fetched before come first, and the issuers that others name don't
//     make their keys be forgotten (see issuers).
//   - How often an issuer is asked doesn't depend on how many tokens clients send (see keySet).
//     A token that fits no rule, or that has expired, causes no request.
//   - An issuer's keys verify only its own tokens: each token is checked against the issuer of
//     the rule, and the keys are kept by issuer.
type Verifier struct {
	o       VerifierOptions
	client  *http.Client
	turns   fetchTurns
	issuers issuers
}

const maxToken = 16 << 10 // bytes

// NewVerifier makes a Verifier. It sends no request.
func NewVerifier(o VerifierOptions) *Verifier {
	o.MaxIssuers = cmp.Or(o.MaxIssuers, 256)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	dialer := &net.Dialer{Timeout: o.Timeout}
	if !o.AllowPrivate {
		dialer.ControlContext = netguard.Guard{Hint: "an issuer that is meant to be there needs the setting auth.federation.allow_private"}.Control
	}
	v := &Verifier{
		o: o,
		client: &http.Client{
			Transport: boundedTransport{&http.Transport{
				Proxy:                  nil, // a proxy would dial instead of this process
				DialContext:            dialer.DialContext,
				TLSClientConfig:        &tls.Config{RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12},
				ForceAttemptHTTP2:      true,
				MaxResponseHeaderBytes: 64 << 10,
				DisableKeepAlives:      true, // the next request to the issuer may be an hour away
			}},
			CheckRedirect: refuseRedirects,
		},
	}
	v.issuers = v.keepIssuers()
	return v
}

// IsToken says whether a password has the form of a signed token: three parts in base64, of which
// the first is a JSON object. It doesn't say that the token is valid.
func IsToken(password string) bool {
	parts := strings.Split(password, ".")
	if len(password) > maxToken || len(parts) != 3 || !strings.HasPrefix(parts[0], "eyJ") {
		return false
	}
	return !slices.ContainsFunc(parts, func(part string) bool {
		_, err := base64.RawURLEncoding.DecodeString(part)
		return err != nil
	})
}

// Unverified returns the claim sub of a token and when the token expires. Nothing is verified: the
// caller must have verified the same token, or verify it before it relies on them. An error wraps
// ErrRefused.
func Unverified(rawToken string) (subject string, expires time.Time, err error) {
	claims, err := readUnverified(rawToken)
	if err != nil {
		return "", expires, err
	}
	if claims["exp"] == nil {
		return "", expires, refused("the token has no exp")
	}
	if expires, err = date(claims, "exp"); err != nil {
		return "", time.Time{}, err
	}
	subject, _ = text(claims["sub"])
	return subject, expires, nil
}

// Verify returns the claims of a token that the issuer has issued for the audience and that has
// not expired. Numbers are json.Number. An error wraps ErrRefused or ErrUnavailable.
func (v *Verifier) Verify(ctx context.Context, rawToken, issuer, audience string) (map[string]any, error) {
	unverified, err := readUnverified(rawToken)
	if err != nil {
		return nil, err
	}
	// Tokens with wrong claims cause no request. The payload that the keys verify is the same.
	if err := v.checkClaims(unverified, issuer, audience); err != nil {
		return nil, err
	}
	if err := checkIssuer(issuer, v.o.AllowPrivate); err != nil {
		return nil, refused("%v", err)
	}
	payload, err := v.issuers.keysOf(ctx, issuer).VerifySignature(ctx, rawToken)
	if err != nil {
		return nil, err
	}
	claims, err := decode(payload)
	if err != nil {
		return nil, refused("the token's claims can't be read")
	}
	if err := v.checkClaims(claims, issuer, audience); err != nil {
		return nil, err
	}
	return claims, nil
}

// Match verifies a token and returns the index of the first rule that it satisfies, with the
// token's claims. Only rules with the token's issuer and an audience of the token are considered,
// so the token is verified once, against one issuer. An error wraps ErrRefused or ErrUnavailable.
func (v *Verifier) Match(ctx context.Context, rawToken string, rules []Rule) (int, map[string]any, error) {
	unverified, err := readUnverified(rawToken)
	if err != nil {
		return 0, nil, err
	}
	first := slices.IndexFunc(rules, func(r Rule) bool { return r.concerns(unverified) })
	if first < 0 {
		issuer, _ := text(unverified["iss"])
		audience, _ := texts(unverified["aud"])
		return 0, nil, refused("no rule has the token's issuer, %s, together with its audience, %s", excerpt(issuer), excerpt(strings.Join(audience, " ")))
	}
	claims, err := v.Verify(ctx, rawToken, rules[first].Issuer, rules[first].Audience)
	if err != nil {
		return 0, nil, err
	}
	var problem error
	for i, r := range rules {
		if !r.concerns(claims) {
			continue
		}
		err := r.Match(claims)
		if err == nil {
			return i, claims, nil
		}
		problem = cmp.Or(problem, err)
	}
	return 0, nil, problem
}

// readUnverified reads the claims of a token that may be a forgery.
func readUnverified(raw string) (map[string]any, error) {
	if len(raw) > maxToken {
		return nil, refused("the token has %d bytes, more than %d", len(raw), maxToken)
	}
	token, err := jose.ParseSignedCompact(raw, algorithms)
	if err != nil {
		return nil, refused("the token isn't a JWT that is signed with one of %s", algorithms)
	}
	claims, err := decode(token.UnsafePayloadWithoutVerification())
	if err != nil {
		return nil, refused("the token's claims can't be read")
	}
	return claims, nil
}

// checkClaims checks the claims of RFC 7519: iss, aud, exp, nbf and iat.
func (v *Verifier) checkClaims(claims map[string]any, issuer, audience string) error {
	if issuer == "" || audience == "" {
		return refused("the rule names no issuer or no audience")
	}
	for _, name := range []string{"exp", "iat"} {
		if claims[name] == nil {
			return refused("the token has no %s", name)
		}
	}
	expires, err := date(claims, "exp")
	issued, err2 := date(claims, "iat")
	begins, err3 := date(claims, "nbf")
	if err := cmp.Or(err, err2, err3); err != nil {
		return err
	}
	now := v.o.Now()
	switch {
	case claims["iss"] != issuer:
		return refused("the token's iss isn't the rule's issuer")
	case !isFor(claims["aud"], audience):
		return refused("the token's aud lacks the rule's audience")
	case !now.Before(expires.Add(leeway)):
		return refused("the token has expired")
	case now.Before(begins.Add(-leeway)):
		return refused("the token is not valid yet")
	case now.Before(issued.Add(-leeway)):
		return refused("the token was issued in the future")
	}
	return nil
}

// isFor says whether a claim aud, which is a text or a list of texts, has the audience.
func isFor(claim any, audience string) bool {
	list, isList := claim.([]any)
	if !isList {
		list = []any{claim}
	}
	has := false
	for _, element := range list {
		s, ok := element.(string)
		if !ok {
			return false
		}
		has = has || s == audience
	}
	return has
}

// date returns the time in a claim, in whole seconds; the zero time, which is before all others, if there
// is no such claim. An error wraps ErrRefused.
func date(claims map[string]any, name string) (time.Time, error) {
	value, ok := claims[name]
	if !ok {
		return time.Time{}, nil
	}
	const most = 1 << 60 // seconds: sums of such times don't overflow
	number, _ := value.(json.Number)
	seconds, err := number.Float64()
	if err != nil || seconds < -most || seconds > most {
		return time.Time{}, refused("the token's %s is no time in seconds", name)
	}
	return time.Unix(int64(seconds), 0), nil
}

// fetch fetches the issuer's keys, by its discovery document. `known` says that they were fetched
// before. Error: errNoTurn, if there was no time to begin.
func (v *Verifier) fetch(ctx context.Context, issuer string, known bool) ([]jose.JSONWebKey, error) {
	const doing = "reading the issuer's discovery document"
	done, err := v.turns.wait(ctx, fetcher{namespaceOf(ctx), known})
	if err != nil {
		return nil, unavailable(doing, err)
	}
	defer done()
	var document struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
	}
	if err := fetchJSON(ctx, v.client, strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", &document); err != nil {
		return nil, unavailable(doing, err)
	}
	if document.Issuer != issuer {
		return nil, unavailable(doing, fmt.Errorf("it is that of the issuer %s", excerpt(document.Issuer)))
	}
	if u, err := url.Parse(document.JWKS); err != nil || u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && v.o.AllowPrivate) {
		return nil, unavailable(doing, fmt.Errorf("its jwks_uri, %s, isn't an https URL", excerpt(document.JWKS)))
	}
	return fetchKeys(ctx, v.client, document.JWKS)
}
