package login

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/auth/identity"
)

// attemptAge is how long a log-in at the provider may take.
const attemptAge = 10 * time.Minute

// attempts keeps log-ins at the provider that have begun, in a cookie of the browser. The cookie
// is encrypted and authenticated by AES-GCM, so the browser's owner can neither read the
// verifier of PKCE nor make up a log-in.
//
// The key is random and is stored in the table settings, so that all replicas have it. It isn't
// derived from the keys of registry tokens: those change, and a log-in would then have to find
// the old one. The nonce is random: 2^32 log-ins are far from a collision that matters.
//
// The cookie has SameSite=Lax, since the browser comes back by a link of the provider's site.
// Over https its name begins with __Host-, so that no other server can set it.
type attempts struct {
	secret func(context.Context) ([]byte, error)

	mu   sync.Mutex
	aead cipher.AEAD // nil: not yet
}

// kept is what the cookie has.
type kept struct {
	State, Nonce, Verifier string
	Next                   string // where the browser goes afterwards
	Redirect               string // the URL to which the provider sends the browser
	Until                  time.Time
}

func (k kept) attempt() identity.Attempt {
	return identity.Attempt{State: k.State, Nonce: k.Nonce, Verifier: k.Verifier}
}

func (a *attempts) cipher(ctx context.Context) (cipher.AEAD, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.aead != nil {
		return a.aead, nil
	}
	secret, err := a.secret(ctx)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	a.aead, err = cipher.NewGCMWithRandomNonce(block)
	return a.aead, err
}

// attemptsPurpose is authenticated with the cookie, so that nothing else that the key encrypts
// can be sent in its place.
var attemptsPurpose = []byte("log-in at the OpenID Connect provider")

func attemptCookie(secure bool, value string, age time.Duration) *http.Cookie {
	name := "purser_attempt"
	if secure {
		name = "__Host-purser_attempt"
	}
	return &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: int(age / time.Second),
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}

// keep lets the browser keep a log-in that has begun.
func (a *attempts) keep(ctx context.Context, w http.ResponseWriter, secure bool, k kept) error {
	aead, err := a.cipher(ctx)
	if err != nil {
		return err
	}
	k.Until = time.Now().Add(attemptAge)
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	http.SetCookie(w, attemptCookie(secure, base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, text, attemptsPurpose)), attemptAge))
	return nil
}

// take returns the log-in that the browser has begun, and makes the browser forget it. ok is
// false if there is none, or it is too old.
func (a *attempts) take(w http.ResponseWriter, r *http.Request, secure bool) (k kept, ok bool, err error) {
	c, err := r.Cookie(attemptCookie(secure, "", 0).Name)
	if err != nil {
		return k, false, nil //nolint:nilerr // there is no cookie
	}
	http.SetCookie(w, attemptCookie(secure, "", -time.Second))
	aead, err := a.cipher(r.Context())
	if err != nil {
		return k, false, err
	}
	sealed, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return k, false, nil //nolint:nilerr // somebody has made it up
	}
	text, err := aead.Open(nil, nil, sealed, attemptsPurpose)
	if err != nil {
		return k, false, nil //nolint:nilerr // somebody has made it up
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return k, false, err
	}
	return k, time.Now().Before(k.Until), nil
}
