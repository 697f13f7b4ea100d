package throttle

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// A thousand guesses at the same time, through two pools, pass no more than as many after each
// other.
func TestConcurrentGuesses(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	var replicas []*Failures
	for range 2 {
		o := slow
		o.DB = dbtest.Open(t, dsn)
		replicas = append(replicas, NewFailures(o))
	}
	var passed atomic.Int32
	var wg sync.WaitGroup
	start := make(chan struct{})
	for n := range 1000 {
		wg.Go(func() {
			<-start
			a, _, err := replicas[n%2].Reserve(t.Context(), "ann", fmt.Sprintf("192.0.2.%d", n%200))
			if err != nil {
				t.Error(err)
			}
			if a != nil {
				passed.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	if n := passed.Load(); n != 10 {
		t.Errorf("%d of 1,000 guesses passed, want 10", n)
	}
}

// tally counts, for each subject, the log-ins that passed and weren't taken back.
type tally struct {
	mu   sync.Mutex
	used map[string]int
	most map[string]int
}

func (c *tally) add(n int, subjects [][]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range subjects {
		k := string(s)
		c.used[k] += n
		c.most[k] = max(c.most[k], c.used[k])
	}
}

// compare fails the test for each subject whose failures in the table differ from c.used.
func (c *tally) compare(t *testing.T, d *db.DB) {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), "SELECT subject, failures FROM loginfailures")
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var s []byte
		var failures float64
		must(t, rows.Scan(&s, &failures))
		want := c.used[string(s)]
		if failures > float64(want) || failures < float64(want)-0.01 {
			t.Errorf("%c %x: %v failures, want %d", s[0], s[1:], failures, want)
		}
		delete(c.used, string(s))
	}
	must(t, rows.Err())
	for s, n := range c.used {
		if n != 0 {
			t.Errorf("%c %x: no row, want %d failures", s[0], s[1:], n)
		}
	}
}

// TestConcurrentLogins lets two replicas check random log-ins, some with success, while expired
// rows are deleted. The table must then have exactly the failures, and at no time may more
// log-ins have passed than a bucket holds.
func TestConcurrentLogins(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	o := slow
	o.AccountBurst, o.AddressBurst = 5, 8
	var replicas []*Failures
	for range 2 {
		o.DB = dbtest.Open(t, dsn)
		replicas = append(replicas, NewFailures(o))
	}
	c := &tally{used: map[string]int{}, most: map[string]int{}}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker)))
			f := replicas[worker%2]
			for range 150 {
				account, address := fmt.Sprint("user", random.IntN(6)), fmt.Sprintf("192.0.2.%d", random.IntN(6))
				a, wait, err := f.Reserve(t.Context(), account, address)
				switch {
				case err != nil:
					t.Error(err)
					return
				case a == nil:
					if wait <= 0 {
						t.Error("refused without a wait")
					}
					f.clean(t.Context())
					continue
				}
				c.add(1, a.reserved)
				giveBack := a.Cancel
				switch random.IntN(10) {
				case 0:
					continue // failed
				case 1, 2, 3:
					giveBack = a.Succeeded
				}
				c.add(-1, a.reserved) // before the rows change, so that c.used is never greater
				if err := giveBack(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c.compare(t, o.DB)
	full := 0
	for s, n := range c.most {
		burst := 5
		if s[0] == 'd' {
			burst = 8
		}
		if n == burst {
			full++
		}
		if n > burst {
			t.Errorf("%c %x: %d log-ins passed, want at most %d", s[0], s[1:], n, burst)
		}
	}
	if full == 0 {
		t.Error("no bucket was ever full: the test doesn't test the limit")
	}
}

// Guesses that arrive while their rows expire and are deleted are held to the rate.
func TestRateWhileRowsAreDeleted(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	const every = 20 * time.Millisecond
	o := FailuresOptions{AccountBurst: 1, AccountEvery: every, AddressBurst: 1000, AddressEvery: time.Millisecond}
	var replicas []*Failures
	for range 2 {
		o.DB = dbtest.Open(t, dsn)
		replicas = append(replicas, NewFailures(o))
	}
	var passed atomic.Int32
	var wg sync.WaitGroup
	began := time.Now()
	for n := range 8 {
		f := replicas[n%2]
		wg.Go(func() {
			for range 200 {
				a, _, err := f.Reserve(t.Context(), "ann", "192.0.2.1")
				if err != nil {
					t.Error(err)
					return
				}
				if a != nil {
					passed.Add(1)
				}
				f.clean(t.Context())
			}
		})
	}
	wg.Wait()
	most := 1 + int32(time.Since(began)/every) + 1
	if n := passed.Load(); n > most || n <= 1 {
		t.Errorf("%d of 1,600 guesses passed in %v, want at most %d, and more than 1", n, time.Since(began), most)
	}
}
