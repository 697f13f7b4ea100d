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

// ann is a log-in.
var ann = Login{Name: "ann", Password: "secret", Hash: "hash", Address: "192.0.2.1"}

// succeed and fail are checks.
func succeed(context.Context) (bool, error) { return true, nil }
func fail(context.Context) (bool, error)    { return false, nil }

// cached says whether the cache answers for a log-in. If it doesn't, the password counts as one
// that couldn't be checked.
func (c *Cache) cached(l Login) bool {
	ok, _ := c.Do(context.Background(), l, func(context.Context) (bool, error) { return false, errPanicked })
	return ok
}

// put makes the cache answer for a log-in.
func put(t *testing.T, c *Cache, l Login) {
	t.Helper()
	if ok, err := c.Do(t.Context(), l, succeed); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestCache(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{})
	put(t, c, ann)
	for _, tt := range []struct {
		name, password, hash, address string
		want                          bool
	}{
		{"ann", "secret", "hash", ann.Address, true},
		{"ann", "secret", "hash", "192.0.2.2", false},
		{"ann", "secret", "hash2", ann.Address, false},
		{"ann", "Secret", "hash", ann.Address, false},
		{"bob", "secret", "hash", ann.Address, false},
		{"annsecret", "", "hash", ann.Address, false},
		{"an", "nsecret", "hash", ann.Address, false},
		{"ann", "secrethash", "", ann.Address, false},
		{"", "", "", ann.Address, false},
	} {
		if got := c.cached(Login{Name: tt.name, Password: tt.password, Hash: tt.hash, Address: tt.address}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	if NewCache(CacheOptions{}).key(ann) == c.key(ann) {
		t.Error("two caches have the same key")
	}
	off := NewCache(CacheOptions{TTL: -1})
	put(t, off, ann)
	if off.cached(ann) {
		t.Error("a cache that is off has an entry")
	}
}

// TestUntil: the check of a token isn't used after the token's end, although the TTL is longer.
func TestUntil(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{}) // outside of the bubble, because of the library's goroutines
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		end := time.Now().Add(10 * time.Second)
		do := func() {
			ok, err := c.Do(t.Context(), Login{Name: "robot", Password: "token", Hash: "rules", Until: end}, func(context.Context) (bool, error) {
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
		put(t, c, ann)
		time.Sleep(59 * time.Second)
		if !c.cached(ann) {
			t.Error("the entry is gone after 59 s")
		}
		time.Sleep(time.Second)
		if c.cached(ann) {
			t.Error("the entry is there after a minute")
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{Size: 100})
	for n := range 10_000 {
		put(t, c, Login{Name: fmt.Sprint("user", n)})
		_, _ = c.Do(t.Context(), Login{Name: fmt.Sprint("guessed", n)}, fail)
	}
	if n, m := c.until.Len(), c.guessed.Len(); n > 100 || m > 100 {
		t.Errorf("the cache has %d and %d entries, want at most 100 of each", n, m)
	}
	if n := len(c.guesses) + len(c.running); n > 0 {
		t.Errorf("%d checks are left", n)
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
	}{{false, away, 1}, {true, away, 2}, {true, nil, 3}, {false, nil, 3}, {false, away, 3}} {
		ok, err := c.Do(t.Context(), ann, func(context.Context) (bool, error) {
			calls++
			return tt.ok, tt.err
		})
		want := n >= 2
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
					ok, err := c.Do(t.Context(), Login{Name: "ann", Password: password, Hash: "hash"}, func(context.Context) (bool, error) {
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
			_, err := c.Do(first, ann, func(ctx context.Context) (bool, error) {
				<-ctx.Done()
				return false, fmt.Errorf("checking: %w", ctx.Err())
			})
			firstErr <- err
		}()
		synctest.Wait()
		go func() {
			_, err := c.Do(impatient, ann, nil)
			impatientErr <- err
		}()
		go func() {
			ok, err := c.Do(t.Context(), ann, succeed)
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
		_, _ = c.Do(t.Context(), ann, func(context.Context) (bool, error) { panic("test") })
	}()
	ok, err := c.Do(t.Context(), ann, succeed)
	if !ok || err != nil {
		t.Errorf("after a panic: %v, %v", ok, err)
	}
}

// TestGuessesGetNoCachedAnswer: ann's password is cached. While somebody guesses it at ann's
// address, and for the TTL after a wrong or refused guess, each log-in there must be checked, the
// right one too: else it would pass the limit on failed log-ins. Elsewhere the cache answers.
func TestGuessesGetNoCachedAnswer(t *testing.T) {
	t.Parallel()
	c := NewCache(CacheOptions{})
	home, bob := ann, ann
	home.Address, bob.Name = "192.0.2.7", "bob"
	guess := ann
	guess.Password = "guess"
	busy := fmt.Errorf("busy: %w", ErrRefused)
	synctest.Test(t, func(t *testing.T) {
		for _, outcome := range []error{nil, busy, errors.New("the directory is away")} {
			for _, l := range []Login{ann, home, bob} {
				put(t, c, l)
			}
			gate, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				_, _ = c.Do(t.Context(), guess, func(context.Context) (bool, error) { <-gate; return false, outcome })
			}()
			synctest.Wait()
			if c.cached(ann) {
				t.Error("the cache answers while a guess is being checked")
			}
			if !c.cached(home) || !c.cached(bob) {
				t.Error("a guess elsewhere makes the cache useless")
			}
			close(gate)
			<-done
			if wrong := outcome == nil || outcome == busy; c.cached(ann) == wrong { //nolint:errorlint // one of the two above
				t.Errorf("after a guess with the result %v, the cache answers: %v", outcome, !wrong)
			}
			time.Sleep(time.Minute)
			put(t, c, ann)
			if !c.cached(ann) {
				t.Error("a minute after the guess, the cache doesn't answer")
			}
		}
	})
}
