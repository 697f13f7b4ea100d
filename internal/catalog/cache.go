package catalog

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/boundedcache"
	"github.com/purser-registry/purser/internal/oci"
)

// cache keeps the results of queries that pulls make. Numbers that are called generations keep
// it correct: each repository path has one generation for its tags and one for everything
// else. A cache entry stores the generation that its path had before the query, and is valid
// only while the path has the same generation. Every change of a repository raises the path's
// generations before and after the commit, whether the commit succeeds or not. So a result
// that was read before a change is never returned after the change. The cache stores only
// things that exist: an answer such as MANIFEST_UNKNOWN isn't cached.
//
// This process may not learn the outcome of its own change, if the connection breaks or the
// time limit passes. Then the database may still commit the change later, and it notifies only
// the other processes of this change. So nothing of the path is cached until the database
// can't commit the change any more (distrust).
//
// The generations are in an array, and a path's index in it is a hash of the path. If two
// paths share an index, a change of one path only causes needless cache misses for the other.
type cache struct {
	off  bool
	seed maphash.Seed
	tags [generations]atomic.Uint64
	rest [generations]atomic.Uint64
	// untrusted[slot(path)] is the time until which nothing of the path is cached, because the
	// outcome of a change of the path is unknown. lastDistrust is the latest of these times of
	// all paths. Each time is in nanoseconds since `started`.
	untrusted    [generations]atomic.Int64
	lastDistrust atomic.Int64
	// lastHeartbeat is when the latest heartbeat that came back was sent, in nanoseconds since
	// started by the monotonic clock; 0: no heartbeat has come back. See Listen.
	lastHeartbeat atomic.Int64
	started       time.Time
	// clock is the wall-clock time at which the heartbeat of lastHeartbeat was sent. Unlike
	// the monotonic clock, the wall clock goes on while the machine is suspended.
	clock atomic.Int64
	// late is set when a request has waited for a heartbeat for freshWait in vain, and cleared
	// when the next heartbeat comes back.
	late atomic.Bool
	mu   sync.Mutex
	told chan struct{} // closed when the next heartbeat comes back; nil: nobody waits

	used atomic.Int64  // when a request last used the cache, in the unit of lastHeartbeat, exact to a second
	wake chan struct{} // wakes the sender of heartbeats when requests come again

	repositories *boundedcache.Cache[pathKey, entry[repository]]
	tagged       *boundedcache.Cache[tagKey, entry[oci.Digest]]
	manifests    *boundedcache.Cache[contentKey, entry[*Manifest]]
	blobs        *boundedcache.Cache[contentKey, entry[Blob]]
	promises     *boundedcache.Cache[contentKey, entry[time.Time]]
	lists        *boundedcache.Cache[listKey, entry[[]string]]
}

const (
	generations = 1 << 14
	// heartbeatMaxAge is the maximum age of the newest heartbeat with which a request may use
	// the caches. The age is measured when the request begins.
	heartbeatMaxAge = time.Second
	// freshWait is how long a request waits for a heartbeat that is late.
	freshWait = 2 * time.Second
	// idleAfter is the time without requests after which this process sends no more
	// heartbeats.
	idleAfter = 5 * time.Second
	// distrustFor is how long a path isn't cached after a change with an unknown outcome. A
	// transaction whose client is gone can still run several statements, each up to its time
	// limit; distrustFor is longer than that.
	distrustFor = 5 * time.Minute
)

type entry[V any] struct {
	value V
	gen   uint64
}

type tagKey struct{ path, tag string }

type listKey struct {
	path, last string
	n          int
}

type contentKey struct {
	path   string
	digest oci.Digest
}

func newCache(o Options) *cache {
	n := o.CacheEntries
	return &cache{
		off:          o.CacheOff,
		seed:         maphash.MakeSeed(),
		started:      time.Now(),
		wake:         make(chan struct{}, 1),
		repositories: boundedcache.New(boundedcache.Options[pathKey, entry[repository]]{Entries: n}),
		tagged:       boundedcache.New(boundedcache.Options[tagKey, entry[oci.Digest]]{Entries: n}),
		manifests: boundedcache.New(boundedcache.Options[contentKey, entry[*Manifest]]{
			Weight: uint64(o.ManifestCacheBytes),
			Weigh: func(k contentKey, e entry[*Manifest]) uint32 {
				return uint32(len(e.value.Payload) + len(k.path) + 512)
			},
		}),
		blobs:    boundedcache.New(boundedcache.Options[contentKey, entry[Blob]]{Entries: n}),
		promises: boundedcache.New(boundedcache.Options[contentKey, entry[time.Time]]{Entries: n}),
		lists: boundedcache.New(boundedcache.Options[listKey, entry[[]string]]{
			Weight: uint64(o.ManifestCacheBytes) / 4,
			Weigh: func(k listKey, e entry[[]string]) uint32 {
				w := len(k.path) + 256
				for _, s := range e.value {
					w += len(s) + 16
				}
				return uint32(w)
			},
		}),
	}
}

func (c *cache) slot(path string) uint64 { return maphash.String(c.seed, path) % generations }

// content and tagList return the current generations of path: tagList returns the generation
// of its tags, content the generation of everything else. A caller reads the generation before
// the query whose result it will cache.
func (c *cache) content(path string) uint64 { return c.rest[c.slot(path)].Load() }
func (c *cache) tagList(path string) uint64 { return c.tags[c.slot(path)].Load() }

// everywhere returns the current generation of what holds in every repository: dropEverything raises it.
func (c *cache) everywhere() uint64 { return c.content("") }

// dropTags raises the generation of the path's tags, which invalidates the cache entries about
// these tags. dropAll raises both generations of the path, which invalidates all its entries.
func (c *cache) dropTags(path string) { c.tags[c.slot(path)].Add(1) }

func (c *cache) dropAll(path string) {
	c.tags[c.slot(path)].Add(1)
	c.rest[c.slot(path)].Add(1)
}

func (c *cache) dropEverything() {
	for i := range generations {
		c.tags[i].Add(1)
		c.rest[i].Add(1)
	}
}

// distrust disables the caches for path for distrustFor.
func (c *cache) distrust(path string) {
	until := int64(time.Since(c.started) + distrustFor)
	c.untrusted[c.slot(path)].Store(until)
	c.lastDistrust.Store(until)
}

// distrustEverything disables the caches for all paths for distrustFor.
func (c *cache) distrustEverything() {
	until := int64(time.Since(c.started) + distrustFor)
	for i := range generations {
		c.untrusted[i].Store(until)
	}
	c.lastDistrust.Store(until)
}

// distrusted says whether path must not be cached, because the database may still commit a
// change of path whose outcome is unknown.
func (c *cache) distrusted(path string) bool {
	last := c.lastDistrust.Load()
	if last == 0 {
		return false
	}
	now := int64(time.Since(c.started))
	return now < last && now < c.untrusted[c.slot(path)].Load()
}

// heard records that a heartbeat has come back. The heartbeat was sent at the time `t` of the
// monotonic clock, and `wall` of the wall clock. heard wakes the requests that wait for a
// heartbeat.
func (c *cache) heard(t, wall time.Time) {
	c.clock.Store(wall.UnixNano())
	c.lastHeartbeat.Store(int64(t.Sub(c.started)) + 1)
	c.late.Store(false)
	c.tell()
}

// disable disables the caches until the next heartbeat.
func (c *cache) disable() {
	c.lastHeartbeat.Store(0)
	c.tell()
}

// tell wakes the requests that wait for a heartbeat.
func (c *cache) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told != nil {
		close(c.told)
		c.told = nil
	}
}

// next returns a channel that is closed when the next heartbeat comes back, or when the
// connection on which heartbeats come back is lost.
func (c *cache) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = make(chan struct{})
	}
	return c.told
}

// fresh says whether a request that begins now may use the caches. It must be called before
// the request reads a generation. If the newest heartbeat is too old, as on an overloaded
// machine, fresh waits up to freshWait for the next heartbeat. One heartbeat serves all
// waiting requests, which loads the database less than a query of each request would. If no
// heartbeat comes back in time, fresh returns false. For further requests it then returns
// false at once, so that they query the database, until a heartbeat comes back.
func (c *cache) fresh(ctx context.Context) bool {
	if c.off {
		return false
	}
	now := time.Now()
	c.use(now)
	if c.heardBy(now) {
		return true
	}
	if c.late.Load() || c.lastHeartbeat.Load() == 0 {
		return false
	}
	timer := time.NewTimer(freshWait)
	defer timer.Stop()
	for {
		told := c.next()
		if c.heardBy(now) {
			return true
		}
		if c.lastHeartbeat.Load() == 0 {
			return false
		}
		select {
		case <-told:
		case <-ctx.Done():
			return false
		case <-timer.C:
			c.late.Store(true)
			return false
		}
	}
}

// heardBy says whether the newest heartbeat that came back was sent less than heartbeatMaxAge
// before the time `now`, by the monotonic clock and by the wall clock.
func (c *cache) heardBy(now time.Time) bool {
	last := c.lastHeartbeat.Load()
	return last != 0 && now.Sub(c.started)-time.Duration(last) < heartbeatMaxAge && now.UnixNano()-c.clock.Load() < int64(heartbeatMaxAge)
}

// use records that a request uses the cache at the time `now`. If the goroutine that sends
// heartbeats (beat) has paused because there were no requests, use wakes it.
func (c *cache) use(now time.Time) {
	const exact = time.Second
	at := now.Sub(c.started)
	last := time.Duration(c.used.Load())
	if last > 0 && at-last < exact {
		return
	}
	c.used.Store(int64(at))
	if at-last > idleAfter-exact {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// idle says whether no request has used the cache for idleAfter.
func (c *cache) idle() bool {
	return time.Since(c.started)-time.Duration(c.used.Load()) > idleAfter
}

// key is the type of a cache entry's key. Its method `of` returns the path of the repository
// to which the entry belongs.
type key interface {
	comparable
	of() string
}

type pathKey string

func (k pathKey) of() string    { return string(k) }
func (k tagKey) of() string     { return k.path }
func (k listKey) of() string    { return k.path }
func (k contentKey) of() string { return k.path }

// get returns the value that `m` has under the key `k`, if it was stored with generation `gen`.
// `fresh` is the result of cache.fresh for this request; if it is false, get returns no value.
func get[K key, V any](c *cache, fresh bool, m *boundedcache.Cache[K, entry[V]], k K, gen uint64) (V, bool) {
	if fresh && !c.distrusted(k.of()) {
		if e, ok := m.Get(k); ok && e.gen == gen {
			return e.value, true
		}
	}
	var none V
	return none, false
}

// keep stores `v`, the result of a query, under the key `k` in `m`, with the generation `gen`,
// which the caller has read before the query. If the generation has changed since then, get
// never returns the entry. keep doesn't check the age of the newest heartbeat, because get
// returns an entry only to a request for which cache.fresh has checked this age.
func keep[K key, V any](c *cache, m *boundedcache.Cache[K, entry[V]], k K, v V, gen uint64) {
	if !c.off && c.lastHeartbeat.Load() != 0 && !c.distrusted(k.of()) {
		m.Set(k, entry[V]{value: v, gen: gen})
	}
}
