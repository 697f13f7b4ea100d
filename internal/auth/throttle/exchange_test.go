package throttle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

// replicas are several Rates on one database, with a clock that the test moves.
type replicas struct {
	list   []*Rates
	db     *db.DB
	passed time.Duration
}

// newReplicas makes n Rates with the options o, which share their limit. The rate should be so
// low that the time that the test itself takes forgets no request.
func newReplicas(t *testing.T, n int, o RatesOptions) *replicas {
	t.Helper()
	s := &replicas{db: dbtest.New(t)}
	start := time.Now()
	o.DB, o.Now = s.db, func() time.Time { return start.Add(s.passed) }
	for range n {
		s.list = append(s.list, NewRates(o))
	}
	return s
}

// pass lets time pass, for the replicas and for the rows.
func (s *replicas) pass(t *testing.T, d time.Duration) {
	t.Helper()
	s.passed += d
	exec(t, s.db, "UPDATE requestrates SET empty_at = empty_at - $1::interval", d)
}

// use sends requests of ann to one replica until it refuses one, and returns how many it
// admitted.
func (s *replicas) use(i int) (n int) {
	for s.list[i].Allow("ann") == 0 {
		n++
	}
	return n
}

func (s *replicas) exchange(t *testing.T, list ...int) {
	t.Helper()
	for _, i := range list {
		must(t, s.list[i].Exchange(t.Context()))
	}
}

// A client has used up its burst at one replica. Another replica doesn't know that before its
// first exchange for this client. From then on both hold the client to one rate, and the client
// must make up for what it got too much.
func TestReplicasShareARate(t *testing.T) {
	t.Parallel()
	const perSecond = 0.001
	s := newReplicas(t, 2, RatesOptions{PerSecond: perSecond, Burst: 10})
	if n := s.use(0); n != 10 {
		t.Fatalf("the first replica admits %d requests, want 10", n)
	}
	s.exchange(t, 0)
	if s.list[1].Allow("ann") != 0 || s.list[1].Allow("bob") != 0 {
		t.Fatal("the second replica refuses a client's first request")
	}
	s.exchange(t, 1)
	if wait := s.list[1].Allow("ann"); wait < 1900*time.Second || wait > 2000*time.Second {
		t.Errorf("the second replica lets the client wait for %v after 11 requests, want 2,000 s", wait)
	}
	if s.list[1].Allow("bob") != 0 {
		t.Error("another client is refused")
	}
	s.pass(t, 2000*time.Second) // both replicas have one request of ann to admit
	if n := s.use(1); n != 1 {
		t.Errorf("the second replica admits %d requests, want 1", n)
	}
	s.exchange(t, 1)
	s.pass(t, 10_000*time.Second) // 10 requests are forgotten
	if n := s.use(0); n != 10 {
		t.Errorf("the first replica admits %d requests after a rest, want 10", n)
	}
	s.exchange(t, 0)
	s.list[1].Allow("ann")
	s.exchange(t, 1)
	if n := s.use(1); n != 0 {
		t.Errorf("the second replica admits %d more requests", n)
	}
}

// Clients send requests to replicas at random, and the replicas make exchanges at random. In no
// time may a client get more than the package's comment says, and with each exchange the rows
// must have exactly what was admitted.
func TestRatesOfReplicasAreBounded(t *testing.T) {
	t.Parallel()
	const perSecond, burst, n = 0.001, 20, 3
	const interval = 10_000 * time.Second // the requests of half a burst
	s := newReplicas(t, n, RatesOptions{PerSecond: perSecond, Burst: burst})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	last := make([]time.Duration, n)
	type point struct {
		at       time.Duration
		admitted int
	}
	admitted, history, most := 0, []point{{}}, 0.0
	for range 600 {
		i := random.IntN(n)
		switch random.IntN(4) {
		case 0:
			s.pass(t, time.Duration(random.Int64N(int64(interval/4))))
		case 1:
			s.exchange(t, i)
			last[i] = s.passed
		case 2:
			admitted += s.use(i)
		default:
			for range random.IntN(burst) {
				if s.list[i].Allow("ann") == 0 {
					admitted++
				}
			}
		}
		for i, at := range last { // no interval is longer than `interval`
			if s.passed-at > interval*3/4 {
				s.exchange(t, i)
				last[i] = s.passed
			}
		}
		now := point{s.passed, admitted}
		for _, then := range history {
			extra := float64(now.admitted-then.admitted) - (now.at-then.at).Seconds()*perSecond
			most = max(most, extra)
		}
		history = append(history, now)
	}
	bound := n * (burst + perSecond*interval.Seconds())
	if most > bound+0.1 {
		t.Errorf("a client got %.1f requests more than the rate allows, want at most %.1f", most, bound)
	}
	t.Logf("%d requests in %v, at most %.1f beyond the rate; the bound is %.1f", admitted, s.passed, most, bound)
	if most <= burst+1 {
		t.Error("the client got no more than from one replica: the test doesn't test the bound")
	}
}

// Clients send requests to two replicas at the same time, while both make exchanges. Afterwards
// the rows must have every admitted request, and no more.
func TestConcurrentExchanges(t *testing.T) {
	t.Parallel()
	const keys = 3000 // more than one statement takes
	dsn := dbtest.DSN(t)
	o := RatesOptions{PerSecond: 1e-9, Burst: 40}
	var list []*Rates
	for range 2 {
		o.DB = dbtest.Open(t, dsn)
		list = append(list, NewRates(o))
	}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := list[i%2]
			for n := range 4 * keys {
				if r.Allow(fmt.Sprint("key", (n*(i+1))%keys)) == 0 {
					admitted.Add(1)
				}
				if n%keys == 0 {
					if err := r.Exchange(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, r := range list {
		must(t, r.Exchange(t.Context()))
		if len(r.pending) != 0 {
			t.Errorf("%d keys wait for an exchange", len(r.pending))
		}
	}
	got := count(t, o.DB, "SELECT sum(extract(epoch FROM empty_at - now())) FROM requestrates") * o.PerSecond
	if want := float64(admitted.Load()); got < want-1 || got > want+1 {
		t.Errorf("the rows have %.1f requests, want %.0f", got, want)
	}
}

// Rows of clients that send no more requests are deleted.
func TestRowsOfRatesAreDeleted(t *testing.T) {
	t.Parallel()
	s := newReplicas(t, 2, RatesOptions{PerSecond: 0.001, Burst: 10})
	for n := range 500 {
		s.list[0].Allow(fmt.Sprint("key", n))
	}
	s.exchange(t, 0)
	s.pass(t, 2000*time.Second)
	for range 300 {
		s.list[1].Allow("ann")
		s.pass(t, 1000*time.Second)
		s.exchange(t, 1)
	}
	if n := count(t, s.db, "SELECT count(*) FROM requestrates"); n != 1 {
		t.Errorf("%v rows, want 1", n)
	}
}

// The database doesn't answer for a long time. Each replica must go on with its own limit. When
// the database answers again, requests of long ago must not be held against the client.
func TestRatesWithoutDatabase(t *testing.T) {
	t.Parallel()
	s := newReplicas(t, 2, RatesOptions{PerSecond: 0.001, Burst: 10, Keys: 100})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if n := s.use(0); n != 10 {
			t.Errorf("a replica admits %d requests without the database, want 10", n)
		}
		for n := range 200 {
			s.list[0].Allow(fmt.Sprint("key", n))
		}
		if s.list[0].Exchange(gone) == nil {
			t.Fatal("there was an exchange")
		}
		s.pass(t, 10_000*time.Second)
	}
	if n := len(s.list[0].pending); n > 100 {
		t.Errorf("the requests of %d keys wait, want at most 100", n)
	}
	s.list[0].pending["ann"] = 1000 // whatever waits, keep bounds it
	if s.list[0].Exchange(gone) == nil {
		t.Fatal("there was an exchange")
	}
	s.exchange(t, 0)
	s.pass(t, 10_000*time.Second)
	if n := s.use(0); n != 10 {
		t.Errorf("the client may send %d requests after the outage, want 10", n)
	}
}

// The loop exchanges a client's first request at once, further ones about once a second, and
// doesn't wake without requests. Failures are logged and counted, and the client's requests are
// admitted all the same.
func TestLoopOfExchanges(t *testing.T) {
	t.Parallel()
	reg, log := prometheus.NewRegistry(), new(bytes.Buffer)
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(RatesOptions{PerSecond: 1, Burst: 1000, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: worker.NewMetrics(reg)})
		var mu sync.Mutex
		var at []time.Duration
		var failure error
		// become sets what exchanges return from now on, and returns the times of those before.
		become := func(err error) (times []time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			times, at, failure = at, nil, err
			return times
		}
		start := time.Now()
		r.share = func(_ context.Context, admitted map[string]int) (map[string]float64, error) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(start))
			return map[string]float64{"ann": float64(admitted["ann"])}, failure
		}
		r.loop = r.newLoop()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		send := func() {
			t.Helper()
			for range 100 {
				if r.Allow("ann") != 0 {
					t.Error("a request is refused")
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
		time.Sleep(150 * time.Second)
		send()
		time.Sleep(time.Hour)
		times := become(errors.New("no answer"))
		if n := len(times); n < 6 || n > 7 || times[0] != 150*time.Second || times[n-1] > 160*time.Second {
			t.Errorf("exchanges at %v, want the first at 150 s, and one each second for 5 s", times)
		}
		send()
		if n := len(become(nil)); n < 2 || n > 4 {
			t.Errorf("%d failed exchanges in 5 s, want 2 to 4", n)
		}
		time.Sleep(15 * time.Second)
		r.mu.Lock()
		waiting := len(r.pending)
		r.mu.Unlock()
		if waiting > 0 {
			t.Error("requests wait although the database answers")
		}
		stop()
		must(t, <-done)
	})
	if n, err := testutil.GatherAndCount(reg, "purser_worker_batches_total"); err != nil || n != 2 {
		t.Errorf("%d series, of results ok and error, want 2: %v", n, err)
	}
	if n := strings.Count(log.String(), "no answer"); n < 2 || n > 4 {
		t.Errorf("the log has %d failures:\n%s", n, log)
	}
}
