package password

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCache(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{})
	c.Put("ann", "secret", "hash")
	for _, tt := range []struct {
		name, password, hash string
		want                 bool
	}{
		{"ann", "secret", "hash", true},
		{"ann", "secret", "hash2", false},
		{"ann", "Secret", "hash", false},
		{"bob", "secret", "hash", false},
		{"annsecret", "", "hash", false},
		{"an", "nsecret", "hash", false},
		{"ann", "secrethash", "", false},
		{"", "", "", false},
	} {
		if got := c.Get(tt.name, tt.password, tt.hash); got != tt.want {
			t.Errorf("Get(%q, %q, %q) = %v", tt.name, tt.password, tt.hash, got)
		}
	}
	if NewCache(CacheOptions{}).key("ann", "secret", "hash") == c.key("ann", "secret", "hash") {
		t.Error("two caches have the same key")
	}
	off := NewCache(CacheOptions{TTL: -1})
	off.Put("ann", "secret", "hash")
	if off.Get("ann", "secret", "hash") {
		t.Error("a cache that is off has an entry")
	}
}

// TestDoUntil: the check of a token isn't used after the token's end, although the TTL is longer.
func TestDoUntil(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{}) // outside of the bubble, because of the library's goroutines
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		end := time.Now().Add(10 * time.Second)
		do := func() {
			ok, err := c.DoUntil(t.Context(), "robot", "token", "rules", end, func(context.Context) (bool, error) {
				checks++
				return true, nil
			})
			if !ok || err != nil {
				t.Errorf("%v, %v", ok, err)
			}
		}
		do()
		time.Sleep(9 * time.Second)
		if do(); checks != 1 {
			t.Errorf("%d checks before the end", checks)
		}
		time.Sleep(time.Second)
		if do(); checks != 2 {
			t.Errorf("%d checks at the end", checks)
		}
		if do(); checks != 3 {
			t.Errorf("%d checks after the end", checks)
		}
	})
}

func TestCacheExpires(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{}) // outside of the bubble, because of the library's goroutines
	synctest.Test(t, func(t *testing.T) {
		c.Put("ann", "secret", "hash")
		time.Sleep(59 * time.Second)
		if !c.Get("ann", "secret", "hash") {
			t.Error("the entry is gone after 59 s")
		}
		time.Sleep(time.Second)
		if c.Get("ann", "secret", "hash") {
			t.Error("the entry is there after a minute")
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{Size: 100})
	for n := range 10_000 {
		c.Put(fmt.Sprint("user", n), "secret", "hash")
	}
	c.until.CleanUp()
	if n := c.until.EstimatedSize(); n > 100 {
		t.Errorf("the cache has %d entries, want at most 100", n)
	}
}

func TestDoCachesSuccessOnly(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{})
	away := errors.New("away")
	calls := 0
	for n, tt := range []struct {
		ok    bool
		err   error
		calls int
	}{{false, nil, 1}, {false, away, 2}, {true, away, 3}, {true, nil, 4}, {false, nil, 4}, {false, away, 4}} {
		ok, err := c.Do(t.Context(), "ann", "secret", "hash", func(context.Context) (bool, error) {
			calls++
			return tt.ok, tt.err
		})
		want := n >= 3
		if ok != want || !want && !errors.Is(err, tt.err) || calls != tt.calls {
			t.Errorf("call %d: %v, %v after %d checks, want %v after %d", n, ok, err, calls, want, tt.calls)
		}
	}
}

// A hundred equal checks at the same time are one; a different one runs beside it.
func TestDoSharesEqualChecks(t *testing.T) {
	t.Parallel()
	for _, outcome := range []bool{true, false} {
		c := NewCache(CacheOptions{})
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			var calls atomic.Int32
			var wg sync.WaitGroup
			for n := range 101 {
				wg.Go(func() {
					password := "secret"
					if n == 100 {
						password = "other"
					}
					ok, err := c.Do(t.Context(), "ann", password, "hash", func(context.Context) (bool, error) {
						calls.Add(1)
						<-gate
						return outcome, nil
					})
					if ok != outcome || err != nil {
						t.Errorf("%v, %v, want %v", ok, err, outcome)
					}
				})
			}
			synctest.Wait()
			if n := calls.Load(); n != 2 {
				t.Errorf("%d checks run, want 2", n)
			}
			close(gate)
			wg.Wait()
			if len(c.running) != 0 {
				t.Errorf("%d checks are left", len(c.running))
			}
		})
	}
}

// A caller that gives up doesn't spoil the log-in of those who wait for its check.
func TestDoOutlivesItsFirstCaller(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{})
	synctest.Test(t, func(t *testing.T) {
		first, cancel := context.WithCancel(t.Context())
		impatient, cancelImpatient := context.WithCancel(t.Context())
		firstErr, impatientErr, second := make(chan error, 1), make(chan error, 1), make(chan bool, 1)
		go func() {
			_, err := c.Do(first, "ann", "secret", "hash", func(ctx context.Context) (bool, error) {
				<-ctx.Done()
				return false, fmt.Errorf("checking: %w", ctx.Err())
			})
			firstErr <- err
		}()
		synctest.Wait()
		go func() {
			_, err := c.Do(impatient, "ann", "secret", "hash", nil)
			impatientErr <- err
		}()
		go func() {
			ok, err := c.Do(t.Context(), "ann", "secret", "hash", func(context.Context) (bool, error) { return true, nil })
			second <- ok && err == nil
		}()
		synctest.Wait()
		cancelImpatient()
		if err := <-impatientErr; !errors.Is(err, context.Canceled) {
			t.Errorf("a waiter that gave up: %v", err)
		}
		cancel()
		if err := <-firstErr; !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller: %v", err)
		}
		if !<-second {
			t.Error("the second caller didn't log in")
		}
	})
}

func TestDoSurvivesAPanic(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{})
	func() {
		defer func() { _ = recover() }()
		_, _ = c.Do(t.Context(), "ann", "secret", "hash", func(context.Context) (bool, error) { panic("test") })
	}()
	ok, err := c.Do(t.Context(), "ann", "secret", "hash", func(context.Context) (bool, error) { return true, nil })
	if !ok || err != nil {
		t.Errorf("after a panic: %v, %v", ok, err)
	}
}
