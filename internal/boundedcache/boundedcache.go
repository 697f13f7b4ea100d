// Package boundedcache keeps what was used lately, up to a number of entries or a weight. The
// cache itself is the library otter, whose policy evicts what is least likely to be used again.
//
// otter's cache is generic, and Go compiles a generic type again in every package that can see
// it: with one instance for each kind of entry, its 700 functions were most of what each build
// of the registry compiled. With fifteen instances in fields of catalog, auth and distribution,
// package servertest compiled 9,342 functions of otter and was 71 MB of object code; now it is
// 14 MB. So this package has one instance, behind an interface. Its keys are hashes with a
// random seed; an entry has the whole key, so that two keys with the same hash only displace
// each other. A look-up hashes its key once more and allocates nothing.
package boundedcache

import (
	"hash/maphash"

	"github.com/maypok86/otter/v2"
)

// Options configure a Cache. Set either Entries or Weight.
type Options[K comparable, V any] struct {
	// Entries is how many entries the cache holds at most.
	Entries int
	// Weight is how much all entries may weigh together, as Weigh says of each. An entry that
	// weighs more than that isn't kept.
	Weight uint64
	Weigh  func(key K, value V) uint32
}

// Cache is a cache of bounded size. Its methods may be called concurrently.
type Cache[K comparable, V any] struct {
	seed    maphash.Seed
	entries entries
}

// entry is what otter's cache stores a pointer to.
type entry[K comparable, V any] struct {
	key   K
	value V
}

// entries hides otter's type from the packages that import this one.
type entries interface {
	get(hash uint64) (any, bool)
	set(hash uint64, entry any)
	clear()
	length() int
}

// New makes an empty cache. It starts no goroutine.
func New[K comparable, V any](o Options[K, V]) *Cache[K, V] {
	var weigh func(hash uint64, e any) uint32
	if o.Weigh != nil {
		weigh = func(_ uint64, e any) uint32 {
			own := e.(*entry[K, V]) //nolint:errcheck // Set stores no other type
			return o.Weigh(own.key, own.value)
		}
	}
	return &Cache[K, V]{seed: maphash.MakeSeed(), entries: newEntries(o.Entries, o.Weight, weigh)}
}

//go:noinline // or otter's type would be seen where this is inlined
func newEntries(size int, weight uint64, weigh func(hash uint64, e any) uint32) entries {
	return &otterCache{otter.Must(&otter.Options[uint64, any]{MaximumSize: size, MaximumWeight: weight, Weigher: weigh})}
}

// Get returns the value that was stored under the key, if the cache still has it.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	found, _ := c.entries.get(maphash.Comparable(c.seed, key))
	e, ok := found.(*entry[K, V])
	if !ok || e.key != key {
		return value, false
	}
	return e.value, true
}

// Set stores a value under a key, in place of the one that was there.
func (c *Cache[K, V]) Set(key K, value V) {
	c.entries.set(maphash.Comparable(c.seed, key), &entry[K, V]{key, value})
}

// Len returns how many entries there are, after the evictions that are due: these happen a little
// later than the writes that make them necessary.
func (c *Cache[K, V]) Len() int { return c.entries.length() }

// Clear removes all entries.
func (c *Cache[K, V]) Clear() { c.entries.clear() }

// otterCache is the only instance of otter's cache.
type otterCache struct{ cache *otter.Cache[uint64, any] }

func (c *otterCache) get(hash uint64) (any, bool) { return c.cache.GetIfPresent(hash) }
func (c *otterCache) set(hash uint64, e any)      { c.cache.Set(hash, e) }
func (c *otterCache) clear()                      { c.cache.InvalidateAll() }

func (c *otterCache) length() int {
	c.cache.CleanUp()
	return c.cache.EstimatedSize()
}
