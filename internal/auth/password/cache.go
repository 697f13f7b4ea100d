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

	"github.com/purser-registry/purser/internal/boundedcache"
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
	// until maps the key of a Login to the time at which it expires. The library could expire entries by
	// itself, but for that its goroutine would wake the process every second.
	until *boundedcache.Cache[checkKey, proved]

	mu      sync.Mutex
	running map[checkKey]*runningCheck
	// guesses is how many checks without a cached result run now for a name and an address, and
	// guessed the time until which one of them that failed counts. See Do.
	guesses map[place]int
	guessed *boundedcache.Cache[place, time.Time]
}

// Login is what somebody sends to log in, and what it is checked against.
type Login struct {
	Name, Password string
	// Address is the client's address.
	Address string
	// Hash is the stored hash. If a directory checks passwords, it is what identifies the
	// account there.
	Hash string
	// Until is when a token ends that was sent in place of a password. A result isn't used
	// after that time. Zero: no such time.
	Until time.Time
}

// Proof is the result of a check.
type Proof struct {
	OK bool // the password is right
	// State is a digest that says which of the account's passwords, one after the other, this is.
	// It is nil if the password is wrong.
	State []byte
	// At is when the check began. It is set by the Cache.
	At time.Time
	// Until is when what is made by this log-in ends at the latest. Zero: nothing is known about
	// that.
	Until time.Time
	// Account is the id of the account whose password it is, 0 if that isn't known. The Cache leaves
	// it as it is.
	Account int64
}

// proved is a cached result, which is used until a time.
type proved struct {
	proof Proof
	until time.Time
}

// checkKey identifies a Login. It is an HMAC with a random key.
type checkKey [sha256.Size]byte

// place is where log-ins of a name come from.
type place struct{ name, address string }

// runningCheck is a check that other callers may wait for. Its results are set before done is
// closed.
type runningCheck struct {
	done      chan struct{}
	proof     Proof
	err       error
	abandoned bool // the context of the caller that ran it has ended before there was a result
}

// NewCache makes a cache with a random key. It starts no goroutine.
func NewCache(o CacheOptions) *Cache {
	c := &Cache{
		ttl:     cmp.Or(o.TTL, time.Minute),
		until:   boundedcache.New(boundedcache.Options[checkKey, proved]{Entries: cmp.Or(o.Size, 10_000)}),
		guessed: boundedcache.New(boundedcache.Options[place, time.Time]{Entries: cmp.Or(o.Size, 10_000)}),
		running: map[checkKey]*runningCheck{},
		guesses: map[place]int{},
	}
	_, _ = rand.Read(c.secret[:]) // never fails
	return c
}

// key returns the key of a log-in. The lengths are a part of the hashed text, so different
// log-ins have different keys.
func (c *Cache) key(l Login) (k checkKey) {
	mac := hmac.New(sha256.New, c.secret[:])
	for _, s := range []string{l.Name, l.Password, l.Hash, l.Address} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(s)))
		mac.Write(length[:])
		mac.Write([]byte(s))
	}
	mac.Sum(k[:0])
	return k
}

// has returns the result of a check if it is cached, and nobody guesses the password of its name
// from its address.
func (c *Cache) has(k checkKey, from place) (Proof, bool) {
	now := time.Now()
	found, ok := c.until.Get(k)
	if !ok || !now.Before(found.until) {
		return Proof{}, false
	}
	// In this order: a guess that ends between the two looks is among the guessed by then.
	c.mu.Lock()
	guesses := c.guesses[from]
	c.mu.Unlock()
	until, guessed := c.guessed.Get(from)
	return found.proof, guesses == 0 && !(guessed && now.Before(until))
}

// put caches a check for the TTL, but not beyond `last` unless that is zero.
func (c *Cache) put(k checkKey, p Proof, last time.Time) {
	until := time.Now().Add(c.ttl)
	if !last.IsZero() && last.Before(until) {
		until = last
	}
	if c.ttl > 0 {
		c.until.Set(k, proved{p, until})
	}
}

// Do returns true if the cache has the check. Otherwise it calls `check`, and caches its result
// if that is true. Callers with the same check at the same time share one call of `check` and
// its result: a hundred jobs that begin with one robot's password cost one hash, and count as
// one log-in. Equal guesses that share a result tell no more than one guess. If the context of
// the caller that runs `check` ends, and `check` therefore fails, one of the others runs it
// again.
//
// The limit on failed log-ins doesn't count what the cache answers. So that a guess can't be
// answered by it, Do doesn't use cached results of another address, nor any for a name and an
// address from where another password is being checked, or was wrong or refused within the TTL.
func (c *Cache) Do(ctx context.Context, what Login, check func(ctx context.Context) (bool, error)) (bool, error) {
	p, err := c.Prove(ctx, what, func(ctx context.Context) (Proof, error) {
		ok, err := check(ctx)
		return Proof{OK: ok}, err
	})
	return p.OK, err
}

// Prove is Do for checks that say more than whether the password is right.
func (c *Cache) Prove(ctx context.Context, what Login, check func(ctx context.Context) (Proof, error)) (Proof, error) {
	k, from := c.key(what), place{what.Name, what.Address}
	for {
		if p, ok := c.has(k, from); ok {
			return p, nil
		}
		c.mu.Lock()
		r, other := c.running[k]
		if !other {
			r = &runningCheck{done: make(chan struct{}), err: errPanicked}
			c.running[k] = r
			c.guesses[from]++
		}
		c.mu.Unlock()
		if !other {
			return c.lead(ctx, k, from, r, what.Until, check)
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return Proof{}, ctx.Err()
		}
		if !r.abandoned {
			return r.proof, r.err
		}
	}
}

// ErrRefused is the error of a check that was refused because of earlier wrong passwords.
var ErrRefused = errors.New("too many log-ins have failed")

// errPanicked is what callers get that waited for a check whose function has panicked.
var errPanicked = errors.New("the check of the password has failed; try again")

// lead runs a check that others may wait for.
func (c *Cache) lead(ctx context.Context, k checkKey, from place, r *runningCheck, last time.Time, check func(ctx context.Context) (Proof, error)) (Proof, error) {
	defer func() {
		if wrong := !r.proof.OK && (r.err == nil || errors.Is(r.err, ErrRefused)); wrong && c.ttl > 0 {
			c.guessed.Set(from, time.Now().Add(c.ttl))
		}
		c.mu.Lock()
		delete(c.running, k)
		if c.guesses[from]--; c.guesses[from] == 0 {
			delete(c.guesses, from)
		}
		c.mu.Unlock()
		close(r.done)
	}()
	began := time.Now()
	p, err := check(ctx)
	if p.At = began; !p.OK || err != nil {
		p = Proof{}
	}
	r.proof, r.err, r.abandoned = p, err, err != nil && ctx.Err() != nil
	if p.OK {
		c.put(k, p, last)
	}
	return p, r.err
}
