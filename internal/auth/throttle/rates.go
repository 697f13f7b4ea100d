package throttle

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// RatesOptions configure Rates.
type RatesOptions struct {
	// PerSecond is how many requests each key may make per second over a longer time. 0: no
	// limit.
	PerSecond float64
	// Burst is how many requests a key may make at once. Default: those of five seconds, at
	// least one.
	Burst int
	// Keys is for how many keys the requests are counted. If there are more, one is forgotten, and
	// may make a burst of requests again: of the keys that made one request, the least recent, and
	// only without such a key the least recent of all. Default 65,536; each takes about 250 bytes.
	Keys int
	// Of says what the keys are.
	Of KeyKind
	// DB is the database by which replicas share the limit. Nil: this Rates counts alone.
	DB      *db.DB
	Now     func() time.Time // default time.Now
	Log     *slog.Logger     // default slog.Default()
	Metrics *worker.Metrics  // nil: none
}

// KeyKind says what the keys of a Rates are. Rates with the same kind and database share their
// counts.
type KeyKind byte

// Kinds of keys.
const (
	OfAddresses KeyKind = 'd'
	OfAccounts  KeyKind = 'a'
)

// Rates limits the requests per second of each key: an account, or an address (see Address). Its
// methods may be called concurrently. A nil Rates limits nothing.
type Rates struct {
	opt  RatesOptions
	loop *worker.Loop // nil: not shared
	// share is shareByDatabase, unless a test replaces it.
	share func(ctx context.Context, admitted map[string]int) (levels map[string]float64, err error)

	mu   sync.Mutex
	keys map[string]*list.Element
	// once has the keys that made one request, and order those that made more, of *bucket, the most
	// recently used first. A flood of keys drives out one another, and not the keys in order.
	once, order list.List
	// pending counts the admitted requests that weren't exchanged yet. It has opt.Keys keys at
	// most; the requests of further keys aren't exchanged.
	pending map[string]int
	quiet   bool // the last exchange had no requests
	resting bool // the loop sleeps until a request wakes it
}

// bucket has the requests of a key that aren't forgotten yet, as far as this process knows.
type bucket struct {
	key   string
	again bool      // it is in Rates.order
	level float64   // requests at the time `at`
	at    time.Time // zero: there was no request
}

// NewRates makes a Rates. It starts no goroutine.
func NewRates(o RatesOptions) *Rates {
	o.Burst = cmp.Or(o.Burst, max(1, int(math.Ceil(5*o.PerSecond))))
	o.Keys = cmp.Or(o.Keys, 1<<16)
	o.Of = cmp.Or(o.Of, OfAddresses)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Rates{opt: o, keys: map[string]*list.Element{}, pending: map[string]int{}}
	if o.DB != nil && o.PerSecond > 0 {
		r.loop, r.share = r.newLoop(), r.shareByDatabase
	}
	return r
}

// Allow counts a request of the key and returns 0, or it returns the time after which the key
// may make its next request, and counts nothing. It asks the database nothing.
func (r *Rates) Allow(key string) (wait time.Duration) {
	if r == nil || r.opt.PerSecond <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.bucket(key)
	r.drain(b)
	// Rounding errors of the level are far below a millionth of a request.
	if missing := b.level + 1 - float64(r.opt.Burst); missing > 1e-6 {
		return max(time.Duration(missing/r.opt.PerSecond*float64(time.Second)), time.Millisecond)
	}
	b.level++
	r.admitted(key)
	return 0
}

// drain forgets the requests that the time since b.at has made up for. The caller holds mu.
func (r *Rates) drain(b *bucket) {
	now := r.opt.Now()
	b.level = max(0, b.level-r.opt.PerSecond*max(0, now.Sub(b.at).Seconds()))
	b.at = now
}

// bucket returns the key's bucket. The caller holds mu.
func (r *Rates) bucket(key string) *bucket {
	if e, ok := r.keys[key]; ok {
		b := e.Value.(*bucket)
		if b.again {
			r.order.MoveToFront(e)
			return b
		}
		r.once.Remove(e)
		b.again, r.keys[key] = true, r.order.PushFront(b)
		if r.order.Len() > r.opt.Keys-r.opt.Keys/4 { // a quarter is for newcomers
			old := r.order.Remove(r.order.Back()).(*bucket)
			old.again, r.keys[old.key] = false, r.once.PushFront(old)
		}
		return b
	}
	if len(r.keys) >= r.opt.Keys {
		from := &r.once
		if from.Len() == 0 {
			from = &r.order
		}
		delete(r.keys, from.Remove(from.Back()).(*bucket).key)
	}
	b := &bucket{key: key}
	r.keys[key] = r.once.PushFront(b)
	return b
}
