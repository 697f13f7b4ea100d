package token

import (
	"hash/maphash"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/boundedcache"
)

// cache keeps the claims of verified tokens. No timer removes entries: get compares their times
// with the clock, and the least useful entries make room for new ones.
//
// An entry's key is a hash of the token with a random seed, which isn't a cryptographic one. So
// get compares the whole token with the entry's, and two tokens with the same hash only displace
// each other. The time of this comparison tells nothing about an entry's token: a guess is
// compared only if its hash is the same, and who doesn't know the seed can't find such a guess.
type cache struct {
	seed    maphash.Seed
	entries *boundedcache.Cache[uint64, entry]
}

type entry struct {
	raw        string // the token
	claims     *Claims
	until      time.Time // when the token or its key expires, with the leeway
	generation uint64    // of the keySet that verified the token
}

func newCache(size int64) *cache {
	return &cache{seed: maphash.MakeSeed(), entries: boundedcache.New(boundedcache.Options[uint64, entry]{
		Weight: uint64(size),                                                                     //nolint:gosec // an option in bytes
		Weigh:  func(_ uint64, e entry) uint32 { return uint32(len(e.raw)) + e.claims.weight() }, //nolint:gosec // at most MaxBytes
	})}
}

// get returns nil if there is no usable entry.
func (c *cache) get(raw string, generation uint64, now time.Time) *Claims {
	e, ok := c.entries.Get(maphash.String(c.seed, raw))
	if !ok || e.generation != generation || !now.Before(e.until) || e.raw != raw {
		return nil
	}
	return e.claims
}

// put stores a verified token. It copies `raw`, which may be part of a request's header.
func (c *cache) put(raw string, e entry) {
	e.raw = strings.Clone(raw)
	c.entries.Set(maphash.String(c.seed, raw), e)
}

// weight returns about how many bytes an entry with the claims takes.
func (c *Claims) weight() uint32 {
	n := 512 + len(c.Name) + len(c.ID)
	for _, list := range [][]Access{c.Access, c.Refused} {
		for _, a := range list {
			n += 96 + len(a.Type) + len(a.Name)
			for _, action := range a.Actions {
				n += 32 + len(action)
			}
		}
	}
	return uint32(n) //nolint:gosec // a token has at most MaxBytes
}
