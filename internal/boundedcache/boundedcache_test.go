package boundedcache_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/boundedcache"
)

type key struct {
	path string
	n    int
}

func TestGetReturnsWhatWasSet(t *testing.T) {
	t.Parallel()
	c := boundedcache.New(boundedcache.Options[key, []string]{Entries: 100})
	if v, ok := c.Get(key{"a", 1}); ok || v != nil {
		t.Errorf("an empty cache has %v", v)
	}
	c.Set(key{"a", 1}, []string{"x"})
	c.Set(key{"a", 2}, nil)
	c.Set(key{"a", 1}, []string{"y"})
	if v, ok := c.Get(key{"a", 1}); !ok || len(v) != 1 || v[0] != "y" {
		t.Errorf("got %v, %v", v, ok)
	}
	if v, ok := c.Get(key{"a", 2}); !ok || v != nil {
		t.Errorf("got %v, %v for a value that is nil", v, ok)
	}
	c.Clear()
	if v, ok := c.Get(key{"a", 1}); ok {
		t.Errorf("a cleared cache has %v", v)
	}
}

// The cache keeps to its limit while goroutines fill it, and returns no key's value for another.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*boundedcache.Cache[int, string]{
		"entries": boundedcache.New(boundedcache.Options[int, string]{Entries: 50}),
		"weight":  boundedcache.New(boundedcache.Options[int, string]{Weight: 50 * 4, Weigh: func(_ int, v string) uint32 { return uint32(len(v)) }}),
	} {
		const goroutines, keys = 4, 2000
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := range keys {
					k := i*goroutines + g
					c.Set(k, fmt.Sprintf("%04d", k))
					if v, ok := c.Get(k); ok && v != fmt.Sprintf("%04d", k) {
						t.Errorf("%s: key %d has %s", name, k, v)
					}
				}
			})
		}
		wg.Wait()
		if n := c.Len(); n == 0 || n > 50 {
			t.Errorf("%s: %d entries are left, want at most 50", name, n)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	c := boundedcache.New(boundedcache.Options[key, [4]string]{Entries: 10_000})
	for i := range 10_000 {
		c.Set(key{"acme/app", i}, [4]string{})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Get(key{"acme/app", i % 10_000})
	}
}
