package identity

import (
	"context"
	"sync"

	"github.com/go-jose/go-jose/v4"
)

// maxUsers is how many namespaces are remembered that use an issuer.
const maxUsers = 256

// issuers keeps the keys of issuers. Somebody who names many issuers must not push out those of
// others. So a namespace has a share of them: a new one beyond that takes the place of the one
// that the namespace used least recently. If all places are taken, the issuer makes room whose
// keys were never fetched; else that of the namespaces that use most; else the one that was unused
// longest. An issuer that several namespaces use counts for each of them, and stays while one of
// them keeps it.
type issuers struct {
	max, share int
	make       func(*cachedIssuer)

	mu   sync.Mutex
	kept map[string]*cachedIssuer
	uses int64 // counts uses of issuers
}

type cachedIssuer struct {
	issuer string
	keys   keySet
	users  map[string]int64 // when namespaces last used it; not empty
}

// keysOf returns the keys of an issuer, which may not have been fetched yet.
func (s *issuers) keysOf(ctx context.Context, issuer string) *keySet {
	namespace := namespaceOf(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses++
	c := s.kept[issuer]
	if c == nil || c.users[namespace] == 0 {
		if namespace != "" && s.count(namespace) >= s.share {
			s.drop(s.leastRecent(namespace), namespace)
		}
	}
	if c == nil {
		if len(s.kept) >= s.max {
			delete(s.kept, s.crowded())
		}
		c = &cachedIssuer{issuer: issuer, users: map[string]int64{}}
		s.make(c)
		s.kept[issuer] = c
	}
	c.users[namespace] = s.uses
	if len(c.users) > maxUsers {
		delete(c.users, oldest(c.users))
	}
	return &c.keys
}

// count returns how many issuers a namespace uses.
func (s *issuers) count(namespace string) (n int) {
	for _, c := range s.kept {
		if c.users[namespace] > 0 {
			n++
		}
	}
	return n
}

// leastRecent returns the issuer that a namespace has used least recently.
func (s *issuers) leastRecent(namespace string) (c *cachedIssuer) {
	for _, other := range s.kept {
		if at := other.users[namespace]; at > 0 && (c == nil || at < c.users[namespace]) {
			c = other
		}
	}
	return c
}

// drop takes an issuer from a namespace.
func (s *issuers) drop(c *cachedIssuer, namespace string) {
	if delete(c.users, namespace); len(c.users) == 0 {
		delete(s.kept, c.issuer)
	}
}

// crowded returns the name of the issuer that makes room.
func (s *issuers) crowded() (name string) {
	counts := map[string]int{}
	for _, c := range s.kept {
		for namespace := range c.users {
			counts[namespace]++
		}
	}
	var worst struct {
		known bool
		crowd int // of the user with the fewest issuers
		last  int64
	}
	for issuer, c := range s.kept {
		this := worst
		this.known, this.crowd, this.last = !c.keys.current().fetched.IsZero(), 0, 0
		for namespace, at := range c.users {
			this.last = max(this.last, at)
			if n := counts[namespace]; this.crowd == 0 || n < this.crowd {
				this.crowd = n
			}
		}
		switch {
		case name == "",
			!this.known && worst.known,
			this.known == worst.known && this.crowd > worst.crowd,
			this.known == worst.known && this.crowd == worst.crowd && this.last < worst.last:
			name, worst = issuer, this
		}
	}
	return name
}

func oldest(users map[string]int64) (name string) {
	first := true
	for namespace, at := range users {
		if first || at < users[name] {
			name, first = namespace, false
		}
	}
	return name
}

// keepIssuers makes the cache of a Verifier.
func (v *Verifier) keepIssuers() issuers {
	return issuers{max: v.o.MaxIssuers, share: max(1, v.o.MaxIssuers/16), kept: map[string]*cachedIssuer{}, make: func(c *cachedIssuer) {
		c.keys.limit, c.keys.now = v.o.Timeout, v.o.Now
		c.keys.fetch = func(ctx context.Context) ([]jose.JSONWebKey, error) {
			return v.fetch(ctx, c.issuer, !c.keys.current().fetched.IsZero())
		}
	}}
}
