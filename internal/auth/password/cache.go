package password

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
)

// CacheOptions configure a Cache.
type CacheOptions struct {
	// TTL is how long a successful check is cached. Default 1 min; negative: not at all.
	TTL time.Duration
	// Size is the largest number of checks in the cache. Default 10,000.
	Size int
}

// Cache has the checks of passwords that succeeded lately. Its methods may be called
// concurrently.
type Cache struct {
	ttl    time.Duration
	secret [sha256.Size]byte
	// until maps a check to the time at which it expires. The library could expire entries by
	// itself, but for that its goroutine would wake the process every second.
	until *otter.Cache[checkKey, time.Time]

	mu      sync.Mutex
	running map[checkKey]*runningCheck
}

// checkKey identifies a check: name, password and hash. It is an HMAC with a random key.
type checkKey [sha256.Size]byte

// runningCheck is a check that other callers may wait for. Its results are set before done is
// closed.
type runningCheck struct {
	done      chan struct{}
	ok        bool
	err       error
	abandoned bool // the context of the caller that ran it has ended before there was a result
}

// NewCache makes a cache with a random key. It starts no goroutine.
func NewCache(o CacheOptions) *Cache {
	c := &Cache{
		ttl:     cmp.Or(o.TTL, time.Minute),
		until:   otter.Must(&otter.Options[checkKey, time.Time]{MaximumSize: cmp.Or(o.Size, 10_000)}),
		running: map[checkKey]*runningCheck{},
	}
	_, _ = rand.Read(c.secret[:]) // never fails
	return c
}

// key returns the key of a check. The lengths are a part of the text, so different checks have
// different texts.
func (c *Cache) key(name, password, hash string) (k checkKey) {
	mac := hmac.New(sha256.New, c.secret[:])
	for _, s := range []string{name, password, hash} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(s)))
		mac.Write(length[:])
		mac.Write([]byte(s))
	}
	mac.Sum(k[:0])
	return k
}

// Get says whether this password was checked successfully, with this name and this stored hash,
// within the TTL. False says nothing about the password. If a directory checks the passwords,
// the caller passes in place of the hash what identifies the account there.
func (c *Cache) Get(name, password, hash string) bool {
	return c.has(c.key(name, password, hash))
}

func (c *Cache) has(k checkKey) bool {
	until, ok := c.until.GetIfPresent(k)
	return ok && time.Now().Before(until)
}

// Put caches a check that has succeeded.
func (c *Cache) Put(name, password, hash string) { c.put(c.key(name, password, hash), time.Time{}) }

// put caches a check for the TTL, but not beyond `last` unless that is zero.
func (c *Cache) put(k checkKey, last time.Time) {
	until := time.Now().Add(c.ttl)
	if !last.IsZero() && last.Before(until) {
		until = last
	}
	if c.ttl > 0 {
		c.until.Set(k, until)
	}
}

// Do returns true if the cache has the check. Otherwise it calls `check`, and caches its result
// if that is true. Callers with the same name, password and hash at the same time share one
// call of `check` and its result: a hundred jobs that begin with one robot's password cost one
// hash, and count as one log-in. Equal guesses that share a result tell no more than one guess.
// If the context of the caller that runs `check` ends, and `check` therefore fails, one of the
// others runs it again.
func (c *Cache) Do(ctx context.Context, name, password, hash string, check func(ctx context.Context) (bool, error)) (bool, error) {
	return c.DoUntil(ctx, name, password, hash, time.Time{}, check)
}

// DoUntil is Do for a token that ends at `last` and is sent in place of a password. A result
// isn't used after that time. A zero `last` is no time.
func (c *Cache) DoUntil(ctx context.Context, name, password, hash string, last time.Time, check func(ctx context.Context) (bool, error)) (bool, error) {
	k := c.key(name, password, hash)
	for !c.has(k) {
		c.mu.Lock()
		r, other := c.running[k]
		if !other {
			r = &runningCheck{done: make(chan struct{}), err: errPanicked}
			c.running[k] = r
		}
		c.mu.Unlock()
		if !other {
			return c.lead(ctx, k, r, last, check)
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if !r.abandoned {
			return r.ok, r.err
		}
	}
	return true, nil
}

// errPanicked is what callers get that waited for a check whose function has panicked.
var errPanicked = errors.New("the check of the password has failed; try again")

// lead runs a check that others may wait for.
func (c *Cache) lead(ctx context.Context, k checkKey, r *runningCheck, last time.Time, check func(ctx context.Context) (bool, error)) (bool, error) {
	defer func() {
		c.mu.Lock()
		delete(c.running, k)
		c.mu.Unlock()
		close(r.done)
	}()
	ok, err := check(ctx)
	r.ok, r.err, r.abandoned = ok && err == nil, err, err != nil && ctx.Err() != nil
	if r.ok {
		c.put(k, last)
	}
	return r.ok, r.err
}
