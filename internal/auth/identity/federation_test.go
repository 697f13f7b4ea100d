package identity

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"

	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
)

const audience = "registry.example.com"

// pipeline returns the claims of a pipeline's token, which are changed as said.
func pipeline(change ...any) map[string]any {
	claims := map[string]any{"aud": audience, "sub": "repo:acme/app:ref:refs/heads/main"}
	for i := 0; i < len(change); i += 2 {
		claims[change[i].(string)] = change[i+1]
	}
	return claims
}

// clock is a clock that tests set forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time         { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) add(by time.Duration)   { c.ahead.Add(int64(by)) }
func forTests(c *clock) VerifierOptions { return VerifierOptions{AllowPrivate: true, Now: c.now} }

func TestVerify(t *testing.T) {
	t.Parallel()
	for _, method := range []jwt.SigningMethod{jwt.SigningMethodRS256, jwt.SigningMethodPS256, jwt.SigningMethodES256, jwt.SigningMethodEdDSA} {
		issuer := identitytest.NewIssuer(t)
		issuer.Rotate(t, method)
		v := NewVerifier(VerifierOptions{AllowPrivate: true})
		for range 3 {
			claims, err := v.Verify(t.Context(), issuer.Sign(t, pipeline("run", 12345678901234567)), issuer.URL, audience)
			must(t, err)
			if claims["sub"] != "repo:acme/app:ref:refs/heads/main" || claims["run"] != json.Number("12345678901234567") {
				t.Errorf("%s: the claims are %v", method.Alg(), claims)
			}
		}
		if n := issuer.Requests.Load(); n != 2 {
			t.Errorf("%s: %d requests, want one for the discovery document and one for the keys", method.Alg(), n)
		}
	}
}

// TestForgedTokens: tokens that the issuer hasn't signed for this registry are refused.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	issuer, foreign := identitytest.NewIssuer(t), identitytest.NewIssuer(t)
	v := NewVerifier(VerifierOptions{AllowPrivate: true})
	good := issuer.Sign(t, pipeline())
	_, err := v.Verify(t.Context(), good, issuer.URL, audience)
	must(t, err)
	_, err = v.Verify(t.Context(), issuer.Sign(t, pipeline("nbf", 0)), issuer.URL, audience) // as some issuers write it
	must(t, err)
	now := time.Now()
	sign := func(method jwt.SigningMethod, key any, header map[string]any) string {
		token := jwt.NewWithClaims(method, jwt.MapClaims{"iss": issuer.URL, "aud": audience, "sub": "s", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix()})
		for name, value := range header {
			token.Header[name] = value
		}
		signed, err := token.SignedString(key)
		must(t, err)
		return signed
	}
	public, isRSA := issuer.JWKS().Keys[0].Key.(*rsa.PublicKey)
	if !isRSA {
		t.Fatal("the issuer has no RSA key")
	}
	publicDER, err := x509.MarshalPKIXPublicKey(public)
	must(t, err)
	kid := map[string]any{"kid": issuer.JWKS().Keys[0].KeyID}
	part := strings.Split(good, ".")
	altered := base64.RawURLEncoding.EncodeToString([]byte(fmt.Sprintf(`{"iss":%q,"aud":%q,"sub":"root","iat":%d,"exp":%d}`, issuer.URL, audience, now.Unix(), now.Unix()+60)))
	own, err := json.Marshal(foreign.JWKS().Keys[0])
	must(t, err)
	for name, test := range map[string]struct{ token, want string }{
		"wrong key":              {foreign.Sign(t, pipeline("iss", issuer.URL)), "no key"},
		"alg none":               {sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, kid), "signed with one of"},
		"HS256 with the PKIX":    {sign(jwt.SigningMethodHS256, publicDER, kid), "signed with one of"},
		"HS256 with the modulus": {sign(jwt.SigningMethodHS256, public.N.Bytes(), kid), "signed with one of"},
		"altered claims":         {part[0] + "." + altered + "." + part[2], "no key"},
		"no signature":           {part[0] + "." + part[1] + ".", "no key"},
		"other algorithm":        {base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"PS256"}`)) + "." + part[1] + "." + part[2], "no key"},
		"key in the header":      {withHeader(t, foreign.Sign(t, pipeline("iss", issuer.URL)), `{"alg":"RS256","jwk":`+string(own)+`}`), "no key"},
		"keys of the header":     {withHeader(t, foreign.Sign(t, pipeline("iss", issuer.URL)), `{"alg":"RS256","jku":"`+foreign.URL+`/jwks"}`), "no key"},
		"unknown extension":      {withHeader(t, good, `{"alg":"RS256","crit":["x"],"x":1}`), ""},
		"other audience":         {issuer.Sign(t, pipeline("aud", "other.example.com")), "aud"},
		"longer audience":        {issuer.Sign(t, pipeline("aud", audience+".evil.example")), "aud"},
		"no audience":            {issuer.Sign(t, pipeline("aud", nil)), "aud"},
		"other issuer":           {foreign.Sign(t, pipeline()), "iss"},
		"issuer with a slash":    {issuer.Sign(t, pipeline("iss", issuer.URL+"/")), "iss"},
		"no issuer":              {issuer.Sign(t, pipeline("iss", nil)), "iss"},
		"expired":                {issuer.Sign(t, pipeline("exp", now.Add(-61*time.Second).Unix())), "expired"},
		"no exp":                 {issuer.Sign(t, pipeline("exp", nil)), "exp"},
		"exp as text":            {issuer.Sign(t, pipeline("exp", "9999999999")), "exp"},
		"no iat":                 {issuer.Sign(t, pipeline("iat", nil)), "iat"},
		"iat as text":            {issuer.Sign(t, pipeline("iat", "1")), "iat"},
		"from the future":        {issuer.Sign(t, pipeline("iat", now.Add(2*time.Minute).Unix())), "issued"},
		"not yet":                {issuer.Sign(t, pipeline("nbf", now.Add(2*time.Minute).Unix())), "not valid yet"},
		"nbf as text":            {issuer.Sign(t, pipeline("nbf", "0")), "nbf"},
		"endless exp":            {issuer.Sign(t, pipeline("exp", json.Number("1e300"))), "exp"},
		"number among audiences": {issuer.Sign(t, pipeline("aud", []any{audience, 7})), "aud"},
		"number as audience":     {issuer.Sign(t, pipeline("aud", 7)), "aud"},
		"long":                   {issuer.Sign(t, pipeline("x", strings.Repeat("x", maxToken))), "more than 16384"},
		"not a token":            {"secret", "signed with one of"},
		"JSON":                   {`{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`, "signed with one of"},
		"empty":                  {"", "signed with one of"},
	} {
		claims, err := v.Verify(t.Context(), test.token, issuer.URL, audience)
		if claims != nil || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v, want an error with %q", name, claims, err, test.want)
		}
		if len(test.token) > 20 && strings.Contains(fmt.Sprint(err), test.token[len(test.token)-20:]) {
			t.Errorf("%s: the error has the token: %v", name, err)
		}
	}
	for _, ends := range []time.Duration{-30 * time.Second, time.Minute} { // clocks differ
		token := issuer.Sign(t, pipeline("exp", now.Add(ends).Unix(), "iat", now.Add(30*time.Second).Unix()))
		_, err := v.Verify(t.Context(), token, issuer.URL, audience)
		must(t, err)
	}
	for _, other := range [][2]string{{"", audience}, {issuer.URL, ""}} {
		_, err := v.Verify(t.Context(), good, other[0], other[1])
		wantError(t, err, ErrRefused)
	}
}

// withHeader replaces a token's header.
func withHeader(t *testing.T, token, header string) string {
	t.Helper()
	_, rest, ok := strings.Cut(token, ".")
	if !ok {
		t.Fatal("no token")
	}
	return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + rest
}

// TestRotation: the issuer's new keys are found at once, and a removed key stops working. Tokens
// with invented keys cause few requests, and keep nobody's new key from being found for long.
func TestRotation(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	var c clock
	v := NewVerifier(forTests(&c))
	verify := func(token string) error {
		_, err := v.Verify(t.Context(), token, issuer.URL, audience)
		return err
	}
	longLived := pipeline("exp", time.Now().Add(24*time.Hour).Unix())
	old := issuer.Sign(t, longLived)
	must(t, verify(old))

	issuer.Rotate(t, jwt.SigningMethodES256)
	fresh := issuer.Sign(t, longLived)
	for range 20 { // although the keys were fetched just now
		must(t, verify(fresh))
		must(t, verify(old))
	}
	if n := issuer.Requests.Load(); n != 4 { // each fetch asks for the issuer's configuration too
		t.Errorf("%d requests, want 4", n)
	}

	stranger := identitytest.NewIssuer(t)
	invented := func(n int) string {
		stranger.Rotate(t, jwt.SigningMethodES256)
		return stranger.Sign(t, pipeline("iss", issuer.URL, "n", n))
	}
	before := issuer.Requests.Load()
	for n := range 20 {
		wantError(t, verify(invented(n)), ErrRefused, "no key")
	}
	if n := issuer.Requests.Load() - before; n != 2*(keyBurst-1) { // one fetch was for the rotation
		t.Errorf("%d requests because of invented keys, want %d", n, 2*(keyBurst-1))
	}
	issuer.Rotate(t, jwt.SigningMethodES256)
	fresh = issuer.Sign(t, longLived)
	wantError(t, verify(fresh), ErrRefused, "no key")
	c.add(keyRefill)
	must(t, verify(fresh))
	for n := range 20 {
		wantError(t, verify(invented(n)), ErrRefused, "no key")
	}
	if n := issuer.Requests.Load() - before; n != 2*keyBurst {
		t.Errorf("%d requests within %s, want %d", n, keyRefill, 2*keyBurst)
	}
	// Without an id nobody can say that the key is new.
	before = issuer.Requests.Load()
	c.add(keyBurst * keyRefill)
	wantError(t, verify(withHeader(t, fresh, `{"alg":"ES256"}`)), ErrRefused, "no key")
	if n := issuer.Requests.Load(); n != before {
		t.Errorf("%d requests because of a token without a key's id", n-before)
	}

	issuer.Forget()
	must(t, verify(old)) // from the cache
	c.add(keyLife)
	wantError(t, verify(old), ErrRefused, "no key")
	must(t, verify(fresh))

	// The issuer fails for a while: its keys stay in use, but not for ever.
	issuer.Serve(http.NotFoundHandler())
	c.add(keyLife)
	must(t, verify(fresh))
	before = issuer.Requests.Load()
	for range 20 {
		must(t, verify(fresh))
	}
	if n := issuer.Requests.Load(); n != before {
		t.Errorf("%d requests while the last failure is recent", n-before)
	}
	c.add(keyStaleLife)
	wantError(t, verify(fresh), ErrUnavailable, "404")
	issuer.Serve(nil)
	wantError(t, verify(fresh), ErrUnavailable, "404") // the failure is remembered
	c.add(keyFailPause)
	must(t, verify(fresh))
}

// TestManyClients: clients that come at the same time cause one fetch.
func TestManyClients(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	v := NewVerifier(VerifierOptions{AllowPrivate: true})
	token := issuer.Sign(t, pipeline())
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := v.Verify(t.Context(), token, issuer.URL, audience); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := issuer.Requests.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

// TestHostileIssuers: the issuer's answers are an attack, or of no use.
func TestHostileIssuers(t *testing.T) {
	t.Parallel()
	victim := identitytest.NewIssuer(t) // a server that only Purser can reach
	weak := `{"keys":[{"kty":"RSA","n":"` + base64.RawURLEncoding.EncodeToString(make([]byte, 128)) + `","e":"AQAB"},{"kty":"oct","k":"AAAA"},{"kty":"new"}]}`
	many := `{"keys":[` + strings.Repeat(`{},`, maxKeys) + `{}]}`
	for name, test := range map[string]struct {
		want   string
		answer func(issuer string, w http.ResponseWriter, r *http.Request)
	}{
		"huge JWKS": {"1048576 bytes", jwks(func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"keys":[`, strings.Repeat(" ", maxAnswer), `]}`)
		})},
		"many keys":      {"101 keys", jwks(func(w http.ResponseWriter) { fmt.Fprint(w, many) })},
		"keys of no use": {"no key that can", jwks(func(w http.ResponseWriter) { fmt.Fprint(w, weak) })},
		"HTML":           {"isn't the JSON", jwks(func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") })},
		"endless discovery": {"1048576 bytes", func(_ string, w http.ResponseWriter, _ *http.Request) {
			for _, err := w.Write([]byte("[")); err == nil; _, err = w.Write([]byte(strings.Repeat("[", 4096))) {
			}
		}},
		"redirect": {"redirects", func(_ string, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, victim.URL+"/.well-known/openid-configuration", http.StatusFound)
		}},
		"JWKS redirects": {"redirects", jwks(func(w http.ResponseWriter) {
			w.Header().Set("Location", victim.URL+"/jwks")
			w.WriteHeader(http.StatusTemporaryRedirect)
		})},
		"document of another issuer": {"that of the issuer", func(_ string, w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, map[string]any{"issuer": victim.URL, "jwks_uri": victim.URL + "/jwks"})
		}},
		"file as JWKS": {"isn't an https URL", func(issuer string, w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, map[string]any{"issuer": issuer, "jwks_uri": "file:///etc/passwd"})
		}},
		"error": {"answered 500", func(_ string, w http.ResponseWriter, _ *http.Request) { http.Error(w, "the body", 500) }},
	} {
		issuer := identitytest.NewIssuer(t)
		issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { test.answer(issuer.URL, w, r) }))
		v := NewVerifier(VerifierOptions{AllowPrivate: true})
		_, err := v.Verify(t.Context(), issuer.Sign(t, pipeline()), issuer.URL, audience)
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "the body") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if n := victim.Requests.Load(); n != 0 {
		t.Errorf("the server inside got %d requests", n)
	}
}

// jwks serves a good discovery document and the given JWKS.
func jwks(answer func(http.ResponseWriter)) func(string, http.ResponseWriter, *http.Request) {
	return func(issuer string, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jwks" {
			answer(w)
			return
		}
		writeJSON(w, map[string]any{"issuer": issuer, "jwks_uri": issuer + "/jwks"})
	}
}

// TestSlowIssuer: an issuer that doesn't answer, or drips, costs a log-in the time limit and
// further ones nothing. A client that goes away doesn't wait.
func TestSlowIssuer(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "{")
		if http.NewResponseController(w).Flush() != nil {
			return // the client has gone already
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	token := issuer.Sign(t, pipeline())
	v := NewVerifier(VerifierOptions{AllowPrivate: true, Timeout: 100 * time.Millisecond})
	for range 5 {
		_, err := v.Verify(t.Context(), token, issuer.URL, audience)
		wantError(t, err, ErrUnavailable, "deadline")
	}
	if n := issuer.Requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	patient := NewVerifier(VerifierOptions{AllowPrivate: true, Timeout: 300 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := patient.Verify(ctx, token, issuer.URL, audience)
	wantError(t, err, ErrUnavailable)
}

// TestPrivateIssuers: without AllowPrivate, no connection is made to a server on this machine,
// however its address is written.
func TestPrivateIssuers(t *testing.T) {
	t.Parallel()
	signer := identitytest.NewIssuer(t)
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(signer)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	v := NewVerifier(VerifierOptions{RootCAs: roots})
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433"} {
		issuer := fmt.Sprintf("https://%s:%d", host, port)
		_, err := v.Verify(t.Context(), signer.Sign(t, pipeline("iss", issuer)), issuer, audience)
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", host, err)
		}
		if net.ParseIP(strings.Trim(host, "[]")) != nil || host == "localhost" {
			wantError(t, err, ErrUnavailable, "not public", "allow_private")
		}
	}
	_, err := v.Verify(t.Context(), signer.Sign(t, pipeline()), signer.URL, audience)
	wantError(t, err, ErrRefused, "https")
	if n := connections.Load() + signer.Requests.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}

	// With it, the certificate still counts.
	allowed := NewVerifier(VerifierOptions{RootCAs: roots, AllowPrivate: true})
	issuer := fmt.Sprintf("https://127.0.0.1:%d", port)
	signer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		jwks(func(w http.ResponseWriter) { writeJSON(w, signer.JWKS()) })(issuer, w, r)
	}))
	token := signer.Sign(t, pipeline("iss", issuer))
	_, err = allowed.Verify(t.Context(), token, issuer, audience)
	must(t, err)
	_, err = NewVerifier(VerifierOptions{AllowPrivate: true}).Verify(t.Context(), token, issuer, audience)
	wantError(t, err, ErrUnavailable, "certificate")
}

// TestKeysByIssuer: an issuer's keys aren't used for another issuer's tokens, and keys are kept
// for a bounded number of issuers.
func TestKeysByIssuer(t *testing.T) {
	t.Parallel()
	v := NewVerifier(VerifierOptions{AllowPrivate: true, MaxIssuers: 2})
	issuers := make([]*identitytest.Issuer, 3)
	verify := func(i int) {
		t.Helper()
		_, err := v.Verify(t.Context(), issuers[i].Sign(t, pipeline()), issuers[i].URL, audience)
		must(t, err)
	}
	for i := range issuers {
		issuers[i] = identitytest.NewIssuer(t)
		verify(i)
		verify(0)
	}
	for i, want := range []int64{2, 2, 2} {
		if n := issuers[i].Requests.Load(); n != want {
			t.Errorf("issuer %d: %d requests, want %d", i, n, want)
		}
	}
	_, err := v.Verify(t.Context(), issuers[0].Sign(t, pipeline("iss", issuers[2].URL)), issuers[2].URL, audience)
	wantError(t, err, ErrRefused, "no key")
	verify(1) // was forgotten
	if n := issuers[1].Requests.Load(); n != 4 || len(v.issuers.kept) != 2 {
		t.Errorf("%d requests, %d issuers are kept", n, len(v.issuers.kept))
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	issuer, other := identitytest.NewIssuer(t), identitytest.NewIssuer(t)
	v := NewVerifier(VerifierOptions{AllowPrivate: true})
	sub := func(pattern string) map[string]string { return map[string]string{"sub": pattern} }
	rules := []Rule{
		{other.URL, audience, sub("**")},
		{issuer.URL, "another audience", sub("**")},
		{issuer.URL, audience, sub("repo:acme/other:**")},
		{issuer.URL, audience, sub("repo:acme/app:ref:refs/heads/*")},
		{issuer.URL, audience, sub("repo:acme/**")},
	}
	i, claims, err := v.Match(t.Context(), issuer.Sign(t, pipeline()), rules)
	must(t, err)
	if i != 3 || claims["sub"] != "repo:acme/app:ref:refs/heads/main" {
		t.Errorf("rule %d, claims %v", i, claims)
	}
	if n := other.Requests.Load(); n != 0 {
		t.Errorf("the other rule's issuer got %d requests", n)
	}
	i, _, err = v.Match(t.Context(), issuer.Sign(t, pipeline("aud", []string{"x", "another audience"})), rules)
	must(t, err)
	if i != 1 {
		t.Errorf("rule %d, want 1", i)
	}
	_, _, err = v.Match(t.Context(), issuer.Sign(t, pipeline("sub", "repo:evil/app:ref:refs/heads/main")), rules)
	wantError(t, err, ErrRefused, "repo:evil/app")
	if strings.Contains(err.Error(), "acme") {
		t.Errorf("the error tells the rule: %v", err)
	}
	_, _, err = v.Match(t.Context(), issuer.Sign(t, pipeline("aud", "x")), rules)
	wantError(t, err, ErrRefused, "no rule", issuer.URL)
	_, _, err = v.Match(t.Context(), issuer.Sign(t, pipeline()), nil)
	wantError(t, err, ErrRefused, "no rule")
	_, _, err = v.Match(t.Context(), "x", rules)
	wantError(t, err, ErrRefused)
	_, _, err = v.Match(t.Context(), other.Sign(t, pipeline("iss", issuer.URL)), rules)
	wantError(t, err, ErrRefused, "no key")
}

func TestIsToken(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	if token := issuer.Sign(t, pipeline()); !IsToken(token) {
		t.Errorf("%s is no token", token)
	}
	for _, password := range []string{"", "a.b.c", "purser_pat_x", "eyJ", "eyJ.a", "eyJ.a!.b", strings.Repeat("eyJh.", 3), "eyJh." + strings.Repeat("a", maxToken) + ".a"} {
		if IsToken(password) {
			t.Errorf("%.40q is a token", password)
		}
	}
}

// TestKeysWithoutNames: a JWKS may leave out kid, alg and use.
func TestKeysWithoutNames(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	issuer.Rotate(t, jwt.SigningMethodES256)
	set := issuer.JWKS()
	for i := range set.Keys {
		set.Keys[i] = jose.JSONWebKey{Key: set.Keys[i].Key}
	}
	issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		jwks(func(w http.ResponseWriter) { writeJSON(w, set) })(issuer.URL, w, r)
	}))
	v := NewVerifier(VerifierOptions{AllowPrivate: true})
	_, err := v.Verify(t.Context(), issuer.Sign(t, pipeline()), issuer.URL, audience)
	must(t, err)
}

// TestAlgorithmOfKey: a key that the issuer has for one algorithm verifies no token with another.
func TestAlgorithmOfKey(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	set := issuer.JWKS()
	set.Keys[0].Algorithm = "PS256" // the issuer signs with RS256
	issuer.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		jwks(func(w http.ResponseWriter) { writeJSON(w, set) })(issuer.URL, w, r)
	}))
	v := NewVerifier(VerifierOptions{AllowPrivate: true})
	_, err := v.Verify(t.Context(), issuer.Sign(t, pipeline()), issuer.URL, audience)
	wantError(t, err, ErrRefused, "no key")
}
