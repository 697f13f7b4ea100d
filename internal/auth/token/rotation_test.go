package token

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestRotationBreaksNoToken runs replicas with clocks up to 30 s apart for some hours of
// simulated time, in which they read the keys at their interval, rotate them, and sometimes
// can't read them for a while. Each token is accepted by every replica until it expires.
func TestRotationBreaksNoToken(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	seed := time.Now().UnixNano()
	t.Logf("the seed is %d", seed)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	type replica struct {
		*Keys
		shift time.Duration
		next  time.Time // of its reads
	}
	var replicas []*replica
	for i := range 3 {
		shift := time.Duration(i-1) * 15 * time.Second
		k := newKeys(t, d, func(o *Options) { o.Now, o.Rotate = c.shifted(shift), 20*time.Minute })
		k.interval = 0 // the simulated time is much faster
		replicas = append(replicas, &replica{k, shift, c.now()})
	}
	type live struct {
		raw     string
		expires time.Time // by a right clock
	}
	var tokens []live
	verified, ended := 0, 0
	for range testscale.Pick(250, 3000) {
		k := replicas[r.IntN(len(replicas))]
		switch n := r.IntN(20); {
		case n == 0:
			must(t, k.RotateNow(t.Context()))
		case n == 1: // the replica can't reach the database for a minute
			k.next = c.now().Add(time.Minute)
		case n < 10:
			raw, expires, err := k.Issue(t.Context(), example())
			must(t, err)
			tokens = append(tokens, live{raw, expires.Add(-k.shift)})
		default:
			c.advance(rand.N(25 * time.Second))
			for _, k := range replicas {
				if !c.now().Before(k.next) {
					maintain(t, k.Keys)
					k.next = c.now().Add(30 * time.Second)
				}
			}
		}
		kept := tokens[:0]
		for _, token := range tokens {
			left := token.expires.Sub(c.now())
			_, err := replicas[r.IntN(len(replicas))].Verify(t.Context(), token.raw)
			switch {
			case left > 0 && err != nil:
				t.Fatalf("%v before its end: %v", left, err)
			case left < -2*time.Minute && !errors.Is(err, ErrInvalid):
				t.Fatalf("%v after its end: %v", -left, err)
			case left < -2*time.Minute:
				ended++
				continue
			}
			verified++
			kept = append(kept, token)
		}
		tokens = kept
	}
	if verified < 100 || ended < 1 {
		t.Errorf("%d tokens were verified and %d ended", verified, ended)
	}
}

// TestRotationUnderLoad issues and verifies on two instances while both rotate the keys all
// the time.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	var both [2]*Keys
	for i := range both {
		both[i] = newKeys(t, d, func(o *Options) { o.Lead, o.Refresh = 40*time.Millisecond, 10*time.Millisecond })
	}
	maintain(t, both[0])
	const rotations = 20
	stop := make(chan struct{})
	var rotating, working sync.WaitGroup
	for i, k := range both {
		// Reads, as the loop makes them.
		working.Go(func() {
			for running(stop) {
				if _, err := k.batch(t.Context()); err != nil {
					t.Errorf("reading: %v", err)
					return
				}
			}
		})
		rotating.Go(func() {
			for range rotations {
				if err := k.RotateNow(t.Context()); err != nil {
					t.Errorf("rotating: %v", err)
					return
				}
				<-time.After(rand.N(20 * time.Millisecond))
			}
		})
		for range 2 {
			working.Go(func() {
				var tokens []string
				for running(stop) {
					raw, _, err := k.Issue(t.Context(), example())
					if err != nil {
						t.Errorf("issuing: %v", err)
						return
					}
					tokens = append(tokens, raw)
					for _, v := range []*Keys{both[1-i], k} {
						for _, raw := range []string{raw, tokens[rand.IntN(len(tokens))]} {
							if _, err := v.Verify(t.Context(), raw); err != nil {
								t.Errorf("verifying: %v", err)
								return
							}
						}
					}
				}
			})
		}
	}
	rotating.Wait()
	close(stop)
	working.Wait()
	if n := countKeys(t, d); n != 2*rotations+1 {
		t.Errorf("%d keys, want %d", n, 2*rotations+1)
	}
}

func running(stop chan struct{}) bool {
	select {
	case <-stop:
		return false
	default:
		return true
	}
}

// TestRun checks that Run creates the first key, replaces a due one without any request, and
// ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	k := newKeys(t, d, func(o *Options) { o.Now, o.Refresh = c.now, time.Millisecond })
	stop := start(t, k.Run)
	eventually(t, "a first key", func() bool { return countKeys(t, d) == 1 && len(k.set.Load().list) == 1 })
	first := k.set.Load().list[0].id
	c.advance(30 * 24 * time.Hour)
	eventually(t, "a second key", func() bool { return len(k.set.Load().list) == 2 })
	c.advance(31 * 24 * time.Hour)
	eventually(t, "a third key, and the first deleted", func() bool { return len(k.set.Load().list) == 2 && k.set.Load().list[0].id != first })
	stop()
}

func BenchmarkVerify(b *testing.B) {
	k := newKeys(b, dbtest.New(b), nil)
	raw := issue(b, k, example())
	b.Run("cached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := k.Verify(b.Context(), raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("uncached", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, _, err := k.verify(b.Context(), raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	c, err := k.Verify(b.Context(), raw)
	must(b, err)
	b.Run("allows", func(b *testing.B) {
		for b.Loop() {
			if !c.Allows("acme/app", "push") {
				b.Fatal("it doesn't")
			}
		}
	})
}

func BenchmarkIssue(b *testing.B) {
	k := newKeys(b, dbtest.New(b), nil)
	b.ReportAllocs()
	for b.Loop() {
		issue(b, k, example())
	}
}

// TestCachedVerifyAllocates bounds what a request with a known token costs.
func TestCachedVerifyAllocates(t *testing.T) { // not parallel, as it counts allocations
	k := newKeys(t, dbtest.New(t), nil)
	raw := issue(t, k, example())
	for range 10 {
		if _, err := k.Verify(t.Context(), raw); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { k.Verify(t.Context(), raw) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
