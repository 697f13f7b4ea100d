package identity

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// exchangeError returns the error for a code that couldn't be exchanged. It repeats no answer of
// the provider but its error code and description.
func exchangeError(err error) error {
	var answer *oauth2.RetrieveError
	switch {
	case !errors.As(err, &answer):
		return unavailable("exchanging the code at the OpenID Connect provider", err)
	case answer.ErrorCode == "invalid_grant":
		return refused("the provider doesn't accept the code, which may be too old or used already; log in again")
	default:
		status := "no answer"
		if answer.Response != nil {
			status = answer.Response.Status
		}
		return unavailable("exchanging the code at the OpenID Connect provider",
			fmt.Errorf("it answered %s, error %s: %s", status, excerpt(answer.ErrorCode), excerpt(answer.ErrorDescription)))
	}
}

// person is what a provider says about a person who logged in.
type person struct {
	subject string
	id      map[string]any // the claims of the ID token
	info    map[string]any // the answer of the userinfo endpoint, nil if it wasn't needed
}

// verify checks the ID token (OpenID Connect Core 1.0, section 3.1.3.7), and asks the userinfo
// endpoint for claims that the ID token leaves out.
func (p *Provider) verify(ctx context.Context, d *discovered, token *oauth2.Token, nonce string) (person, error) {
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return person{}, unavailable("logging in at the OpenID Connect provider", errors.New("its answer has no ID token"))
	}
	idToken, err := p.verifyToken(ctx, d, raw)
	if errors.Is(err, ErrUnavailable) {
		return person{}, err
	}
	if err != nil {
		return person{}, refused("the provider's ID token isn't valid: %v", err)
	}
	claims, err := allClaims(idToken)
	if err != nil {
		return person{}, refused("the provider's ID token can't be read: %v", err)
	}
	authorized, hasAuthorized := text(claims["azp"])
	switch {
	case idToken.Subject == "":
		return person{}, refused("the provider's ID token has no sub")
	case idToken.IssuedAt.Unix() <= 0 || idToken.IssuedAt.After(p.o.Now().Add(leeway)):
		return person{}, refused("the provider's ID token has no iat, or it is in the future; compare the clocks of both servers")
	case subtle.ConstantTimeCompare([]byte(idToken.Nonce), []byte(nonce)) != 1 || nonce == "":
		return person{}, refused("the provider's ID token was issued for another log-in (its nonce differs); log in again")
	case claims["azp"] != nil && authorized != p.o.ClientID, !hasAuthorized && len(idToken.Audience) > 1:
		return person{}, refused("the provider's ID token was issued to another client (azp is %s)", excerpt(authorized))
	}
	if idToken.AccessTokenHash != "" {
		if err := idToken.VerifyAccessToken(token.AccessToken); err != nil {
			return person{}, refused("the provider's ID token belongs to another access token")
		}
	}
	who := person{subject: p.o.Issuer + " " + idToken.Subject, id: claims}
	if !d.userinfo || p.complete(claims) {
		return who, nil
	}
	info, err := d.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return person{}, unavailable("asking the OpenID Connect provider about the person", brief(err))
	}
	if info.Subject != idToken.Subject {
		return person{}, refused("the provider's userinfo endpoint answers about another person")
	}
	if who.info, err = allClaims(info); err != nil {
		return person{}, unavailable("asking the OpenID Connect provider about the person", err)
	}
	return who, nil
}

// verifyToken checks the ID token's signature, and its claims iss, aud, exp and nbf.
func (p *Provider) verifyToken(ctx context.Context, d *discovered, raw string) (*oidc.IDToken, error) {
	keys := &recordingKeys{keys: d.keys}
	var names []string
	for _, a := range algorithms {
		names = append(names, string(a))
	}
	token, err := oidc.NewVerifier(p.o.Issuer, keys, &oidc.Config{
		ClientID: p.o.ClientID, SupportedSigningAlgs: names,
		Now: func() time.Time { return p.o.Now().Add(-leeway) },
	}).Verify(ctx, raw)
	if errors.Is(keys.err, ErrUnavailable) {
		return nil, keys.err
	}
	return token, err
}

// recordingKeys keeps the error of a keySet, which oidc's verifier would flatten to text.
type recordingKeys struct {
	keys *keySet
	err  error
}

func (r *recordingKeys) VerifySignature(ctx context.Context, raw string) (payload []byte, err error) {
	payload, r.err = r.keys.VerifySignature(ctx, raw)
	return payload, r.err
}

// complete says whether the ID token has all claims that are needed.
func (p *Provider) complete(claims map[string]any) bool {
	for _, name := range []string{p.o.UsernameClaim, p.o.EmailClaim, p.o.GroupsClaim} {
		if _, ok := lookup(claims, name); !ok {
			return false
		}
	}
	return true
}

// allClaims returns the claims of an ID token or of an answer of the userinfo endpoint.
func allClaims(of interface{ Claims(any) error }) (map[string]any, error) {
	var raw json.RawMessage
	if err := of.Claims(&raw); err != nil {
		return nil, err
	}
	return decode(raw)
}
