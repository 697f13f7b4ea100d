package identitytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

// Issuer issues tokens as a CI system does to its pipelines: it has a discovery document and a
// JWKS, and no log-in.
type Issuer struct {
	URL string // http://127.0.0.1:PORT
	// Requests counts requests for the discovery document and the JWKS.
	Requests atomic.Int64

	mu      sync.Mutex
	keys    []signingKey   // the last of them signs
	handler http.Handler   // nil: the issuer's own
	own     *http.ServeMux // the discovery document and the JWKS
	server  *httptest.Server
}

type signingKey struct {
	id      string
	method  jwt.SigningMethod
	private crypto.Signer
}

// NewIssuer starts an issuer that signs with RS256 and runs until the test ends.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{own: http.NewServeMux()}
	i.Rotate(t, jwt.SigningMethodRS256)
	i.own.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/jwks", "id_token_signing_alg_values_supported": []string{"RS256"},
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
		})
	})
	i.own.HandleFunc("GET /jwks", func(w http.ResponseWriter, _ *http.Request) { answer(w, i.JWKS()) })
	i.server = httptest.NewServer(i)
	i.URL = i.server.URL
	t.Cleanup(i.server.Close)
	return i
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(fmt.Sprintf("a test's issuer: %v", err))
	}
}

// ServeHTTP answers like the issuer, or with the handler of Serve.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.Requests.Add(1)
	i.mu.Lock()
	handler := i.handler
	i.mu.Unlock()
	if handler == nil {
		handler = i.own
	}
	handler.ServeHTTP(w, r)
}

// Serve replaces the answers of the issuer, for tests of issuers that fail or attack. A nil
// handler brings the issuer's own answers back.
func (i *Issuer) Serve(handler http.Handler) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handler = handler
}

// JWKS returns the public keys.
func (i *Issuer) JWKS() jose.JSONWebKeySet {
	i.mu.Lock()
	defer i.mu.Unlock()
	var set jose.JSONWebKeySet
	for _, k := range i.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.private.Public(), KeyID: k.id, Use: "sig", Algorithm: k.method.Alg()})
	}
	return set
}

// Rotate makes a new key for an algorithm: RS256, PS256, ES256 or EdDSA. From then on it signs.
// The JWKS keeps the earlier keys, unless Forget removes them.
func (i *Issuer) Rotate(t testing.TB, method jwt.SigningMethod) {
	t.Helper()
	var private crypto.Signer
	var err error
	switch method {
	case jwt.SigningMethodES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jwt.SigningMethodEdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, signingKey{rand.Text(), method, private})
}

// Forget removes all keys but the last from the JWKS.
func (i *Issuer) Forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = i.keys[len(i.keys)-1:]
}

// Sign returns a token with the claims. Unless the claims say otherwise, iss is the issuer, the
// token was issued now and expires in 5 min; a claim that is nil is left out.
func (i *Issuer) Sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := jwt.MapClaims{"iss": i.URL, "iat": time.Now().Unix(), "exp": time.Now().Add(5 * time.Minute).Unix()}
	maps.Copy(all, claims)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	i.mu.Lock()
	key := i.keys[len(i.keys)-1]
	i.mu.Unlock()
	token := jwt.NewWithClaims(key.method, all)
	token.Header["kid"] = key.id
	signed, err := token.SignedString(key.private)
	if err != nil {
		t.Fatalf("signing a token: %v", err)
	}
	return signed
}
