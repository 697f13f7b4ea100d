package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	// flushAttempts is how often the transaction of a batch is tried.
	flushAttempts = 4
	// settledFor is how long a counter stays in Redis after the statistics have all of its
	// pulls. A key that is made again later gets a greater born, provided that the server's
	// clock goes back by less than settledFor.
	settledFor = time.Minute
	// countedFor is how long the row of a counter stays in redispullcounters after complete
	// flushes have last found the counter in Redis.
	countedFor = 24 * time.Hour
	// turnFor is how long another process's flush counts as still running without having
	// recorded progress.
	turnFor = 2 * time.Minute
)

// FlushOptions configures a FlushWorker.
type FlushOptions struct {
	Databases
	Redis *Redis // required
	// Interval is how often Redis is flushed, by all processes together. Default 5 min.
	Interval time.Duration
	// Batch is how many keys are counted together. Default 1,000.
	Batch int
	// Backoff is how long a batch waits before its second attempt; it doubles with each
	// further one. Default 200 ms.
	Backoff time.Duration
	Logger  *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// FlushWorker adds the pulls that Redis has counted to the statistics (RedisFlushWorker).
// Any number of processes may run one. Its methods may be called concurrently.
type FlushWorker struct {
	opt   FlushOptions
	loop  *worker.Loop
	due   time.Time         // used by the loop alone: when to look whether a run is due
	swept atomic.Int64      // when forget last ran, in Unix seconds
	crash func(step string) // for tests: steps at which the process may end
}

// NewFlushWorker makes a worker. It counts nothing before Run or Flush.
func NewFlushWorker(o FlushOptions) (*FlushWorker, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Redis == nil {
		return nil, errors.New("pullstats: a Redis to flush is required")
	}
	if o.Interval <= 0 {
		o.Interval = 5 * time.Minute
	}
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	if o.Backoff <= 0 {
		o.Backoff = 200 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &FlushWorker{opt: o, crash: func(string) {}}
	w.loop = worker.New(worker.Options{
		Name: "flush of pulls in Redis", Batch: w.round, Next: w.next, Timeout: time.Hour, Log: o.Logger, Metrics: o.Worker,
	})
	return w, nil
}

// Run flushes until ctx ends, and returns nil when the last batch is over.
func (w *FlushWorker) Run(ctx context.Context) error { return w.loop.Run(ctx) }

// round flushes, if a flush is due and no other process is flushing.
func (w *FlushWorker) round(ctx context.Context) (more bool, err error) {
	if time.Now().Before(w.due) {
		return false, nil
	}
	mine, wait, err := w.takeTurn(ctx)
	if err != nil {
		return false, err
	}
	if mine {
		if err := w.run(ctx); err != nil {
			return false, err
		}
		wait = w.opt.Interval
	}
	w.due = time.Now().Add(wait)
	w.observe(ctx)
	return false, nil
}

// next returns the time until the loop looks again whether a flush is due.
func (w *FlushWorker) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// Flush counts now the pulls that Redis has.
func (w *FlushWorker) Flush(ctx context.Context) error {
	if _, err := w.opt.Stats.Pool.Exec(ctx,
		"UPDATE redisprocessingstate SET processing_status = 'PROCESSING', error_message = NULL, updated_at = now()"); err != nil {
		return fmt.Errorf("beginning to flush pulls: %w", err)
	}
	return w.run(ctx)
}

// takeTurn returns whether this process should flush now (mine), and otherwise after what
// time to ask again. If two processes flush at once, each pull still counts once: the
// second process finds it counted.
func (w *FlushWorker) takeTurn(ctx context.Context) (mine bool, wait time.Duration, err error) {
	var micros int64
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		WITH turn AS (
			UPDATE redisprocessingstate SET processing_status = 'PROCESSING', error_message = NULL, updated_at = now()
			WHERE (last_processed_timestamp <= now() - $1::bigint * interval '1 microsecond' OR redis_flush = 0)
				AND (processing_status <> 'PROCESSING' OR updated_at < now() - $2::bigint * interval '1 microsecond')
			RETURNING id)
		SELECT EXISTS (SELECT FROM turn), (EXTRACT(EPOCH FROM last_processed_timestamp - now()) * 1000000)::bigint + $1
		FROM redisprocessingstate`, w.opt.Interval.Microseconds(), turnFor.Microseconds()).Scan(&mine, &micros)
	if err != nil {
		return false, 0, fmt.Errorf("looking whether to flush pulls: %w", err)
	}
	// A process that is flushing now may die, so ask again after a bounded time.
	return mine, min(max(time.Duration(micros)*time.Microsecond, time.Second), w.opt.Interval, worker.MaxIdle), nil
}

// run flushes all keys once, and records the outcome.
func (w *FlushWorker) run(ctx context.Context) error {
	err := w.flush(ctx)
	if err != nil {
		w.opt.Metrics.flushFailed()
		w.failed(ctx, err)
	}
	return err
}

// failed records why a run failed, if the database can be reached.
func (w *FlushWorker) failed(ctx context.Context, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := w.opt.Stats.Pool.Exec(ctx,
		"UPDATE redisprocessingstate SET processing_status = 'ERROR', error_message = $1, updated_at = now()", cause.Error()); err != nil {
		w.opt.Logger.WarnContext(ctx, "recording why pulls can't be flushed", "error", err)
	}
}

// flush counts all keys, a page at a time.
func (w *FlushWorker) flush(ctx context.Context) error {
	if err := w.reconcileEpochs(ctx); err != nil {
		return err
	}
	var n, kept int64
	var begun time.Time
	if err := w.opt.Stats.Pool.QueryRow(ctx, "UPDATE redisprocessingstate SET flush = flush + 1 RETURNING flush, redis_flush, clock_timestamp()").
		Scan(&n, &kept, &begun); err != nil {
		return fmt.Errorf("beginning to flush pulls: %w", err)
	}
	w.crash("begun")
	if err := w.opt.Redis.raiseEpoch(ctx, epochKey, n, kept); err != nil {
		return err
	}
	var left error // why keys were left for the next run
	keys, err := w.scan(ctx, counterPrefix+"*", &left, func(page []string) (error, error) { return w.page(ctx, n, page) })
	if err == nil {
		_, err = w.scan(ctx, olderPrefix+"*", &left, func(page []string) (error, error) { return w.olderPage(ctx, page) })
	}
	if err = cmp.Or(err, left); err != nil {
		return err
	}
	// If Redis was emptied during the scan, the scan may have missed keys: then Redis
	// doesn't have the epoch any more.
	if err := w.opt.Redis.raiseEpoch(ctx, epochKey, n, n); err != nil {
		return err
	}
	w.opt.Metrics.keysLeft(keys)
	return w.complete(ctx, n, begun)
}

// scan calls fn with the keys of all servers that match a pattern, at most Batch at a time,
// and returns the number of these keys. It ends when fn returns an error. It leaves out
// servers that can't be read, and fn may leave out keys; *left gets the reason.
func (w *FlushWorker) scan(ctx context.Context, pattern string, left *error, fn func(keys []string) (left, err error)) (n int, err error) {
	var failed error
	err = w.opt.Redis.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); failed == nil; {
			page, next, err := c.Scan(ctx, cursor, pattern, int64(w.opt.Batch)).Result()
			if err != nil {
				*left = fmt.Errorf("reading which pulls Redis has: %w", err)
				return nil
			}
			n += len(page)
			for part := range slices.Chunk(page, w.opt.Batch) {
				unread, err := fn(part)
				if *left = cmp.Or(*left, unread); err != nil {
					failed = err
					return err
				}
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
		return nil
	})
	return n, cmp.Or(failed, err)
}

// distinct returns keys without duplicates: a scan may return a key twice.
func distinct(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// complete records that flush number n, which began at the time begun, has counted every
// key.
func (w *FlushWorker) complete(ctx context.Context, n int64, begun time.Time) error {
	// protocol = 2 tells a trigger that this flush included the counters, not only the keys
	// of the older version.
	if _, err := w.opt.Stats.Pool.Exec(ctx, `
		UPDATE redisprocessingstate SET processing_status = 'IDLE', error_message = NULL, updated_at = now(),
			last_processed_timestamp = GREATEST(last_processed_timestamp, $1), redis_flush = GREATEST(redis_flush, $2), protocol = 2`, begun, n); err != nil {
		return fmt.Errorf("recording a flush of pulls: %w", err)
	}
	return w.forget(ctx)
}

// forget deletes, once an hour, the rows of redispullcounters whose counters complete
// flushes haven't found in Redis for countedFor. It reads the whole table: an index would
// cost every flush more.
func (w *FlushWorker) forget(ctx context.Context) error {
	now := time.Now().Unix()
	if last := w.swept.Load(); now-last < 3600 || !w.swept.CompareAndSwap(last, now) {
		return nil
	}
	return w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if err := lockCounters(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			DELETE FROM redispullcounters
			WHERE updated_at < (SELECT last_processed_timestamp FROM redisprocessingstate) - $1::bigint * interval '1 microsecond'`, countedFor.Microseconds()); err != nil {
			return fmt.Errorf("forgetting counters that are gone: %w", err)
		}
		return nil
	})
}

// page counts a page of counters, with retries. If the commit of an attempt isn't answered,
// the next attempt finds out from redispullcounters which pulls were counted. left says why
// some keys couldn't be read.
func (w *FlushWorker) page(ctx context.Context, n int64, keys []string) (left, err error) {
	begun := time.Now()
	var p counting
	for attempt := 1; ; attempt++ {
		start := time.Now()
		p, err = w.count(ctx, n, keys)
		w.opt.Metrics.upserted(time.Since(start))
		if err == nil || attempt == flushAttempts || ctx.Err() != nil {
			break
		}
		w.opt.Logger.WarnContext(ctx, "a flush of pulls failed", "flush", n, "attempt", attempt, "error", err)
		if pause(ctx, w.opt.Backoff<<(attempt-1)) != nil {
			break
		}
	}
	w.crash("after commit")
	for key, cause := range p.invalid {
		w.opt.Logger.WarnContext(ctx, "a key in Redis has a name of a counter of pulls and is none", "key", key, "error", cause)
	}
	w.opt.Metrics.flushedKeys(keyInvalid, len(p.invalid))
	if err != nil {
		w.opt.Metrics.flushedKeys(keyKept, len(keys)-len(p.invalid))
		return nil, err
	}
	w.opt.Metrics.flushed(time.Since(begun))
	w.opt.Metrics.flushedKeys(keyFlushed, p.flushed)
	w.opt.Metrics.flushedKeys(keyGone, p.gone)
	return p.left, w.settle(ctx, p.list)
}

// counting is the outcome of counting one page of keys.
type counting struct {
	list          []counter
	invalid       map[string]error
	left          error // why keys were left for the next run
	flushed, gone int   // counters with pulls, and those whose repositories are deleted
}

// count counts a page in one transaction: it adds the pulls of the counters that aren't in
// the statistics yet. It reads the counters while it holds the lock of lockCounters.
func (w *FlushWorker) count(ctx context.Context, n int64, keys []string) (p counting, err error) {
	keys = distinct(keys)
	repositories := make([]int64, len(keys))
	for i, key := range keys {
		repositories[i] = repositoryOf(key)
	}
	err = w.opt.withAlive(ctx, sorted(repositories), func(alive map[int64]bool, tx pgx.Tx) error {
		if err := lockCounters(ctx, tx); err != nil {
			return err
		}
		p = counting{}
		p.list, p.invalid, p.left = w.opt.Redis.counters(ctx, keys)
		w.crash("read")
		// If Redis was emptied earlier, the lost pulls must be counted from the log before
		// the new counters: then raiseEpoch returns errRedisLost.
		if err := w.opt.Redis.raiseEpoch(ctx, epochKey, n, n); err != nil || len(p.list) == 0 {
			return err
		}
		has, err := countedOf(ctx, tx, idsOf(p.list))
		if err != nil {
			return err
		}
		sum, err := w.sum(ctx, &p, has, alive)
		if err != nil {
			return err
		}
		if err := sum.writeFlushed(ctx, tx); err != nil {
			return err
		}
		if err := saveCounted(ctx, tx, p.list); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			UPDATE redisprocessingstate SET keys_processed_count = keys_processed_count + $1,
				redis_flush = GREATEST(redis_flush, $2), updated_at = now()`, p.flushed+p.gone, n); err != nil {
			return fmt.Errorf("recording a flush of pulls: %w", err)
		}
		w.crash("before commit")
		return nil
	})
	return p, err
}

// sum adds up the uncounted pulls of the counters, except those of deleted repositories.
// has says which pulls were counted.
func (w *FlushWorker) sum(ctx context.Context, p *counting, has map[counterID]counted, alive map[int64]bool) (counts, error) {
	a := newAdder()
	for _, c := range p.list {
		n, back := c.uncounted(has[idOf(c.key)])
		switch {
		case back:
			w.opt.Logger.ErrorContext(ctx, "Redis was set back, so that pulls are missing", "key", c.key)
			if err := Unrecorded(ctx, w.opt.Stats, 0); err != nil {
				return counts{}, err
			}
		case n == 0:
		case !alive[c.repository]:
			p.gone++
		default:
			p.flushed++
			a.add(c.repository, c.tag, c.digest, n, c.last)
		}
	}
	return a.counts(), nil
}

// settle makes the counters expire whose pulls are all in the statistics.
func (w *FlushWorker) settle(ctx context.Context, list []counter) error {
	calls := make([]*call, len(list))
	for i, c := range list {
		calls[i] = &call{script: settleScript, keys: []string{c.key, uncountedKey(c.repository)}, args: []any{c.count, c.born, int(settledFor.Seconds())}}
	}
	if len(calls) == 0 {
		return nil
	}
	w.opt.Redis.run(ctx, calls)
	w.crash("settled")
	for _, c := range calls {
		// If this call has failed, the next flush settles the counter.
		if got, err := c.outcome(); got != answered {
			return fmt.Errorf("settling pulls in Redis: %w", err)
		}
	}
	return nil
}
