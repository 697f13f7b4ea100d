package throttle

import (
	"cmp"
	"container/list"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RatesOptions configure Rates.
type RatesOptions struct {
	// PerSecond is how many requests each key may make per second over a longer time. 0: no
	// limit.
	PerSecond float64
	// Burst is how many requests a key may make at once. Default: those of five seconds, at
	// least one.
	Burst int
	// Keys is for how many keys the requests are counted. If there are more, the key that was
	// used least recently is forgotten, and may make a burst of requests again. Default 65,536;
	// each takes about 250 bytes.
	Keys int
}

// Rates limits the requests per second of each key: an account, or an address (see Address). Its
// methods may be called concurrently. A nil Rates limits nothing.
type Rates struct {
	opt RatesOptions

	mu    sync.Mutex
	keys  map[string]*list.Element
	order list.List // of *keyRate, the most recently used first
}

type keyRate struct {
	key     string
	limiter *rate.Limiter
}

// NewRates makes a Rates. It starts no goroutine.
func NewRates(o RatesOptions) *Rates {
	o.Burst = cmp.Or(o.Burst, max(1, int(math.Ceil(5*o.PerSecond))))
	o.Keys = cmp.Or(o.Keys, 1<<16)
	return &Rates{opt: o, keys: map[string]*list.Element{}}
}

// Allow counts a request of the key and returns 0, or it returns the time after which the key
// may make its next request, and counts nothing.
func (r *Rates) Allow(key string) (wait time.Duration) {
	if r == nil || r.opt.PerSecond <= 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limiter(key)
	now := time.Now()
	if l.AllowN(now, 1) {
		return 0
	}
	missing := 1 - l.TokensAt(now)
	return max(time.Duration(missing/r.opt.PerSecond*float64(time.Second)), time.Millisecond)
}

// limiter returns the key's limiter. The caller holds mu.
func (r *Rates) limiter(key string) *rate.Limiter {
	if e, ok := r.keys[key]; ok {
		r.order.MoveToFront(e)
		return e.Value.(*keyRate).limiter
	}
	if len(r.keys) >= r.opt.Keys {
		last := r.order.Back()
		delete(r.keys, r.order.Remove(last).(*keyRate).key)
	}
	k := &keyRate{key, rate.NewLimiter(rate.Limit(r.opt.PerSecond), r.opt.Burst)}
	r.keys[key] = r.order.PushFront(k)
	return k.limiter
}
