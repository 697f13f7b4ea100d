package token

import (
	"crypto/rand"
	"crypto/sha256"
	"time"

	"github.com/maypok86/otter/v2"
)

// cache keeps the claims of verified tokens. No timer removes entries: get compares their times
// with the clock, and the least useful entries make room for new ones.
type cache struct {
	secret  [sha256.Size]byte
	entries *otter.Cache[[sha256.Size]byte, entry]
}

type entry struct {
	claims     *Claims
	until      time.Time // when the token or its key expires, with the leeway
	generation uint64    // of the keySet that verified the token
}

func newCache(size int64) *cache {
	c := &cache{entries: otter.Must(&otter.Options[[sha256.Size]byte, entry]{
		MaximumWeight: uint64(size), //nolint:gosec // an option in bytes
		Weigher:       func(_ [sha256.Size]byte, e entry) uint32 { return e.claims.weight() },
	})}
	rand.Read(c.secret[:]) //nolint:errcheck // it never fails
	return c
}

// sum returns the keyed hash of a token. Hashes never leave the process, so putting the secret
// before the token is as good as an HMAC, in half the time.
func (c *cache) sum(raw string) [sha256.Size]byte {
	var buffer [2048]byte // on the stack; longer tokens are rare
	text := append(buffer[:0], c.secret[:]...)
	return sha256.Sum256(append(text, raw...))
}

// get returns nil if there is no usable entry.
func (c *cache) get(sum [sha256.Size]byte, generation uint64, now time.Time) *Claims {
	e, ok := c.entries.GetIfPresent(sum)
	if !ok || e.generation != generation || !now.Before(e.until) {
		return nil
	}
	return e.claims
}

func (c *cache) put(sum [sha256.Size]byte, e entry) { c.entries.Set(sum, e) }

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
