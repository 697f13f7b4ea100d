package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
)

// algorithms are the signatures that tokens may have. All are asymmetric: with an algorithm such
// as HS256, the public key would be the secret.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

const (
	keyLife      = time.Hour     // how long keys are used before they are fetched again
	keyStaleLife = 4 * time.Hour // how long they are used while fetching fails
	keyPause     = time.Minute   // between fetches because of tokens that no key fits
	// A token with the id of a key that isn't known is probably signed with a new key, so the
	// keys are then fetched sooner. Strangers can make such tokens, so the number of these fetches
	// is limited: keyBurst at once, and one more each keyRefill. It doesn't matter who caused a
	// fetch, since everybody gets its keys: while strangers use up the fetches, the keys are never
	// older than keyRefill.
	keyBurst     = 3
	keyRefill    = 5 * time.Second
	keyFailPause = 10 * time.Second // between failing fetches
	maxKeys      = 100
)

// keySet holds the keys of an issuer. It fetches them when they are needed first, when they are
// old, and when a token fits none of them, since the issuer may have a new key. The pauses
// and the burst bound how many requests clients can cause with tokens that nobody issued.
type keySet struct {
	fetch func(context.Context) ([]jose.JSONWebKey, error)
	limit time.Duration // of a fetch
	now   func() time.Time

	fetching singleflight.Group
	mu       sync.Mutex
	state    keyState
	early    int       // fetches for unknown keys that were made of the burst
	refilled time.Time // when early was last lowered, or began to count
}

type keyState struct {
	keys    []jose.JSONWebKey
	fetched time.Time // when the keys were fetched
	tried   time.Time // when the last fetch ended, whatever its outcome
	failed  error     // of the last fetch
}

func (s *keySet) current() keyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// VerifySignature returns the payload of a token that the issuer has signed. An error wraps
// ErrRefused or ErrUnavailable.
func (s *keySet) VerifySignature(ctx context.Context, raw string) ([]byte, error) {
	token, err := jose.ParseSignedCompact(raw, algorithms)
	if err != nil {
		return nil, refused("the token isn't a JWT that is signed with one of %s", algorithms)
	}
	now, state := s.now(), s.current()
	payload, ok := state.verify(token)
	if ok && now.Sub(state.fetched) < keyLife {
		return payload, nil
	}
	if unknown := state.lacks(token); state.due(now) || unknown {
		if state, err = s.refresh(ctx, unknown); err != nil {
			return nil, err
		}
		payload, ok = state.verify(token)
	}
	switch {
	case ok && now.Sub(state.fetched) < keyStaleLife:
		return payload, nil
	case state.failed != nil:
		return nil, state.failed
	default:
		return nil, refused("no key of the issuer fits the token's signature")
	}
}

// refresh fetches the keys. If a fetch for the same namespace is under way, it waits for that one.
// It doesn't wait for one of another namespace, which may wait for its turn because of slow issuers
// of that namespace. If the keys aren't due, it fetches them only for an unknown key, and not too
// often.
func (s *keySet) refresh(ctx context.Context, unknown bool) (keyState, error) {
	done := s.fetching.DoChan(namespaceOf(ctx), func() (any, error) {
		// Log-ins that ask while a fetch runs share it, so it is counted here.
		if state, may := s.mayFetch(unknown); !may {
			return state, nil
		}
		// Others may wait for the keys too, so the fetch doesn't end with this caller's context.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limit)
		defer cancel()
		keys, err := s.fetch(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if errors.Is(err, errNoTurn) { // says nothing about the issuer, so others may try at once
			state := s.state
			state.failed = err
			return state, nil
		}
		s.state.tried, s.state.failed = s.now(), err
		if err == nil {
			s.state.keys, s.state.fetched = keys, s.state.tried
		}
		return s.state, nil
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return keyState{}, r.Err
		}
		return r.Val.(keyState), nil
	case <-ctx.Done():
		return keyState{}, unavailable("fetching the issuer's keys", ctx.Err())
	}
}

// mayFetch says whether a fetch may begin now, and counts it. If not, it returns the keys.
func (s *keySet) mayFetch(unknown bool) (keyState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.state.due(now) {
		return s.state, true
	}
	if !unknown || s.state.failed != nil {
		return s.state, false
	}
	if refill := int(now.Sub(s.refilled) / keyRefill); s.early > 0 && refill > 0 {
		s.early, s.refilled = max(0, s.early-refill), s.refilled.Add(time.Duration(refill)*keyRefill)
	}
	if s.early == 0 {
		s.refilled = now
	}
	if s.early >= keyBurst {
		return s.state, false
	}
	s.early++
	return s.state, true
}

// due says whether the keys may be fetched because of any token.
func (s keyState) due(now time.Time) bool {
	pause := keyPause
	if s.failed != nil {
		pause = keyFailPause
	}
	return s.tried.IsZero() || now.Sub(s.tried) >= pause
}

// lacks says whether a token names a key that isn't among the keys, although these could be
// fetched.
func (s keyState) lacks(token *jose.JSONWebSignature) bool {
	id := token.Signatures[0].Header.KeyID
	return id != "" && s.failed == nil && !slices.ContainsFunc(s.keys, func(k jose.JSONWebKey) bool { return k.KeyID == id })
}

// verify returns the payload if a key has signed the token.
func (s keyState) verify(token *jose.JSONWebSignature) (payload []byte, ok bool) {
	header := token.Signatures[0].Header
	for _, k := range s.keys {
		if header.KeyID != "" && k.KeyID != "" && header.KeyID != k.KeyID || k.Algorithm != "" && header.Algorithm != k.Algorithm {
			continue
		}
		if payload, err := token.Verify(k.Key); err == nil {
			return payload, true
		}
	}
	return nil, false
}

// fetchKeys fetches a JWKS and returns its keys for signatures. Keys that can't be used, such as
// those of new kinds, are left out (RFC 7517, section 5).
func fetchKeys(ctx context.Context, client *http.Client, address string) ([]jose.JSONWebKey, error) {
	const doing = "reading the issuer's keys"
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := fetchJSON(ctx, client, address, &set); err != nil {
		return nil, unavailable(doing, err)
	}
	if len(set.Keys) > maxKeys {
		return nil, unavailable(doing, fmt.Errorf("there are %d keys, more than %d", len(set.Keys), maxKeys))
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) == nil && k.Valid() && (k.Use == "" || k.Use == "sig") && isPublicKey(k.Key) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, unavailable(doing, errors.New("there is no key that can verify signatures"))
	}
	return keys, nil
}

// isPublicKey says whether a key is a public key of a size that is neither weak nor slow.
func isPublicKey(key any) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return k.N.BitLen() >= 2048 && k.N.BitLen() <= 8192
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// fetchJSON requests an address and reads the answer as JSON. The error has nothing of the
// answer's body.
func fetchJSON(ctx context.Context, client *http.Client, address string, v any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("%s isn't a URL", excerpt(address))
	}
	r.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := client.Do(r)
	if err != nil {
		var inURL *url.Error // it has the address too
		if errors.As(err, &inURL) {
			err = inURL.Err
		}
		return fmt.Errorf("requesting %s: %w", excerpt(address), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %d", excerpt(address), resp.StatusCode)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", excerpt(address), err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("the answer of %s isn't the JSON that it should be", excerpt(address))
	}
	return nil
}
