package token

import (
	"errors"
	"slices"
	"time"
)

// Claims are what a token says. Claims that Verify has returned are shared: nobody may change
// them.
type Claims struct {
	// Account is the id of the account, and Name its name. An anonymous token has 0 and "".
	Account int64
	Name    string
	// Access is what the token allows. Actions are listed one by one: "*" is no wildcard here.
	Access []Access
	// Refused is what the client has asked for and was not granted. By it, the registry tells
	// a client that may not do something (403) from one that hasn't asked for it yet (401).
	Refused []Access
	// Patterns are the only repositories that lists may show, as in auth.Limits. Nil: no limit.
	Patterns []string
	// ID and IssuedAt are set by Verify; Issue ignores them.
	ID       string
	IssuedAt time.Time
	// ExpiresAt is when the token ends. Issue lets it end earlier if its lifetime is shorter, or
	// if ExpiresAt is zero.
	ExpiresAt time.Time
}

// Allows says whether the token allows the action in the repository.
func (c *Claims) Allows(repository, action string) bool {
	return has(c.Access, typeRepository, repository, action)
}

// Namespace returns the id of the namespace in which the token allows the action in the repository. See
// Access.Namespace.
func (c *Claims) Namespace(repository, action string) int64 {
	for i := range c.Access {
		if a := &c.Access[i]; has(c.Access[i:i+1], typeRepository, repository, action) {
			return a.Namespace
		}
	}
	return 0
}

// AllowsCatalog says whether the token allows to list the registry's repositories.
func (c *Claims) AllowsCatalog() bool {
	return has(c.Access, typeRegistry, catalogName, allActions)
}

// WasRefused says whether the client has asked for the action in the repository, or for all
// actions ("*"), when it got the token, and the token doesn't allow the action.
func (c *Claims) WasRefused(repository, action string) bool {
	return !c.Allows(repository, action) &&
		(has(c.Refused, typeRepository, repository, action) || has(c.Refused, typeRepository, repository, allActions))
}

// CatalogWasRefused says whether the client has asked for the list of the registry's repositories
// when it got the token, and the token doesn't allow that.
func (c *Claims) CatalogWasRefused() bool {
	return !c.AllowsCatalog() && has(c.Refused, typeRegistry, catalogName, allActions)
}

func has(list []Access, kind, name, action string) bool {
	for i := range list {
		if a := &list[i]; a.Name == name && a.Type == kind && slices.Contains(a.Actions, action) {
			return true
		}
	}
	return false
}

// check returns an error if a token with the claims must not be issued.
func (c *Claims) check() error {
	if (c.Account == 0) != (c.Name == "") {
		return errors.New("a registry token must have both an account's id and its name, or neither")
	}
	for _, a := range c.Access {
		if _, ok := a.Repository(); !ok && !a.Catalog() {
			return errors.New("a registry token can only grant access to repositories with valid names and to the catalog")
		}
	}
	return nil
}

// payload is the JSON form of the claims (distribution's "Token Authentication Specification"),
// with two more, uid and refused. Times are in seconds since 1970.
type payload struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Account   int64    `json:"uid,omitempty"`
	Audience  string   `json:"aud"`
	ID        string   `json:"jti"`
	IssuedAt  int64    `json:"iat"`
	NotBefore int64    `json:"nbf"`
	ExpiresAt int64    `json:"exp"`
	Access    []Access `json:"access"`
	Refused   []Access `json:"refused,omitempty"`
	Patterns  []string `json:"patterns,omitzero"` // an empty list isn't absent: it allows nothing
}

// maxSeconds bounds the times of a token (the year 6429), so that sums don't overflow.
const maxSeconds = 1 << 37

// check returns an error if claims that every token has are missing, or contradict each other.
func (p *payload) check() error {
	for _, t := range []int64{p.IssuedAt, p.NotBefore, p.ExpiresAt} {
		if t <= 0 || t > maxSeconds {
			return errors.New("a time is missing or out of range")
		}
	}
	switch {
	case p.ExpiresAt-p.IssuedAt > int64(MaxTTL/time.Second), p.ExpiresAt-p.NotBefore > int64(MaxTTL/time.Second):
		return errors.New("the lifetime is too long")
	case p.ID == "":
		return errors.New("the id is missing")
	case p.Account < 0 || (p.Account == 0) != (p.Subject == ""):
		return errors.New("the account's id and its name don't belong together")
	}
	return nil
}

func (p *payload) claims() *Claims {
	return &Claims{
		Account: p.Account, Name: p.Subject, Access: p.Access, Refused: p.Refused, Patterns: p.Patterns, ID: p.ID,
		IssuedAt: time.Unix(p.IssuedAt, 0), ExpiresAt: time.Unix(p.ExpiresAt, 0),
	}
}
