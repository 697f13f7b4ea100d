// Package boundedcache keeps what was used lately, up to a number of entries or a weight. The cache
// itself is the library otter, whose policy evicts what is least likely to be used again.
//
// otter's cache is generic, and Go compiles a generic type again in every package that can see
// it: with one instance for each kind of entry, its 700 functions were most of what each build
// of the registry compiled. So this package has one instance, of keys and values of any type,
// behind an interface. The price is one small allocation for each key that is looked up.
package boundedcache

import "github.com/maypok86/otter/v2"

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
type Cache[K comparable, V any] struct{ entries entries }

// entries hides otter's type from the packages that import this one.
type entries interface {
	get(key any) (any, bool)
	set(key, value any)
	clear()
}

// New makes an empty cache. It starts no goroutine.
func New[K comparable, V any](o Options[K, V]) *Cache[K, V] {
	var weigh func(key, value any) uint32
	if o.Weigh != nil {
		weigh = func(key, value any) uint32 { return o.Weigh(key.(K), value.(V)) }
	}
	return &Cache[K, V]{newEntries(o.Entries, o.Weight, weigh)}
}

//go:noinline // or otter's type would be seen where this is inlined
func newEntries(size int, weight uint64, weigh func(key, value any) uint32) entries {
	return &otterCache{otter.Must(&otter.Options[any, any]{MaximumSize: size, MaximumWeight: weight, Weigher: weigh})}
}

// Get returns the value that was stored under the key, if the cache still has it.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	v, ok := c.entries.get(key)
	value, _ = v.(V) // Set stores only values of this type; nothing has no type
	return value, ok
}

// Set stores a value under a key, in place of the one that was there.
func (c *Cache[K, V]) Set(key K, value V) { c.entries.set(key, value) }

// Clear removes all entries.
func (c *Cache[K, V]) Clear() { c.entries.clear() }

// otterCache is the only instance of otter's cache.
type otterCache struct{ cache *otter.Cache[any, any] }

func (c *otterCache) get(key any) (any, bool) { return c.cache.GetIfPresent(key) }
func (c *otterCache) set(key, value any)      { c.cache.Set(key, value) }
func (c *otterCache) clear()                  { c.cache.InvalidateAll() }
