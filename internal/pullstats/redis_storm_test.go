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
)

// events is how many pulls a storm has: PURSER_TEST_EVENTS, or a number that takes a
// few seconds.
func events(t testing.TB) int {
	t.Helper()
	text := os.Getenv("PURSER_TEST_EVENTS")
	if text == "" {
		return 200_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("PURSER_TEST_EVENTS is %q, and should be a number of pulls", text)
	}
	return n
}

// dies runs fn, and says whether it ended where the process would.
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

// at is a crash hook that calls fn at a step, once.
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

// expire makes the leases of batches be over.
func (s *shop) expire(t testing.TB) {
	t.Helper()
	must(t, s.leasesEnd(t.Context()))
}

// leasesEnd locks batches in the order of their numbers, as workers do.
func (s *shop) leasesEnd(ctx context.Context) error {
	_, err := s.stats.Pool.Exec(ctx, `
		WITH open AS MATERIALIZED (
			SELECT id FROM redisflushbatches WHERE state = 'open' ORDER BY id FOR UPDATE)
		UPDATE redisflushbatches b SET lease_until = now() - interval '1 second' FROM open WHERE b.id = open.id`)
	return err
}

// recorded has Redis count pulls that happened at given times.
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

// drained fails where keys have something left to count.
func drained(t testing.TB, c *redis.Client) {
	t.Helper()
	for _, key := range keysOf(t, c) {
		h, err := c.HGetAll(t.Context(), key).Result()
		must(t, err)
		if h["pull_count"] != "0" || h["claim"] != "" || h["claimed_count"] != "" {
			t.Errorf("%s has something left: %v", key, h)
		}
		if ttl := c.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > settledFor {
			t.Errorf("%s stays for %v, want at most %v", key, ttl, settledFor)
		}
	}
}

// accounted fails where the database's own figures of flushing don't fit together.
func (s *shop) accounted(t testing.TB) {
	t.Helper()
	keys := number(t, s.stats, "SELECT COALESCE(sum(keys), 0) FROM redisflushbatches WHERE state = 'applied'")
	if n := number(t, s.stats, "SELECT keys_processed_count FROM redisprocessingstate"); n != keys {
		t.Errorf("keys_processed_count is %d, and the batches have %d keys", n, keys)
	}
}

// without leaves out what belongs to a repository.
func (b books) without(repository int64) books {
	b = maps.Clone(b)
	for name := range b {
		if strings.Fields(name)[1] == fmt.Sprint(repository) {
			delete(b, name)
		}
	}
	return b
}

// tempest is a storm of pulls and flushes.
type tempest struct {
	s     *shop
	redis *Redis
	clock atomic.Int64

	mu  sync.Mutex
	all []audit.Entry

	crashes [5]atomic.Int64
	late    atomic.Int64 // batches that were given up under a worker that went on
}

var steps = []string{"opened", "claimed", "before commit", "after commit", "settled"}

// pulls records pulls of tags that move.
func (w *tempest) pulls(t *testing.T, seed uint64, n int) error {
	r := rand.New(rand.NewPCG(seed, 11))
	rec := w.s.recorder(t, w.redis, unlogged)
	for n > 0 {
		list := make([]audit.Entry, 0, 500)
		for range min(n, 1+r.IntN(500)) {
			tag := ""
			if r.IntN(4) > 0 {
				tag = fmt.Sprint("v", r.IntN(6))
			}
			// No two at the same time, and in no order.
			when := noon.Add(time.Duration(r.IntN(3600))*time.Second + time.Duration(w.clock.Add(1))*time.Microsecond)
			list = append(list, w.s.pull(r.IntN(len(w.s.repositories)), tag, fmt.Sprint(r.IntN(6)), when))
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

// flushes flushes with workers that end at any step, one after another.
func (w *tempest) flushes(t *testing.T, ctx context.Context, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 12))
	for ctx.Err() == nil {
		f := w.s.flusher(t, w.redis, func(o *FlushOptions) { o.Batch = 1 + r.IntN(40) })
		life := 1 + r.IntN(60)
		f.crash = func(step string) {
			if life--; life == 0 {
				for i := range steps {
					if steps[i] == step {
						w.crashes[i].Add(1)
					}
				}
				crashHere()
			}
		}
		for died := false; !died && ctx.Err() == nil; {
			var err error
			died, err = dies(func() error { return f.Flush(context.WithoutCancel(ctx)) })
			switch {
			case err == nil:
			case strings.Contains(err.Error(), "was given up by another worker"):
				w.late.Add(1)
			default:
				return err
			}
		}
	}
	return nil
}

// Each pull counts once, with recorders and three flush workers at once, which die at any
// step or continue after their leases have expired; a repository is deleted in the middle.
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
				for deleted := false; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
					if err := s.leasesEnd(context.WithoutCancel(ctx)); err != nil {
						return err
					}
					w.mu.Lock()
					half := len(w.all) > n/2
					w.mu.Unlock()
					if half && !deleted {
						deleted = true
						if _, err := s.log.Pool.Exec(context.WithoutCancel(ctx), "DELETE FROM repositories WHERE id = $1", gone); err != nil {
							return err
						}
					}
				}
				return nil
			})
			for i := range 4 {
				recorders.Go(func() error { return w.pulls(t, uint64(i), n/4) })
			}
			must(t, recorders.Wait())
			for deadline := time.Now().Add(10 * time.Second); !w.wild() && time.Now().Before(deadline); {
				must(t, w.pulls(t, rand.Uint64(), 1000)) // there is something to do for those that die
			}
			stop()
			must(t, workers.Wait())
			s.expire(t)
			must(t, s.flusher(t, w.redis).Flush(t.Context()))
			c := server.client(t)
			drained(t, c)
			s.accounted(t)
			compare(t, s.books(t).without(gone), truth(w.all).without(gone))
			for i := range w.crashes {
				if w.crashes[i].Load() == 0 {
					t.Errorf("nobody died when it had %s", steps[i])
				}
			}
			if w.late.Load() == 0 {
				t.Error("no batch was given up under a worker that went on")
			}
			dead := int64(0)
			for i := range w.crashes {
				dead += w.crashes[i].Load()
			}
			if n := number(t, s.stats, "SELECT count(*) FROM redisflushbatches WHERE state = 'open'"); n > dead {
				t.Errorf("%d batches are open, and %d workers died", n, dead)
			}
			t.Logf("%d pulls, %d batches, %d given up under their workers; died at %v: %d %d %d %d %d", len(w.all),
				number(t, s.stats, "SELECT count(*) FROM redisflushbatches"), w.late.Load(), steps,
				w.crashes[0].Load(), w.crashes[1].Load(), w.crashes[2].Load(), w.crashes[3].Load(), w.crashes[4].Load())
		})
	}
}

// wild says whether all that was to happen has.
func (w *tempest) wild() bool {
	for i := range w.crashes {
		if w.crashes[i].Load() == 0 {
			return false
		}
	}
	return w.late.Load() > 0
}

// If a worker dies at a step, the next one counts its keys, without losing or repeating
// pulls, and touches none of them while the dead worker's lease lasts.
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
			// Before the commit the keys with claims wait for the lease: all but v1 of b.
			want := map[string]int64{"opened": 5, "claimed": 1, "before commit": 1, "after commit": 5, "settled": 5}[step]
			if n := number(t, s.stats, "SELECT COALESCE(sum(total_pull_count), 0) FROM manifestpullstatistics"); n != want {
				t.Errorf("%d pulls are counted while the lease holds, want %d", n, want)
			}
			s.expire(t)
			must(t, s.flusher(t, r).Flush(t.Context()))
			compare(t, s.books(t), truth(append(list, later...)))
			drained(t, c)
			s.accounted(t)
			if t.Failed() {
				t.Fatalf("after it died when it had %s", step)
			}
		}
	}
}

// A worker whose lease is over, and whose batch another one has given up, adds nothing
// of it.
func TestRedisLeaseOver(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	for _, apart := range []bool{false, true} {
		s := open(t, apart, 1)
		c := server.client(t)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		rec := s.recorder(t, r, unlogged)
		list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
		recorded(t, rec, list...)
		slow := s.flusher(t, r)
		slow.crash = at("claimed", func() {
			s.expire(t)
			must(t, s.flusher(t, r).Flush(t.Context()))
			compare(t, s.books(t), truth(list))
			more := []audit.Entry{s.pull(0, "v1", "a", noon.Add(time.Minute))}
			recorded(t, rec, more...)
			list = append(list, more...)
		})
		if err := slow.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "given up by another worker") {
			t.Errorf("a flush that took too long: %v", err)
		}
		must(t, s.flusher(t, r).Flush(t.Context()))
		compare(t, s.books(t), truth(list))
		drained(t, c)
		s.accounted(t)
	}
}

// Whoever would give a batch up while it is being committed waits for the commit.
func TestRedisLeaseOverAtCommit(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	r := startRedis(t).open(t, s.stats)
	list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
	recorded(t, s.recorder(t, r, unlogged), list...)
	slow := s.flusher(t, r)
	others := make(chan string, 2)
	slow.crash = func(step string) {
		switch step {
		case "claimed":
			s.expire(t) // nobody looks yet
		case "before commit":
			n := number(t, s.stats, "SELECT max(id) FROM redisflushbatches")
			go func() {
				state, err := slow.batches.abandon(t.Context(), n)
				others <- fmt.Sprint(state, err)
			}()
			go func() {
				states, err := slow.batches.states(t.Context(), []int64{n})
				others <- fmt.Sprint(states[n], err)
			}()
			for deadline := time.Now().Add(2 * time.Minute); number(t, s.stats, `
				SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%abandoned%'`) < 2; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Error("the others don't wait")
					return
				}
			}
		}
	}
	must(t, slow.Flush(t.Context()))
	for range 2 {
		if got := <-others; got != "applied<nil>" {
			t.Errorf("a batch that was just committed is %s", got)
		}
	}
	must(t, s.flusher(t, r).Flush(t.Context()))
	compare(t, s.books(t), truth(list))
}

// A recount that gives up every open batch and a worker that gives up two of them don't
// wait for each other, whatever the order of the rows on their page.
func TestRedisAbandonInOrder(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	b := batches{stats: s.stats}
	first, _, err := b.open(t.Context())
	must(t, err)
	second, _, err := b.open(t.Context())
	must(t, err)
	// The first one's row now lies behind the second's.
	exec(t, s.stats, "UPDATE redisflushbatches SET keys = keys WHERE id = $1", first)
	tx, err := s.stats.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background()) //nolint:errcheck
	lock := "SELECT FROM redisflushbatches WHERE id = $1 FOR UPDATE"
	_, err = tx.Exec(t.Context(), lock, first)
	must(t, err)
	abandoned := make(chan error, 1)
	go func() { abandoned <- b.abandonOpen(t.Context()) }()
	until(t, "the recount waits", func() bool {
		return number(t, s.stats, `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%abandoned%'`) == 1
	})
	_, err = tx.Exec(t.Context(), lock, second)
	must(t, err)
	must(t, tx.Commit(t.Context()))
	must(t, <-abandoned)
	if n := number(t, s.stats, "SELECT count(*) FROM redisflushbatches WHERE state = 'abandoned'"); n != 2 {
		t.Errorf("%d of 2 batches are given up", n)
	}
}

// A flush whose context ends in the middle counts all or nothing of a batch, and the
// next one the rest.
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
		// The batch wasn't left open: this needs no lease to be over.
		must(t, s.flusher(t, r).Flush(t.Context()))
		compare(t, s.books(t), truth(list))
		drained(t, c)
		s.accounted(t)
	}
}

// A scan may tell a key again, on the same page or on another one.
func TestRedisScanRepeats(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	server := startRedis(t)
	r := server.open(t, s.stats)
	list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
	recorded(t, s.recorder(t, r, unlogged), list...)
	keys := keysOf(t, server.client(t))
	for range 2 { // the second time there is nothing to count
		f := &flushing{w: s.flusher(t, r)}
		for _, page := range [][]string{{keys[0], keys[1], keys[0]}, {keys[1]}, {keys[1], keys[1]}} {
			must(t, f.page(t.Context(), page))
		}
		must(t, f.close(t.Context(), nil))
		compare(t, s.books(t), truth(list))
	}
	drained(t, server.client(t))
}
