package pullstats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
)

// olderRecordScript is recordScript as the previous version has it.
var olderRecordScript = redis.NewScript(`
local now = redis.call('TIME')
local seq = tonumber(now[1]) * 1000000 + tonumber(now[2])
seq = string.format('%.0f', math.max(seq, (tonumber(redis.call('HGET', KEYS[1], 'seq') or 0) or 0) + 1))
local last = redis.call('HGET', KEYS[1], 'last_pull_timestamp')
local newer = not last or tonumber(last) < tonumber(ARGV[2])
redis.call('HINCRBY', KEYS[1], 'pull_count', ARGV[1])
if not last then
  redis.call('HSET', KEYS[1], 'repository_id', ARGV[3], 'tag_name', ARGV[4], 'manifest_digest', ARGV[5],
    'pull_method', ARGV[6], 'last_pull_timestamp', ARGV[2], 'born', seq)
elseif newer then
  redis.call('HSET', KEYS[1], 'last_pull_timestamp', ARGV[2])
end
redis.call('HSET', KEYS[1], 'seq', seq)
redis.call('PERSIST', KEYS[1])
return seq`)

// older acts on Redis as a replica of the previous version does.
type older struct {
	s *shop
	c *redis.Client
}

// pull has Redis count a pull, as the previous version does, and returns the pull's sequence
// number.
func (o older) pull(ctx context.Context, e audit.Entry) (seq int64, err error) {
	return olderRecordScript.Run(ctx, o.c, []string{olderKey(e.RepositoryID, e.Tag, e.Digest)},
		1, redisTime(e.Time), e.RepositoryID, e.Tag, e.Digest.String(), "digest").Int64()
}

// claim begins a batch, as the previous version does, claims keys for the batch, and returns
// its number.
func (o older) claim(t testing.TB, lease time.Duration, keys ...string) (n int64) {
	t.Helper()
	n = number(t, o.s.stats, "INSERT INTO redisflushbatches (lease_until) VALUES (now() + $1::bigint * interval '1 microsecond') RETURNING id", lease.Microseconds())
	must(t, epochScript.Run(t.Context(), o.c, []string{olderEpochKey}, n, 0).Err())
	for _, key := range keys {
		must(t, claimScript.Run(t.Context(), o.c, []string{key}, n).Err())
	}
	return n
}

// The previous version has left pulls in Redis: in keys that no batch has claimed, and in
// keys claimed by batches that were applied, were abandoned, or whose worker was killed. A
// flush of this version must count each of these pulls once. It must leave the claims of a
// running batch to the batch's worker.
func TestUpgradeLeftovers(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		s := open(t, apart, 2)
		server := startRedis(t)
		c := server.client(t)
		o := older{s, c}
		var all, pending []audit.Entry
		pull := func(repository int, tag, content string) string {
			t.Helper()
			e := s.pull(repository, tag, content, noon.Add(time.Duration(len(all)+len(pending))*time.Second))
			_, err := o.pull(t.Context(), e)
			must(t, err)
			if tag == "running" {
				pending = append(pending, e)
			} else {
				all = append(all, e)
			}
			return olderKey(e.RepositoryID, e.Tag, e.Digest)
		}
		pull(0, "", "a")
		pull(0, "free", "a")
		pull(1, "free", "a")
		applied := o.claim(t, time.Hour, pull(0, "applied", "b"), pull(1, "applied", "b"))
		exec(t, s.stats, "UPDATE redisflushbatches SET state = 'applied' WHERE id = $1", applied)
		written := all[len(all)-2:]
		sum := newAdder(s.living())
		for _, e := range written {
			sum.add(e.RepositoryID, e.Tag, e.Digest, 1, dayOf(e.Time), e.Time)
		}
		tx, err := s.stats.Pool.Begin(t.Context())
		must(t, err)
		must(t, sum.counts().write(t.Context(), tx))
		must(t, tx.Commit(t.Context()))
		pull(0, "applied", "b") // counted after the claim
		abandoned := o.claim(t, time.Hour, pull(0, "abandoned", "c"))
		exec(t, s.stats, "UPDATE redisflushbatches SET state = 'abandoned' WHERE id = $1", abandoned)
		o.claim(t, -time.Second, pull(0, "killed", "d"))
		running := o.claim(t, time.Hour, pull(0, "running", "e"))
		invalid := olderPrefix + "1:digest:none"
		must(t, c.HSet(t.Context(), invalid, "pull_count", "1").Err())

		r := server.open(t, s.stats)
		w := s.flusher(t, r, func(o *FlushOptions) { o.Batch = 2 })
		for range 2 {
			must(t, w.Flush(t.Context()))
			compare(t, s.books(t), truth(all))
		}
		exec(t, s.stats, "UPDATE redisflushbatches SET lease_until = now() - interval '1 second' WHERE id = $1", running)
		must(t, w.Flush(t.Context()))
		all = append(all, pending...)
		compare(t, s.books(t), truth(all))
		must(t, c.Del(t.Context(), invalid).Err())
		s.drained(t, c)

		// Both versions have counted pulls of the same tag in Redis.
		pull(0, "free", "a")
		e := s.pull(0, "free", "a", noon.Add(time.Hour))
		recorded(t, s.recorder(t, r, unlogged), e)
		all = append(all, e)
		must(t, w.Flush(t.Context()))
		compare(t, s.books(t), truth(all))
		s.drained(t, c)
	}
}

// In the first case a flush worker is so slow that another worker abandons its batch and
// counts the pulls; the slow worker must then add nothing. In the second case a claim gets
// no answer: its batch must be abandoned, and a later flush must count the pulls.
func TestUpgradeClaimsGivenUp(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	c := server.client(t)
	o := older{s, c}
	far, p := server.behind(t, s.stats)
	r := server.open(t, s.stats)
	list := []audit.Entry{s.pull(0, "v1", "a", noon), s.pull(0, "v2", "b", noon.Add(time.Second))}
	for _, e := range list {
		_, err := o.pull(t.Context(), e)
		must(t, err)
	}
	over := func() {
		exec(t, s.stats, "UPDATE redisflushbatches SET lease_until = now() - interval '1 second' WHERE state = 'open'")
	}
	slow := s.flusher(t, r)
	slow.crash = at("claimed", func() {
		over()
		must(t, s.flusher(t, r).Flush(t.Context()))
		compare(t, s.books(t), truth(list))
	})
	if err := slow.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "given up by another worker") {
		t.Errorf("a flush that took too long: %v", err)
	}
	compare(t, s.books(t), truth(list))
	for _, f := range []fault{cutBefore, cutAfter} {
		e := s.pull(0, "v1", "a", noon.Add(time.Duration(len(list))*time.Minute))
		_, err := o.pull(t.Context(), e)
		must(t, err)
		list = append(list, e)
		must(t, far.ping(t.Context()))
		must(t, claimScript.Load(t.Context(), c).Err())
		p.on(claimScript.Hash(), 1, f)
		if err := s.flusher(t, far).Flush(t.Context()); err == nil || p.times() != 1 {
			t.Errorf("a flush with %d claims unanswered: %v", p.times(), err)
		}
		over()
		must(t, s.flusher(t, r).Flush(t.Context()))
		compare(t, s.books(t), truth(list))
	}
	s.drained(t, c)
}

// Recorders of both versions count pulls in Redis, while flush workers of this version flush
// them and die at any step, and leases of batches end. Each pull must count once.
func TestUpgradeStorm(t *testing.T) {
	t.Parallel()
	s := open(t, true, 3)
	server := startRedis(t)
	c := server.client(t)
	w := &tempest{s: s, redis: server.open(t, s.stats)}
	n := events(t) / 20
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var workers, recorders errgroup.Group
	var died, late atomic.Int64
	for i := range 3 {
		workers.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(i), stormSeed))
			for ctx.Err() == nil {
				f := s.flusher(t, w.redis, func(o *FlushOptions) { o.Batch = 1 + random.IntN(20) })
				life := 1 + random.IntN(40)
				f.crash = func(string) { // the worker dies at any of its steps
					if life--; life == 0 {
						died.Add(1)
						crashHere()
					}
				}
				for dead := false; !dead && ctx.Err() == nil; {
					var err error
					dead, err = dies(func() error { return f.Flush(context.WithoutCancel(ctx)) })
					if err != nil && !strings.Contains(err.Error(), "was given up by another worker") {
						return err
					} else if err != nil {
						late.Add(1)
					}
				}
			}
			return nil
		})
	}
	end := func(ctx context.Context) error { // ends leases, also those of workers that still run
		_, err := s.stats.Pool.Exec(ctx, `
			WITH open AS MATERIALIZED (SELECT id FROM redisflushbatches WHERE state = 'open' ORDER BY id FOR UPDATE)
			UPDATE redisflushbatches b SET lease_until = now() - interval '1 second' FROM open WHERE b.id = open.id`)
		return err
	}
	workers.Go(func() error {
		for ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			if err := end(context.WithoutCancel(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
	o := older{s, c}
	for i := range 2 {
		recorders.Go(func() error { return w.pulls(t, uint64(i), n, 0, 2) })
		recorders.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(i), stormSeed+1))
			for range n {
				when := noon.Add(time.Duration(random.IntN(3600))*time.Second + time.Duration(w.clock.Add(1))*time.Microsecond)
				e := s.pull(random.IntN(3), fmt.Sprint("v", random.IntN(6)), fmt.Sprint(random.IntN(6)), when)
				if _, err := o.pull(t.Context(), e); err != nil {
					return err
				}
				w.mu.Lock()
				w.all = append(w.all, e)
				w.mu.Unlock()
			}
			return nil
		})
	}
	must(t, recorders.Wait())
	stop()
	must(t, workers.Wait())
	must(t, end(t.Context()))
	must(t, s.flusher(t, w.redis).Flush(t.Context()))
	compare(t, s.books(t), truth(w.all))
	s.drained(t, c)
	if died.Load() == 0 {
		t.Error("nobody died")
	}
	t.Logf("seed %d: %d pulls, %d deaths, %d batches given up under their workers", stormSeed, len(w.all), died.Load(), late.Load())
}

// A process of the previous version flushes only keys of its own format. So the database
// must ignore its report of a complete flush, and accept the report of this version.
func TestUpgradeOlderFlushes(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	flushed := "SELECT extract(epoch FROM last_processed_timestamp)::bigint FROM redisprocessingstate"
	before := number(t, s.stats, flushed)
	exec(t, s.stats, "UPDATE redisprocessingstate SET processing_status = 'IDLE', last_processed_timestamp = now()")
	if after := number(t, s.stats, flushed); after != before {
		t.Errorf("an older process has flushed everything, until %d", after)
	}
	r := startRedis(t).open(t, s.stats)
	must(t, s.flusher(t, r).Flush(t.Context()))
	if after := number(t, s.stats, flushed); after == before {
		t.Error("a flush is never complete")
	}
	if n := number(t, s.stats, "SELECT count(*) FROM redisprocessingstate WHERE protocol IS NOT NULL"); n != 0 {
		t.Error("the next process may say the same without knowing")
	}
}

// While a process of the previous version runs, it can't see pulls in this version's
// counters. So these pulls must also set last-used times, which the older process reads.
// Conversely, Uses must read the last-used times that the older process has stored in
// Redis.
func TestUpgradeUses(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	server := startRedis(t)
	r := server.open(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	checks := "SELECT count(*) FROM tagpullstatistics WHERE last_check_date IS NOT NULL"
	pull := func(tag string) {
		t.Helper()
		_, err := rec.presence.tick(t.Context())
		must(t, err)
		recorded(t, rec, s.pull(0, tag, "a", time.Now()))
		_, err = rec.opt.LastUsed.save(t.Context())
		must(t, err)
	}
	pull("v1")
	if n := number(t, s.stats, checks); n != 0 {
		t.Errorf("%d tags have last-used times, though nobody needs them", n)
	}
	exec(t, s.stats, "INSERT INTO pullrecorders (redis) VALUES (true)")
	pull("v2")
	if n := number(t, s.stats, checks); n != 1 {
		t.Errorf("%d tags have last-used times, want that of the pull which the older process can't see", n)
	}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(t, server.client(t).HSet(t.Context(), fmt.Sprintf("%s%d:%d", olderUses, s.repositories[0], at.Unix()/3600),
		fmt.Sprintf("%011x", uint64(olderName("v3"))>>20), at.Unix()).Err())
	uses, err := s.worker(t, func(o *SyncOptions) { o.Redis = r }).Uses(t.Context(), s.repositories[0], []string{"v1", "v2", "v3", "v4"}, nil)
	must(t, err)
	if !uses.Tags["v3"].Equal(at) || uses.Tags["v1"].Before(at) || uses.Tags["v2"].Before(at) || !uses.Tags["v4"].IsZero() {
		t.Errorf("uses: %+v, want that of v3 at %v", uses, at)
	}
}

// Redis is emptied during an upgrade. The lost pulls of both versions must be counted from
// the audit log, each once. Pulls that were flushed before must not be counted again.
func TestUpgradeRecount(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	c := server.client(t)
	for _, recovered := range []bool{false, true} { // recovered: a process of the previous version has recounted its own pulls already
		s := open(t, false, 1)
		must(t, c.FlushAll(t.Context()).Err())
		r := server.open(t, s.stats)
		w := s.flusher(t, r)
		o := older{s, c}
		must(t, w.Flush(t.Context()))
		pulls := func() {
			t.Helper()
			rec := s.recorder(t, r)
			_, err := rec.presence.tick(t.Context())
			must(t, err)
			for range 3 {
				rec.Pulled(t.Context(), s.client("a", 0, "v1", "x"))
			}
			finish(t, rec)
			for range 2 {
				e := s.pull(0, "v1", "x", time.Now())
				e.CountedBy = audit.CountedByRedis
				e.RedisSeq, err = o.pull(t.Context(), e)
				must(t, err)
				must(t, audit.Append(t.Context(), s.log.Pool, e))
			}
		}
		counted := func() int64 {
			t.Helper()
			settle(t, s.worker(t))
			return s.books(t)[tagName(s, 0, "v1")].Count
		}
		pulls()
		must(t, w.Flush(t.Context()))
		if n := counted(); n != 5 {
			t.Fatalf("%d pulls are counted, want 5", n)
		}
		exec(t, s.stats, "UPDATE redisprocessingstate SET protocol = 3, last_processed_timestamp = now() - interval '1 minute'")
		pulls()
		must(t, c.FlushAll(t.Context()).Err())
		want := int64(10)
		if recovered {
			epoch := number(t, s.stats, "SELECT redis_epoch FROM redisprocessingstate")
			must(t, c.Set(t.Context(), olderEpochKey, epoch, 0).Err())
			want -= 2 // the process of the previous version marks its two pulls in the log
		}
		if _, err := s.asked(t, r); !errors.Is(err, errRedisLost) {
			t.Errorf("uses: %v, want %v", err, errRedisLost)
		}
		pulls() // in the emptied Redis
		want += 5
		must(t, w.Flush(t.Context()))
		must(t, w.Flush(t.Context()))
		if n := counted(); n != want {
			t.Errorf("recovered %v: %d pulls are counted, want %d", recovered, n, want)
		}
		s.drained(t, c)
	}
}
