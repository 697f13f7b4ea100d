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

	"github.com/go-jose/go-jose/v4"
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
	raw, err := signToken(key, &p)
	switch {
	case err != nil:
		return "", time.Time{}, fmt.Errorf("signing a registry token: %w", err)
	case len(raw) > MaxBytes:
		return "", time.Time{}, ErrTooLarge
	}
	return raw, time.Unix(p.ExpiresAt, 0), nil
}

// signToken returns the token with the claims, in the compact form.
func signToken(key *key, p *payload) (string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: key.private, KeyID: key.id}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(text)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
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
	signed, err := jose.ParseSignedCompact(raw, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, nil, 0, errNoToken
	}
	// The texts of the parser's errors aren't used, as they may repeat parts of the token.
	id := signed.Signatures[0].Header.KeyID
	if !isKeyID(id) {
		return nil, nil, 0, errUnknownKey
	}
	found, generation, err := k.find(ctx, id)
	switch {
	case errors.Is(err, ErrInvalid):
		return nil, nil, 0, errUnknownKey
	case err != nil:
		return nil, nil, 0, err
	case !strings.HasPrefix(raw, found.header):
		return nil, nil, 0, errHeader
	}
	text, err := signed.Verify(found.public)
	if err != nil {
		return nil, nil, 0, errSignature
	}
	var p payload
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, nil, 0, errNoToken
	}
	// The signature is right. What follows about members guards against mistakes of an issuer, not of
	// clients.
	if err := k.check(&p); err != nil {
		return nil, nil, 0, err
	}
	if err := checkMembers(text); err != nil {
		return nil, nil, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return p.claims(), found, generation, nil
}

var (
	errNoToken    = fmt.Errorf("%w: it is no JSON Web Token that can be verified", ErrInvalid)
	errUnknownKey = fmt.Errorf("%w: it was signed with an unknown key", ErrInvalid)
	errHeader     = fmt.Errorf("%w: it has a header of another form", ErrInvalid)
	errSignature  = fmt.Errorf("%w: its signature is wrong", ErrInvalid)
)

// check returns an error for clients if the claims aren't those of a token that is valid here and now.
func (k *Keys) check(p *payload) error {
	now, skew := k.opt.Now(), k.opt.Skew
	text := ""
	switch err := p.check(); {
	case err != nil:
		text = "its claims are not those of a registry token"
	case p.Issuer != k.opt.Issuer || p.Audience != k.opt.Service:
		text = "it is for another registry"
	case !now.Before(time.Unix(p.ExpiresAt, 0).Add(skew)):
		return ErrExpired
	case now.Before(time.Unix(max(p.NotBefore, p.IssuedAt), 0).Add(-skew)):
		text = "it is not valid yet; the clocks of the registry's hosts may differ"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalid, text)
}

// isCompact says whether raw has only the characters of a JSON Web Token, and each of its parts is written
// in the one way in which an encoder writes it. (Decoders of base64 skip line breaks, and ignore the last
// character's bits that no byte needs. go-jose verifies the signature of what it has decoded.)
func isCompact(raw string) bool {
	for i := range len(raw) {
		switch c := raw[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	for part := range strings.SplitSeq(raw, ".") {
		if _, err := base64.RawURLEncoding.Strict().DecodeString(part); err != nil {
			return false
		}
	}
	return raw != ""
}

// checkMembers returns an error if an object in the claims has a member twice, or a member
// whose name isn't lower-case: decoders differ in what they make of these. text is the claims, which
// have been decoded once already.
func checkMembers(text []byte) error {
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
