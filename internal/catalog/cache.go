package catalog

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/purser-registry/purser/internal/oci"
)

// cache keeps what pulls ask for. It is right by generations: each repository
// path has two numbers, one for its tags and one for everything else. An entry
// remembers the number as it was before the query that filled it, and counts
// only while the number is the same; whoever changes a repository moves the
// numbers before and after the commit, whether it succeeded or not. So an entry
// that was read before a change is never used after it. Absence isn't cached.
//
// When a change ends without an answer (its connection broke, its time was over),
// the database may still commit it later, and won't tell this process, whose
// change it is. Until it can't any more, the path isn't cached.
//
// Paths share numbers by hash, which costs a needless miss at worst.
type cache struct {
	off  bool
	seed maphash.Seed
	tags [generations]atomic.Uint64
	rest [generations]atomic.Uint64
	// doubts are the times (as news) until which a path isn't cached, because
	// the outcome of a change to it isn't known; lastDoubt is the latest.
	doubts    [generations]atomic.Int64
	lastDoubt atomic.Int64
	// news is the time (monotonic, in nanoseconds since started) at which the
	// last heartbeat that came back had been sent; see Listen. 0: none.
	news    atomic.Int64
	started time.Time
	// clock is the same by the clock on the wall, which goes on when the machine
	// is suspended.
	clock atomic.Int64
	// late says that somebody has waited for news in vain, and none has come since.
	late atomic.Bool
	mu   sync.Mutex
	told chan struct{} // closed with the next news; nil: nobody waits

	used atomic.Int64  // when somebody last asked, as news, within a second
	wake chan struct{} // for the heart that rests: somebody asks again

	repositories *otter.Cache[pathKey, entry[repository]]
	tagged       *otter.Cache[tagKey, entry[oci.Digest]]
	manifests    *otter.Cache[contentKey, entry[*Manifest]]
	blobs        *otter.Cache[contentKey, entry[Blob]]
	promises     *otter.Cache[contentKey, entry[time.Time]]
	lists        *otter.Cache[listKey, entry[[]string]]
}

const (
	generations = 1 << 14
	// newsMaxAge is how old the newest heartbeat may be for the caches to be
	// used by a request, when it begins.
	newsMaxAge = time.Second
	// freshWait is how long a request waits for a heartbeat that is late.
	freshWait = 2 * time.Second
	// idleAfter is how long after the last request the heart rests.
	idleAfter = 5 * time.Second
	// doubtFor is longer than the database lets a transaction go on that nobody
	// waits for: several statements at their time limit.
	doubtFor = 5 * time.Minute
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
		repositories: otter.Must(&otter.Options[pathKey, entry[repository]]{MaximumSize: n}),
		tagged:       otter.Must(&otter.Options[tagKey, entry[oci.Digest]]{MaximumSize: n}),
		manifests: otter.Must(&otter.Options[contentKey, entry[*Manifest]]{
			MaximumWeight: uint64(o.ManifestCacheBytes),
			Weigher: func(k contentKey, e entry[*Manifest]) uint32 {
				return uint32(len(e.value.Payload) + len(k.path) + 512)
			},
		}),
		blobs:    otter.Must(&otter.Options[contentKey, entry[Blob]]{MaximumSize: n}),
		promises: otter.Must(&otter.Options[contentKey, entry[time.Time]]{MaximumSize: n}),
		lists: otter.Must(&otter.Options[listKey, entry[[]string]]{
			MaximumWeight: uint64(o.ManifestCacheBytes) / 4,
			Weigher: func(k listKey, e entry[[]string]) uint32 {
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

// content and tagList are the generations of path now; take one before the
// query whose result is to be kept.
func (c *cache) content(path string) uint64 { return c.rest[c.slot(path)].Load() }
func (c *cache) tagList(path string) uint64 { return c.tags[c.slot(path)].Load() }

// dropTags and dropAll move generations.
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

// doubt stops the use of the caches for path for a while.
func (c *cache) doubt(path string) {
	until := int64(time.Since(c.started) + doubtFor)
	c.doubts[c.slot(path)].Store(until)
	c.lastDoubt.Store(until)
}

// doubtEverything stops the use of the caches for all paths for a while.
func (c *cache) doubtEverything() {
	until := int64(time.Since(c.started) + doubtFor)
	for i := range generations {
		c.doubts[i].Store(until)
	}
	c.lastDoubt.Store(until)
}

// doubtful says whether a change to path may still come.
func (c *cache) doubtful(path string) bool {
	last := c.lastDoubt.Load()
	if last == 0 {
		return false
	}
	now := int64(time.Since(c.started))
	return now < last && now < c.doubts[c.slot(path)].Load()
}

// heard records that a heartbeat sent at t has come back.
func (c *cache) heard(t, wall time.Time) {
	c.clock.Store(wall.UnixNano())
	c.news.Store(int64(t.Sub(c.started)) + 1)
	c.late.Store(false)
	c.tell()
}

// deaf stops the use of the caches until the next heartbeat.
func (c *cache) deaf() {
	c.news.Store(0)
	c.tell()
}

// tell wakes those who wait for news.
func (c *cache) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told != nil {
		close(c.told)
		c.told = nil
	}
}

// next is closed when the next heartbeat comes back, or no more will.
func (c *cache) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = make(chan struct{})
	}
	return c.told
}

// fresh says whether the caches may be used for a request that begins now. Take it
// before generations. On a machine that has too much to do, heartbeats come late:
// a request waits for one that was sent late enough, so that many requests share the
// one statement that a heartbeat is. When none came in freshWait, nobody waits until
// one comes, and requests ask the database.
func (c *cache) fresh(ctx context.Context) bool {
	if c.off {
		return false
	}
	now := time.Now()
	c.use(now)
	if c.newsAt(now) {
		return true
	}
	if c.late.Load() || c.news.Load() == 0 {
		return false
	}
	timer := time.NewTimer(freshWait)
	defer timer.Stop()
	for {
		told := c.next()
		if c.newsAt(now) {
			return true
		}
		if c.news.Load() == 0 {
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

// newsAt says whether the newest heartbeat that came back had been sent at most
// newsMaxAge before now.
func (c *cache) newsAt(now time.Time) bool {
	news := c.news.Load()
	return news != 0 && now.Sub(c.started)-time.Duration(news) < newsMaxAge && now.UnixNano()-c.clock.Load() < int64(newsMaxAge)
}

// use notes that somebody asks for what is cached, and wakes the heart that rests.
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

// idle says whether nobody has asked for what is cached for a while.
func (c *cache) idle() bool {
	return time.Since(c.started)-time.Duration(c.used.Load()) > idleAfter
}

// key is what an entry is kept under; all of them belong to a path.
type key interface {
	comparable
	of() string
}

type pathKey string

func (k pathKey) of() string    { return string(k) }
func (k tagKey) of() string     { return k.path }
func (k listKey) of() string    { return k.path }
func (k contentKey) of() string { return k.path }

// get returns what is kept under k if it is of generation gen, for a request to which
// the caches are fresh.
func get[K key, V any](c *cache, fresh bool, m *otter.Cache[K, entry[V]], k K, gen uint64) (V, bool) {
	if fresh && !c.doubtful(k.of()) {
		if e, ok := m.GetIfPresent(k); ok && e.gen == gen {
			return e.value, true
		}
	}
	var none V
	return none, false
}

// keep stores v under k as of generation gen. Where gen has moved since, the
// entry is void from the start. Late news don't matter: they come before the entry is
// used.
func keep[K key, V any](c *cache, m *otter.Cache[K, entry[V]], k K, v V, gen uint64) {
	if !c.off && c.news.Load() != 0 && !c.doubtful(k.of()) {
		m.Set(k, entry[V]{value: v, gen: gen})
	}
}
