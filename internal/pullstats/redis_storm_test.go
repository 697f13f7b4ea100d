package pullstats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/testscale"
)

// events returns how many pulls TestRedisStorm makes: the value of the environment variable
// PURSER_TEST_EVENTS or, if it isn't set, 12,000, or 200,000 with the tag all, which take seconds.
func events(t testing.TB) int {
	t.Helper()
	text := os.Getenv("PURSER_TEST_EVENTS")
	if text == "" {
		return testscale.Pick(12_000, 200_000)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("PURSER_TEST_EVENTS is %q, and should be a number of pulls", text)
	}
	return n
}

// dies runs fn and says whether a simulated crash (crashHere) ended it.
func dies(fn func() error) (died bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			if p != errCrash {
				panic(p)
			}
			died = true
		}
	}()
	return false, fn()
}

// at returns a function for the field flusher.crash, which the worker calls at each of
// its steps. The function calls fn the first time that the worker reaches the given step.
func at(step string, fn func()) func(string) {
	done := false
	return func(got string) {
		if got == step && !done {
			done = true
			fn()
		}
	}
}

func crashHere() { panic(errCrash) }

// recorded has Redis count the pulls in `list`, with the times that are set in their
// entries.
func recorded(t testing.TB, rec *Recorder, list ...audit.Entry) {
	t.Helper()
	kept, err := rec.queue.record(t.Context(), waiting(list))
	if err != nil || len(kept) > 0 {
		t.Fatalf("Redis didn't take %d pulls: %v", len(kept), err)
	}
}

func waiting(list []audit.Entry) (batch []*event) {
	for _, e := range list {
		batch = append(batch, &event{Entry: e, n: 1})
	}
	return batch
}

func unlogged(o *RecorderOptions) { o.Log = nil }

// drained fails the test if a counter in Redis has pulls that the statistics don't have, or
// if a counter isn't settled.
func (s *shop) drained(t testing.TB, clients ...*redis.Client) {
	t.Helper()
	for _, c := range clients {
		for _, key := range keysOf(t, c) {
			h, err := c.HGetAll(t.Context(), key).Result()
			must(t, err)
			var row struct{ count, born, seq int64 }
			must(t, s.stats.Pool.QueryRow(t.Context(), `
				SELECT COALESCE(max(counted), 0), COALESCE(max(born), 0), COALESCE(max(seq), 0) FROM redispullcounters
				WHERE id = encode(substring(sha256(convert_to($1, 'UTF8')) FOR 16), 'hex')::uuid`, key).Scan(&row.count, &row.born, &row.seq))
			if h["pull_count"] != fmt.Sprint(row.count) || h["born"] != fmt.Sprint(row.born) || h["seq"] != fmt.Sprint(row.seq) {
				t.Errorf("%s has something left: %v, counted %+v", key, h, row)
			}
			if ttl := c.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > time.Minute {
				t.Errorf("%s stays for %v, want at most a minute", key, ttl)
			}
		}
		sets, err := c.Keys(t.Context(), uncountedPrefix+"*").Result()
		must(t, err)
		for _, key := range sets {
			t.Errorf("%s is left: %v", key, c.SMembers(t.Context(), key).Val())
		}
	}
}

// without returns the statistics except those of one repository.
func (b books) without(repository int64) books {
	b = maps.Clone(b)
	for name := range b {
		if strings.Fields(name)[1] == fmt.Sprint(repository) {
			delete(b, name)
		}
	}
	return b
}

// tempest is the state of a test in which many pulls and flushes run at once.
type tempest struct {
	s     *shop
	redis *redispulls.Client
	clock atomic.Int64

	mu  sync.Mutex
	all []audit.Entry

	crashes [5]atomic.Int64
	expired atomic.Int64
	lives   atomic.Int64 // number of workers so far; each worker dies at another step than the worker before it
}

// stormSeed makes each run different. The test's log shows it.
var stormSeed = rand.Uint64()

var steps = []string{"begun", "read", "before commit", "after commit", "settled"}

// pulls has Redis count n pulls, by digest and by tags that move between manifests, in the
// course of the days `first` to `last`. Calls with different seeds pull different tags and, by
// digest, different manifests. So the days of each counter come in their order if those of the
// calls with the same seed do.
func (w *tempest) pulls(t *testing.T, seed uint64, n, first, last int) error {
	r := rand.New(rand.NewPCG(seed, stormSeed))
	rec := w.s.recorder(t, w.redis, unlogged)
	for all := n; n > 0; {
		list := make([]audit.Entry, 0, 500)
		day := noon.AddDate(0, 0, first+(last-first+1)*(all-n)/all)
		for range min(n, 1+r.IntN(500)) {
			tag, content := "", fmt.Sprint(seed, "-", r.IntN(6))
			if r.IntN(4) > 0 {
				tag, content = fmt.Sprint("v", seed, "-", r.IntN(6)), fmt.Sprint(r.IntN(6))
			}
			// No two pulls have the same time, and the times aren't in the order of the
			// calls.
			when := day.Add(time.Duration(r.IntN(3600))*time.Second + time.Duration(w.clock.Add(1))*time.Microsecond)
			list = append(list, w.s.pull(r.IntN(len(w.s.repositories)), tag, content, when))
		}
		n -= len(list)
		kept, err := rec.queue.record(t.Context(), waiting(list))
		if err != nil || len(kept) > 0 {
			return fmt.Errorf("Redis didn't take %d pulls: %w", len(kept), err)
		}
		w.mu.Lock()
		w.all = append(w.all, list...)
		w.mu.Unlock()
	}
	return nil
}

// flushes runs flush workers one after another. Each of them dies at one of the steps.
func (w *tempest) flushes(t *testing.T, ctx context.Context, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, stormSeed))
	for ctx.Err() == nil {
		f := w.s.flusher(t, w.redis, func(o *redispulls.FlushOptions) { o.Batch = 1 + r.IntN(40) })
		end, life := int(w.lives.Add(1))%len(steps), 1+r.IntN(4)
		f.crash = func(step string) {
			if step != steps[end] {
				return
			}
			if life--; life == 0 {
				w.crashes[end].Add(1)
				crashHere()
			}
		}
		for died := false; !died && ctx.Err() == nil; {
			var err error
			if died, err = dies(func() error { return f.Flush(context.WithoutCancel(ctx)) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// Four recorders and three flush workers, which die at any step, run at once. Meanwhile
// settled counters expire and are made again, and a repository is deleted. Each pull must
// count once.
func TestRedisStorm(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart=%v", apart), func(t *testing.T) {
			t.Parallel()
			server := startRedis(t)
			s := open(t, apart, 5)
			w := &tempest{s: s, redis: server.open(t, s.stats)}
			n := events(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var workers, recorders errgroup.Group
			for i := range 3 {
				workers.Go(func() error { return w.flushes(t, ctx, uint64(i)) })
			}
			gone := s.repositories[4]
			workers.Go(func() error {
				c := server.client(t)
				for deleted := false; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
					for _, key := range keysOf(t, c) { // as if a minute had passed, settled counters expire
						if err := expireScript.Run(context.WithoutCancel(ctx), c, []string{key}).Err(); err != nil {
							return err
						}
						w.expired.Add(1)
					}
					if !deleted && w.clock.Load() > int64(n/2) {
						deleted = true
						if _, err := s.log.Pool.Exec(context.WithoutCancel(ctx), "DELETE FROM repositories WHERE id = $1", gone); err != nil {
							return err
						}
					}
				}
				return nil
			})
			for i := range 4 {
				recorders.Go(func() error { return w.pulls(t, uint64(i), n/4, 0, 2) })
			}
			must(t, recorders.Wait())
			for deadline := time.Now().Add(time.Minute); !w.wild() && time.Now().Before(deadline); {
				// The workers that die need pulls to count. New counters would make each flush
				// longer than the one before it, so these pulls belong to the counters that are
				// there.
				must(t, w.pulls(t, 0, 1000, 2, 2))
			}
			stop()
			must(t, workers.Wait())
			must(t, s.flusher(t, w.redis).Flush(t.Context()))
			s.drained(t, server.client(t))
			compare(t, s.books(t).without(gone), truth(w.all).without(gone))
			for i := range w.crashes {
				if w.crashes[i].Load() == 0 {
					t.Errorf("nobody died when it had %s", steps[i])
				}
			}
			t.Logf("seed %d: %d pulls, %d flushes, %d counters looked at to expire; died at %v: %d %d %d %d %d", stormSeed, len(w.all),
				number(t, s.stats, "SELECT flush FROM redisprocessingstate"), w.expired.Load(), steps,
				w.crashes[0].Load(), w.crashes[1].Load(), w.crashes[2].Load(), w.crashes[3].Load(), w.crashes[4].Load())
		})
	}
}

// expireScript deletes the key of a counter that is settled, which Redis would otherwise do
// a minute later.
var expireScript = redis.NewScript("if redis.call('TTL', KEYS[1]) >= 0 then redis.call('DEL', KEYS[1]) end return 1")

// wild says whether, for every step of a flush, at least one worker has died at this step.
func (w *tempest) wild() bool {
	for i := range w.crashes {
		if w.crashes[i].Load() == 0 {
			return false
		}
	}
	return true
}

// A flush worker dies at a step, and further pulls come. The next worker must count all of
// these pulls, none twice.
func TestRedisFlushDies(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, apart := range []bool{false, true} {
		for _, step := range steps {
			s := open(t, apart, 1)
			c := server.client(t)
			must(t, c.FlushAll(t.Context()).Err())
			r := server.open(t, s.stats)
			rec := s.recorder(t, r, unlogged)
			list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second)), s.pull(0, "", "a", noon.Add(2*time.Second))}
			recorded(t, rec, list...)
			w := s.flusher(t, r)
			w.crash = at(step, crashHere)
			if died, err := dies(func() error { return w.Flush(t.Context()) }); !died {
				t.Fatalf("nothing has %s: %v", step, err)
			}
			later := []audit.Entry{s.pull(0, "v1", "b", noon.Add(3*time.Second)), s.pull(0, "v2", "b", noon.Add(-time.Hour))}
			recorded(t, rec, later...)
			must(t, s.flusher(t, r).Flush(t.Context()))
			compare(t, s.books(t), truth(append(list, later...)))
			s.drained(t, c)
			if t.Failed() {
				t.Fatalf("after it died when it had %s", step)
			}
		}
	}
}

// A flush worker stalls while it holds the lock of lockCounters, so another worker waits.
// Then the stalled worker's connection is ended, as PostgreSQL does with an idle
// transaction. The other worker must now count the pulls. The stalled worker must not be
// able to commit what it has read, even though a counter has expired and was made again
// since.
func TestRedisFlushStalls(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, apart := range []bool{false, true} {
		for _, step := range []string{"read", "before commit"} {
			s := open(t, apart, 1)
			c := server.client(t)
			must(t, c.FlushAll(t.Context()).Err())
			r := server.open(t, s.stats)
			rec := s.recorder(t, r, unlogged)
			list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
			recorded(t, rec, list...)
			more := func(after time.Duration) {
				t.Helper()
				e := s.pull(0, "v1", "a", noon.Add(after))
				recorded(t, rec, e)
				list = append(list, e)
			}
			slow := s.flusher(t, r)
			slow.crash = at(step, func() {
				more(time.Minute)
				done := make(chan error, 1)
				go func() { done <- s.flusher(t, r).Flush(t.Context()) }()
				until(t, "the other waits", func() bool {
					return number(t, s.stats, `
						SELECT count(*) FROM pg_stat_activity
						WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
				})
				exec(t, s.stats, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND state = 'idle in transaction' AND pid <> pg_backend_pid()`)
				must(t, <-done)
				compare(t, s.books(t), truth(list))
				must(t, c.Del(t.Context(), keysOf(t, c)...).Err()) // as if the counters had expired
				more(2 * time.Minute)
			})
			must(t, slow.Flush(t.Context())) // its second attempt succeeds
			compare(t, s.books(t), truth(list))
			must(t, s.flusher(t, r).Flush(t.Context()))
			compare(t, s.books(t), truth(list))
			s.drained(t, c)
			if t.Failed() {
				t.Fatalf("stalled when it had %s", step)
			}
		}
	}
}

// A flush worker stalls after its commit, and new pulls come to the counters that it has
// counted. When it goes on and settles counters, it must leave those with new pulls alone.
func TestRedisSettlesLate(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	c := server.client(t)
	r := server.open(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon)}
	recorded(t, rec, list...)
	slow := s.flusher(t, r)
	slow.crash = at("after commit", func() {
		must(t, s.flusher(t, r).Flush(t.Context()))
		must(t, c.Del(t.Context(), counterKey(s.repositories[0], "v2", digest("b"))).Err()) // as if this counter had expired
		more := []audit.Entry{s.pull(0, "v1", "a", noon.Add(time.Minute)), s.pull(0, "v2", "b", noon.Add(time.Minute))}
		recorded(t, rec, more...) // v2 has as many pulls as before
		list = append(list, more...)
	})
	must(t, slow.Flush(t.Context()))
	for _, key := range keysOf(t, c) {
		if ttl := c.TTL(t.Context(), key).Val(); ttl >= 0 || !c.SIsMember(t.Context(), uncountedKey(s.repositories[0]), key).Val() {
			t.Errorf("%s with new pulls stays for %v", key, ttl)
		}
	}
	must(t, s.flusher(t, r).Flush(t.Context()))
	compare(t, s.books(t), truth(list))
	s.drained(t, c)
}

// A counter in Redis is set back to an older state. No pull must be counted twice, and
// statistics must count as incomplete.
func TestRedisSetBack(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, what := range []string{"fewer pulls", "an expired counter"} {
		s := open(t, false, 1)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		w := s.flusher(t, r)
		list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v1", "a", noon)}
		recorded(t, rec, list...)
		key := counterKey(s.repositories[0], "v1", digest("a"))
		saved, err := c.Dump(t.Context(), key).Result()
		must(t, err)
		if what == "an expired counter" {
			must(t, w.Flush(t.Context()))
			must(t, c.Del(t.Context(), key).Err())
		}
		more := []audit.Entry{s.pull(0, "v1", "a", noon.Add(time.Minute))}
		recorded(t, rec, more...)
		must(t, w.Flush(t.Context()))
		list = append(list, more...)
		compare(t, s.books(t), truth(list))
		s.since(t) // makes the state's row
		exec(t, s.stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", noon)
		must(t, c.RestoreReplace(t.Context(), key, 0, saved).Err())
		must(t, w.Flush(t.Context()))
		compare(t, s.books(t), truth(list))
		if since := s.since(t); time.Since(since) > time.Minute {
			t.Errorf("%s: statistics are complete since %v, though pulls are missing", what, since)
		}
		more = []audit.Entry{s.pull(0, "v1", "a", noon.Add(time.Hour))}
		recorded(t, rec, more...)
		must(t, w.Flush(t.Context()))
		compare(t, s.books(t), truth(append(list, more...)))
		s.drained(t, c)
	}
}

// The context of a flush ends in the middle. The flush must count the batch completely or
// not at all, and the next flush must count the rest.
func TestRedisFlushEnds(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, step := range steps {
		s := open(t, false, 1)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
		recorded(t, rec, list...)
		w := s.flusher(t, r)
		ctx, stop := context.WithCancel(t.Context())
		w.crash = at(step, stop)
		if err := w.Flush(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", step, err)
		}
		stop()
		must(t, s.flusher(t, r).Flush(t.Context()))
		compare(t, s.books(t), truth(list))
		s.drained(t, c)
	}
}
