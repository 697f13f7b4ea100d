package redispulls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// flushAttempts is how often a flush tries to count one batch of keys before it fails.
	flushAttempts = 4
	// settledFor is how long a counter's key stays in Redis after the statistics have all
	// of its pulls. If the counter is made again after its key has expired, a flush
	// recognizes this by the counter's field `born`, a time of the Redis server's clock,
	// which must then be greater than before. So this clock must never be set back by
	// settledFor or more.
	settledFor = time.Minute
	// countedFor is how long a counter's row stays in redispullcounters after the last
	// complete flush that found the counter in Redis.
	countedFor = 24 * time.Hour
	// turnFor is how long a process that flushes may go without recording progress. After
	// that another process may begin a flush of its own.
	turnFor = 2 * time.Minute
)

// FlushOptions configures a FlushWorker.
type FlushOptions struct {
	statsdb.Databases
	Redis *Client // required
	// Interval is the time between flushes of Redis; each flush is done by one of the
	// processes. Default 5 min.
	Interval time.Duration
	// Batch is how many keys one transaction counts. Default 1,000.
	Batch int
	// Backoff is the pause before the second attempt at a batch; it doubles before each
	// further attempt. Default 200 ms.
	Backoff time.Duration
	Logger  *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
	// Step is for tests: a flush calls it with the name of each step at which the process may end.
	// Nil: nothing is called.
	Step func(step string)
}

// FlushWorker flushes Redis: it adds the pulls that Redis has counted to the statistics.
// (Quay's design calls it RedisFlushWorker.) Any number of processes may run one. Its
// methods may be called concurrently.
type FlushWorker struct {
	opt      FlushOptions
	loop     *worker.Loop
	flushing *semaphore.Weighted // taken during a flush
	due      time.Time           // used by the loop alone: when to ask whether a flush is due
	swept    atomic.Int64        // when forget last ran, in Unix seconds
}

// NewFlushWorker makes a worker. It counts nothing until Run or Flush is called.
func NewFlushWorker(o FlushOptions) (*FlushWorker, error) {
	if err := o.Check(); err != nil {
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
	w := &FlushWorker{opt: o, flushing: semaphore.NewWeighted(1)}
	w.loop = worker.New(worker.Options{
		Name: "flush of pulls in Redis", Batch: w.round, Next: w.next, Timeout: time.Hour, Log: o.Logger, Metrics: o.Worker,
	})
	return w, nil
}

func (w *FlushWorker) step(name string) {
	if w.opt.Step != nil {
		w.opt.Step(name)
	}
}

// Run flushes Redis once in each interval until ctx ends. The end of ctx also cancels a flush
// that is running; Run returns nil once that flush has ended.
func (w *FlushWorker) Run(ctx context.Context) error { return w.loop.Run(ctx) }

// round flushes Redis if a flush is due and no other process is flushing. The worker's loop
// calls it; `more` is always false.
func (w *FlushWorker) round(ctx context.Context) (more bool, err error) {
	if time.Now().Before(w.due) {
		return false, nil
	}
	defer func() { w.observe(ctx) }() // also, and above all, when it fails
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
	return false, nil
}

// next returns how long it is until the loop asks again whether a flush is due.
func (w *FlushWorker) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// Flush flushes Redis now, even if no flush is due or another process is flushing.
func (w *FlushWorker) Flush(ctx context.Context) error {
	if _, err := w.opt.Stats.Pool.Exec(ctx,
		"UPDATE redisprocessingstate SET processing_status = 'PROCESSING', error_message = NULL, updated_at = now()"); err != nil {
		return fmt.Errorf("beginning to flush pulls: %w", err)
	}
	return w.run(ctx)
}

// takeTurn returns `mine` = true, and records that a flush has begun, if a flush is due and
// no other process is flushing. Otherwise `wait` is how long this process should wait before
// it asks again. If two processes nevertheless flush at once, each pull still counts once:
// the second process finds in redispullcounters that the first one has counted the pulls.
func (w *FlushWorker) takeTurn(ctx context.Context) (mine bool, wait time.Duration, err error) {
	if err := w.mendTimes(ctx); err != nil {
		return false, 0, err
	}
	var micros int64
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		WITH turn AS (
			UPDATE redisprocessingstate SET processing_status = 'PROCESSING', error_message = NULL, updated_at = now()
			WHERE last_processed_timestamp <= now() - $1::bigint * interval '1 microsecond'
				AND (processing_status <> 'PROCESSING' OR updated_at < now() - $2::bigint * interval '1 microsecond')
			RETURNING id)
		SELECT EXISTS (SELECT FROM turn), (EXTRACT(EPOCH FROM last_processed_timestamp - now()) * 1000000)::bigint + $1
		FROM redisprocessingstate`, w.opt.Interval.Microseconds(), turnFor.Microseconds()).Scan(&mine, &micros)
	if err != nil {
		return false, 0, fmt.Errorf("looking whether to flush pulls: %w", err)
	}
	// The process that is flushing now may die, so this process asks again within a bounded
	// time.
	return mine, min(max(time.Duration(micros)*time.Microsecond, time.Second), w.opt.Interval, worker.MaxIdle), nil
}

// mendTimes mends the times of a flush that are in the future, since the database's clock was set
// back. Until then no flush would be due. It isn't known when the flush really was, so none
// counts as complete.
func (w *FlushWorker) mendTimes(ctx context.Context) error {
	_, err := w.opt.Stats.Pool.Exec(ctx, `
		UPDATE redisprocessingstate SET updated_at = LEAST(updated_at, now()),
			last_processed_timestamp = CASE WHEN last_processed_timestamp > now() THEN 'epoch' ELSE last_processed_timestamp END
		WHERE GREATEST(updated_at, last_processed_timestamp) > now() + $1::bigint * interval '1 microsecond'`, statsdb.FutureAfter.Microseconds())
	if err != nil {
		return fmt.Errorf("mending the times of flushes: %w", err)
	}
	return nil
}

// run flushes all counters once. If that fails, it records the reason in
// redisprocessingstate.
func (w *FlushWorker) run(ctx context.Context) error {
	// Flushes of one process wait for each other here, and not with a connection in lockCounters: one that
	// recovers needs a second connection.
	if err := w.flushing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer w.flushing.Release(1)
	err := w.flush(ctx)
	if err != nil {
		w.opt.Metrics.flushFailed()
		w.opt.Metrics.keysLeft(math.NaN())
		w.failed(ctx, err)
	}
	return err
}

// failed records in redisprocessingstate why a flush failed, if the database can be reached.
func (w *FlushWorker) failed(ctx context.Context, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := w.opt.Stats.Pool.Exec(ctx,
		"UPDATE redisprocessingstate SET processing_status = 'ERROR', error_message = $1, updated_at = now()", cause.Error()); err != nil {
		w.opt.Logger.WarnContext(ctx, "recording why pulls can't be flushed", "error", err)
	}
}

// flush adds the pulls of all counters in Redis to the statistics, one page of keys after
// another.
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
	w.step("begun")
	if err := w.opt.Redis.raiseEpoch(ctx, n, kept); err != nil {
		return err
	}
	w.step("numbered")
	keys, left, err := w.scan(ctx, func(page []string) (error, error) { return w.page(ctx, n, page) })
	if err = cmp.Or(err, left); err != nil {
		return err
	}
	// If Redis was emptied during the scan, the scan may have missed keys. In that case
	// Redis doesn't have the epoch any more, and raiseEpoch returns an error.
	if err := w.opt.Redis.raiseEpoch(ctx, n, n); err != nil {
		return err
	}
	w.opt.Metrics.keysLeft(float64(keys))
	return w.complete(ctx, n, begun)
}

// scan reads from all Redis servers the keys of counters, calls fn with at most
// FlushOptions.Batch of them at a time, and returns their number. If fn returns an error as
// `err`, scan ends with this error. `left` is the first reason why keys were left for the
// next run, nil if none were: fn has skipped keys and returned the reason as `left`, or a
// server couldn't be read, in which case scan goes on with the next server.
func (w *FlushWorker) scan(ctx context.Context, fn func(keys []string) (left, err error)) (n int, left, err error) {
	var failed error
	err = w.opt.Redis.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); failed == nil; {
			page, next, err := c.Scan(ctx, cursor, counterPrefix+"*", int64(w.opt.Batch)).Result()
			if err != nil {
				left = fmt.Errorf("reading which pulls Redis has: %w", err)
				return nil
			}
			n += len(page)
			for part := range slices.Chunk(page, w.opt.Batch) {
				unread, err := fn(part)
				if left = cmp.Or(left, unread); err != nil {
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
	return n, left, cmp.Or(failed, err)
}

// distinct sorts keys or ids and removes duplicates: a scan of Redis may return a key twice.
func distinct[T cmp.Ordered](list []T) []T {
	slices.Sort(list)
	return slices.Compact(list)
}

// complete records that flush number n, which began at the time `begun`, has added the pulls
// of all counters in Redis to the statistics.
func (w *FlushWorker) complete(ctx context.Context, n int64, begun time.Time) error {
	if _, err := w.opt.Stats.Pool.Exec(ctx, `
		UPDATE redisprocessingstate SET processing_status = 'IDLE', error_message = NULL, updated_at = now(),
			last_processed_timestamp = GREATEST(last_processed_timestamp, $1), redis_flush = GREATEST(redis_flush, $2)`, begun, n); err != nil {
		return fmt.Errorf("recording a flush of pulls: %w", err)
	}
	return w.forget(ctx)
}

// forget deletes, once an hour, the rows of redispullcounters whose counter no complete
// flush has found in Redis for countedFor. It reads the whole table: an index on updated_at
// would make every flush slower.
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

// page adds the pulls of the counters with the given keys to the statistics. If that fails,
// it tries again, up to flushAttempts times. If the connection fails during the commit, the
// next attempt finds in redispullcounters which pulls were counted. `left` is the reason
// why some keys couldn't be read; nil if all were read.
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
		if worker.Sleep(ctx, w.opt.Backoff<<(attempt-1)) != nil {
			break
		}
	}
	w.step("after commit")
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

// count adds the pulls of the counters with the given keys to the statistics, as far as the
// statistics don't have them yet, in one transaction. It reads the counters after this
// transaction has got the lock of lockCounters.
func (w *FlushWorker) count(ctx context.Context, n int64, keys []string) (p counting, err error) {
	keys = distinct(keys)
	repositories := make([]int64, len(keys))
	for i, key := range keys {
		repositories[i] = repositoryOf(key)
	}
	err = w.opt.WithAlive(ctx, distinct(repositories), func(alive statsdb.Living, tx pgx.Tx) error {
		if err := lockCounters(ctx, tx); err != nil {
			return err
		}
		p = counting{}
		p.list, p.invalid, p.left = w.opt.Redis.counters(ctx, keys)
		w.step("read")
		// If Redis was emptied before this read, the lost pulls must be counted from the
		// audit log before any new counter is counted. In that case raiseEpoch returns
		// ErrLost.
		if err := w.opt.Redis.raiseEpoch(ctx, n, n); err != nil || len(p.list) == 0 {
			return err
		}
		has, err := countedOf(ctx, tx, idsOf(p.list))
		if err != nil {
			return err
		}
		sums, err := w.sum(ctx, &p, has, alive)
		if err != nil {
			return err
		}
		if err := sums.WriteFlushed(ctx, tx); err != nil {
			return err
		}
		if err := saveCounted(ctx, tx, p.list); err != nil {
			return err
		}
		w.step("saved")
		if _, err := tx.Exec(ctx, `
			UPDATE redisprocessingstate SET keys_processed_count = keys_processed_count + $1,
				redis_flush = GREATEST(redis_flush, $2), updated_at = now()`, p.flushed+p.gone, n); err != nil {
			return fmt.Errorf("recording a flush of pulls: %w", err)
		}
		w.step("before commit")
		return nil
	})
	return p, err
}

// sum adds up those pulls of the counters in p.list that the statistics don't have yet,
// except pulls of deleted repositories. `has` maps each counter to its row in
// redispullcounters.
func (w *FlushWorker) sum(ctx context.Context, p *counting, has map[counterID]counted, alive statsdb.Living) (statsdb.Sums, error) {
	a := statsdb.NewAdder(alive)
	for _, c := range p.list {
		n, back := c.uncounted(has[idOf(c.key)])
		switch {
		case back:
			w.opt.Logger.ErrorContext(ctx, "Redis was set back, so that pulls are missing", "key", c.key)
			if err := statsdb.Unrecorded(ctx, w.opt.Stats, 0); err != nil {
				return statsdb.Sums{}, err
			}
		case n == 0:
		case !alive.Has(c.repository):
			p.gone++
		default:
			p.flushed++
			for _, d := range c.byDay(n) {
				a.Add(c.repository, c.tag, c.digest, d.Pulls, d.Day, c.last)
			}
		}
	}
	return a.Sums(), nil
}

// settle removes each counter in `list` from its repository's set in Redis, and lets its
// key expire after settledFor. It leaves a counter alone if pulls have been added to it
// since the counter was read.
func (w *FlushWorker) settle(ctx context.Context, list []counter) error {
	calls := make([]*call, len(list))
	for i, c := range list {
		calls[i] = &call{script: settleScript, keys: []string{c.key, uncountedKey(c.repository)}, args: []any{c.count, c.born, int(settledFor.Seconds())}}
	}
	if len(calls) == 0 {
		return nil
	}
	w.opt.Redis.run(ctx, calls)
	w.step("settled")
	for _, c := range calls {
		// If a call has failed, the next flush settles its counter.
		if got, err := c.outcome(); got != Answered {
			return fmt.Errorf("settling pulls in Redis: %w", err)
		}
	}
	return nil
}
