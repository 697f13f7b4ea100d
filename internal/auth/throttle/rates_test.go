package throttle

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(RatesOptions{PerSecond: 2, Burst: 3})
		burst := func(key string, want int) {
			t.Helper()
			for n := range want {
				if wait := r.Allow(key); wait != 0 {
					t.Fatalf("request %d of %s has to wait %v", n, key, wait)
				}
			}
			for range 10 { // refused requests don't count
				if wait := r.Allow(key); wait < 490*time.Millisecond || wait > 510*time.Millisecond {
					t.Fatalf("%s has to wait %v after %d requests, want 500 ms", key, wait, want)
				}
			}
		}
		burst("ann", 3)
		burst("bob", 3)
		time.Sleep(510 * time.Millisecond)
		if wait := r.Allow("ann"); wait != 0 {
			t.Errorf("the wait is %v after half a second", wait)
		}
		time.Sleep(time.Hour)
		burst("ann", 3)
	})
}

func TestRatesWithoutLimit(t *testing.T) {
	t.Parallel()
	var none *Rates
	for _, r := range []*Rates{none, NewRates(RatesOptions{})} {
		for range 10_000 {
			if wait := r.Allow("ann"); wait != 0 {
				t.Fatalf("without a limit the wait is %v", wait)
			}
		}
	}
	for perSecond, want := range map[float64]int{0.01: 1, 1: 5, 20: 100} {
		if got := NewRates(RatesOptions{PerSecond: perSecond}).opt.Burst; got != want {
			t.Errorf("the burst of %v per second is %d, want %d", perSecond, got, want)
		}
	}
}

func TestRatesForgetTheLeastRecentKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(RatesOptions{PerSecond: 0.001, Burst: 1, Keys: 100})
		r.Allow("ann")
		for n := range 1000 {
			r.Allow(fmt.Sprint("key", n))
			if r.Allow("ann") == 0 {
				t.Fatal("a key in use was forgotten")
			}
		}
		if n := r.order.Len() + r.once.Len(); len(r.keys) != 100 || n != 100 {
			t.Errorf("%d and %d keys, want 100", len(r.keys), n)
		}
		if r.Allow("key0") != 0 {
			t.Error("the least recent key wasn't forgotten")
		}
	})
}

// TestRatesOutlastAFlood: keys that have come before stay known, and limited, while very many others make
// a request each. If more keys than there are places come again and again, the least recent is forgotten.
func TestRatesOutlastAFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(RatesOptions{PerSecond: 0.001, Burst: 2, Keys: 100})
		for n := range 50 {
			r.Allow(fmt.Sprint("ann", n))
			r.Allow(fmt.Sprint("ann", n))
		}
		for n := range 10_000 {
			r.Allow(fmt.Sprint("flood", n))
		}
		for n := range 50 {
			if r.Allow(fmt.Sprint("ann", n)) == 0 {
				t.Errorf("ann%d was forgotten", n)
			}
		}
		for n := range 300 {
			r.Allow(fmt.Sprint("bob", n))
			r.Allow(fmt.Sprint("bob", n))
		}
		if n := r.order.Len() + r.once.Len(); len(r.keys) != 100 || n != 100 {
			t.Errorf("%d and %d keys, want 100", len(r.keys), n)
		}
		if r.Allow("bob299") == 0 || r.Allow("ann0") != 0 {
			t.Error("the most recent key was forgotten, or the least recent one wasn't")
		}
	})
}

func TestRatesConcurrently(t *testing.T) {
	t.Parallel()
	r := NewRates(RatesOptions{PerSecond: 0.0001, Burst: 50, Keys: 10})
	var allowed atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for n := range 200 {
				if r.Allow("ann") == 0 {
					allowed.Add(1)
				}
				r.Allow(fmt.Sprint("key", n%9))
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != 50 {
		t.Errorf("%d requests were allowed, want 50", n)
	}
}
