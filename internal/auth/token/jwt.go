package token

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Issue returns a signed token with the claims, and when it expires. It needs no query, unless
// this replica has no usable key yet. It returns ErrTooLarge, ErrNoKey or an error of the
// database; and an error if the claims grant something that can't be granted.
func (k *Keys) Issue(ctx context.Context, c Claims) (string, time.Time, error) {
	if err := c.check(); err != nil {
		return "", time.Time{}, err
	}
	key, expires, err := k.signingKey(ctx)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issuing a registry token: %w", err)
	}
	if !c.ExpiresAt.IsZero() && c.ExpiresAt.Before(expires) {
		expires = c.ExpiresAt
	}
	now := k.opt.Now().Unix()
	p := payload{
		Issuer: k.opt.Issuer, Subject: c.Name, Account: c.Account, Audience: k.opt.Service, ID: rand.Text(),
		IssuedAt: now, NotBefore: now, ExpiresAt: expires.Unix(), Access: c.Access, Refused: c.Refused, Patterns: c.Patterns,
	}
	if p.Access == nil {
		p.Access = []Access{}
	}
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, &p)
	t.Header["kid"] = key.id
	raw, err := t.SignedString(key.private)
	switch {
	case err != nil:
		return "", time.Time{}, fmt.Errorf("signing a registry token: %w", err)
	case len(raw) > MaxBytes:
		return "", time.Time{}, ErrTooLarge
	}
	return raw, time.Unix(p.ExpiresAt, 0), nil
}

// Verify returns the claims of a token that is valid now. For any other token it returns an
// error that wraps ErrInvalid, also ErrExpired if that is the reason. Other errors come from
// the database, which Verify asks only about keys that it doesn't know, or from ctx.
func (k *Keys) Verify(ctx context.Context, raw string) (*Claims, error) {
	if len(raw) > MaxBytes {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, MaxBytes)
	}
	set, now := k.set.Load(), k.opt.Now()
	if c := k.cache.get(raw, set.generation, now); c != nil {
		return c, nil
	}
	c, key, generation, err := k.verify(ctx, raw)
	if err != nil {
		return nil, err
	}
	until := c.ExpiresAt.Add(k.opt.Skew)
	if key.validUntil.Before(until) {
		until = key.validUntil
	}
	k.cache.put(raw, entry{claims: c, until: until, generation: generation})
	return c, nil
}

// verify verifies a token without the cache. It also returns the key of the token, and the
// generation of the set of keys in which it was found.
func (k *Keys) verify(ctx context.Context, raw string) (*Claims, *key, uint64, error) {
	if !isCompact(raw) {
		return nil, nil, 0, fmt.Errorf("%w: it is no JSON Web Token", ErrInvalid)
	}
	var p payload
	var found *key
	var generation uint64
	var lookup error // of a lookup that couldn't be made
	_, err := k.parser.ParseWithClaims(raw, &p, func(t *jwt.Token) (any, error) {
		id, ok := t.Header["kid"].(string)
		if !ok || !isKeyID(id) {
			return nil, errUnknownKey
		}
		if found, generation, lookup = k.find(ctx, id); lookup != nil {
			return nil, lookup
		}
		if !strings.HasPrefix(raw, found.header) {
			return nil, errHeader
		}
		return found.public, nil
	})
	switch {
	case lookup != nil && !errors.Is(lookup, ErrInvalid):
		return nil, nil, 0, lookup
	case err != nil:
		return nil, nil, 0, reason(err)
	}
	// The signature is right. What follows guards against mistakes of an issuer, not of
	// clients.
	if err := checkMembers(strings.Split(raw, ".")[1]); err != nil {
		return nil, nil, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return p.claims(), found, generation, nil
}

var (
	errUnknownKey = fmt.Errorf("%w: it was signed with an unknown key", ErrInvalid)
	errHeader     = fmt.Errorf("%w: it has a header of another form", ErrInvalid)
)

// reason returns an error for clients. The texts of the errors of the parser aren't used, as
// they may repeat parts of the token.
func reason(err error) error {
	for _, own := range []error{errUnknownKey, errHeader} {
		if errors.Is(err, own) {
			return own
		}
	}
	text := "its claims are not those of a registry token"
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed), errors.Is(err, jwt.ErrTokenUnverifiable):
		text = "it is no JSON Web Token that can be verified"
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		text = "its signature is wrong"
	case errors.Is(err, jwt.ErrTokenInvalidIssuer), errors.Is(err, jwt.ErrTokenInvalidAudience), errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		text = "it is for another registry"
	case errors.Is(err, jwt.ErrTokenExpired):
		return ErrExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		text = "it is not valid yet; the clocks of the registry's hosts may differ"
	}
	return fmt.Errorf("%w: %s", ErrInvalid, text)
}

// isCompact says whether raw has only the characters of a JSON Web Token. (Decoders of base64
// skip line breaks.)
func isCompact(raw string) bool {
	for i := range len(raw) {
		switch c := raw[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return raw != ""
}

// checkMembers returns an error if an object in the claims has a member twice, or a member
// whose name isn't lower-case: decoders differ in what they make of these. segment is the
// second part of a token, which has been decoded once already.
func checkMembers(segment string) error {
	text, err := base64.RawURLEncoding.DecodeString(segment)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	type level struct {
		members map[string]bool // nil in an array
		isValue bool            // the next token is a member's value
	}
	var levels []level
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) && len(levels) == 0 {
			return nil
		} else if err != nil {
			return errors.New("its claims are not in JSON")
		}
		if t == json.Delim('}') || t == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if n := len(levels); n > 0 && levels[n-1].members != nil {
			l := &levels[n-1]
			if name, _ := t.(string); !l.isValue {
				if l.members[name] || !isWord(name) {
					return errors.New("its claims have a member twice, or one with an odd name")
				}
				l.members[name] = true
			}
			l.isValue = !l.isValue
		}
		switch t {
		case json.Delim('{'):
			levels = append(levels, level{members: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}
