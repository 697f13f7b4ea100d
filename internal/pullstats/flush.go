package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// flushAttempts is how often the transaction of a batch is tried.
	flushAttempts = 4
	// settledFor is how long a key stays in Redis that has nothing to count. It must be
	// longer than a claim may be under way.
	settledFor = time.Minute
	// turnFor is how long a run without visible progress is taken to be still running.
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
	opt     FlushOptions
	batches batches
	loop    *worker.Loop
	due     time.Time         // used by the loop alone: when to look whether a run is due
	crash   func(step string) // for tests: steps at which the process may end
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
	w := &FlushWorker{opt: o, batches: batches{o.Stats}, crash: func(string) {}}
	w.loop = worker.New(worker.Options{
		Name: "flush of pulls in Redis", Batch: w.round, Next: w.next, Timeout: time.Hour, Log: o.Logger, Metrics: o.Worker,
	})
	return w, nil
}

// Run flushes until ctx ends, and returns nil when the last batch is over.
func (w *FlushWorker) Run(ctx context.Context) error { return w.loop.Run(ctx) }

// round does a run, when one is due and no other process is running.
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

// next returns how long it is until the next look.
func (w *FlushWorker) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// Flush counts now the pulls that Redis has.
func (w *FlushWorker) Flush(ctx context.Context) error {
	if _, err := w.opt.Stats.Pool.Exec(ctx,
		"UPDATE redisprocessingstate SET processing_status = 'PROCESSING', error_message = NULL, updated_at = now()"); err != nil {
		return fmt.Errorf("beginning to flush pulls: %w", err)
	}
	return w.run(ctx)
}

// takeTurn returns whether this process should run now, and otherwise when to ask again.
// Two processes that run at once do no harm: each key is claimed by one of them.
func (w *FlushWorker) takeTurn(ctx context.Context) (mine bool, wait time.Duration, err error) {
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
	// If another process is running, it may die: so ask again within a bounded time.
	return mine, min(max(time.Duration(micros)*time.Microsecond, time.Second), w.opt.Interval, worker.MaxIdle), nil
}

// run flushes all keys once, and records the outcome.
func (w *FlushWorker) run(ctx context.Context) error {
	var begun time.Time
	if err := w.opt.Stats.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&begun); err != nil {
		return fmt.Errorf("beginning to flush pulls: %w", err)
	}
	err := w.flush(ctx)
	if err != nil {
		w.opt.Metrics.flushFailed()
		w.failed(ctx, err)
		return err
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, `
		UPDATE redisprocessingstate SET processing_status = 'IDLE', error_message = NULL, updated_at = now(),
			last_processed_timestamp = GREATEST(last_processed_timestamp, $1)`, begun); err != nil {
		return fmt.Errorf("recording a flush of pulls: %w", err)
	}
	if err := w.batches.forgetApplied(ctx); err != nil {
		return err
	}
	return w.batches.sweep(ctx)
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

// flush goes through all keys, a page at a time.
func (w *FlushWorker) flush(ctx context.Context) error {
	if err := w.agree(ctx); err != nil {
		return err
	}
	f := &flushing{w: w}
	keys := 0
	// If one cluster node is down, its keys are skipped and those of the others flushed.
	err := w.opt.Redis.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			page, next, err := c.Scan(ctx, cursor, pullPrefix+"*", int64(w.opt.Batch)).Result()
			if err != nil {
				f.left = fmt.Errorf("reading which pulls Redis has: %w", err)
				return nil
			}
			keys += len(page)
			if err := f.page(ctx, page); err != nil {
				return err
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
	if err = f.close(ctx, err); err == nil {
		w.opt.Metrics.keysLeft(keys)
	}
	return err
}

// agree compares the epochs, the newest batch numbers, that Redis and the database have
// stored. It recovers if either has lost data.
func (w *FlushWorker) agree(ctx context.Context) error {
	c, err := w.opt.Redis.connect(ctx)
	if err != nil {
		return err
	}
	if err := w.opt.Redis.own(ctx, c); err != nil { // Redis may have been emptied and given to another registry
		return fmt.Errorf("reaching Redis at %s: %w", w.opt.Redis.Address(), err)
	}
	known, kept, err := w.opt.Redis.epochs(ctx, c)
	if err != nil {
		return err
	}
	if known < kept {
		if err := w.recover(ctx, c); err != nil {
			return err
		}
	}
	if err := w.restored(ctx, known); err != nil || kept > 0 {
		return err
	}
	return w.acquaint(ctx)
}

// restored detects that Redis knows of a batch that the database doesn't: the database was
// restored, and pulls that later batches had added are gone.
func (w *FlushWorker) restored(ctx context.Context, known int64) error {
	newest, err := w.batches.newest(ctx)
	if err != nil || known <= newest {
		return err
	}
	w.opt.Logger.ErrorContext(ctx, "the database of the statistics was restored, and pulls that were counted after that state are missing",
		"batch", known, "batch_of_database", newest)
	if err := Unrecorded(ctx, w.opt.Stats, 0); err != nil {
		return err
	}
	return w.batches.beyond(ctx, newest, known)
}

// acquaint stores a first batch number in Redis. Without it, a Redis that was emptied
// before the first flush couldn't be told from a new one.
func (w *FlushWorker) acquaint(ctx context.Context) error {
	n, _, err := w.batches.open(ctx)
	if err != nil {
		return err
	}
	if _, err := w.batches.abandon(ctx, n); err != nil { // this batch claims nothing
		return err
	}
	if err := w.opt.Redis.raiseEpoch(ctx, n, 0); err != nil {
		return err
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, "UPDATE redisprocessingstate SET redis_epoch = GREATEST(redis_epoch, $1)", n); err != nil {
		return fmt.Errorf("beginning to flush pulls: %w", err)
	}
	return nil
}

// epochs returns the newest batch number that Redis has, and the newest that the database
// knows Redis to have had. The database is asked first, since Redis's number only grows.
func (r *Redis) epochs(ctx context.Context, c redis.UniversalClient) (redisHas, statsHas int64, err error) {
	if err := r.stats.Pool.QueryRow(ctx, "SELECT redis_epoch FROM redisprocessingstate").Scan(&statsHas); err != nil {
		return 0, 0, fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	text, err := c.Get(ctx, epochKey).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, 0, fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	if text != "" {
		if redisHas, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, 0, fmt.Errorf("the key %s of Redis should be a number: %w", epochKey, err)
		}
	}
	return redisHas, statsHas, nil
}

// raiseEpoch stores a batch number in Redis, provided that Redis has kept the number which
// it was given before. Error: errRedisLost.
func (r *Redis) raiseEpoch(ctx context.Context, n, kept int64) error {
	c := &call{script: epochScript, key: epochKey, args: []any{n, kept}}
	r.run(ctx, []*call{c})
	if got, err := c.outcome(); got != answered {
		return fmt.Errorf("telling Redis of flush %d: %w", n, err)
	}
	if raised, err := c.cmd.Int(); err != nil || raised == 0 {
		return fmt.Errorf("telling Redis of flush %d: %w", n, cmp.Or(err, errRedisLost))
	}
	return nil
}

// claimed is a key's count as a batch has claimed it.
type claimed struct {
	key        string
	repository int64
	tag        string
	digest     oci.Digest
	count      int64
	last       time.Time
	seq        int64 // of the last pull in it; 0: the key has no sequence numbers
}

// parseClaim reads the answer of claimScript to the batch that has the claim.
func parseClaim(key string, fields []any) (c claimed, err error) {
	text := make([]string, len(fields))
	for i, f := range fields {
		text[i], _ = f.(string)
	}
	c = claimed{key: key, tag: text[4]}
	if c.count, err = strconv.ParseInt(text[1], 10, 64); err != nil {
		return c, err
	}
	if c.last, err = parseRedisTime(text[2]); err != nil {
		return c, err
	}
	if c.repository, err = strconv.ParseInt(text[3], 10, 64); err != nil {
		return c, err
	}
	if c.seq, err = strconv.ParseInt(text[7], 10, 64); err != nil {
		return c, err
	}
	if c.digest, err = oci.ParseDigest(text[5]); err != nil {
		return c, err
	}
	if text[6] == "tag" || c.tag != "" {
		err = oci.ValidateTag(c.tag)
	}
	return c, err
}

// addUp sums claims, without those of deleted repositories, which it counts in gone.
func addUp(list []claimed, alive map[int64]bool) (c counts, gone int) {
	a := newAdder()
	for _, p := range list {
		if !alive[p.repository] {
			gone++
			continue
		}
		a.add(p.repository, p.tag, p.digest, p.count, p.last)
	}
	return a.counts(), gone
}

// write does the transaction of a batch and returns the batch's state: batchApplied, or if
// the batch was no longer open the state that it had.
func (w *FlushWorker) write(ctx context.Context, n int64, list []claimed) (state string, gone int, err error) {
	ids := make([]int64, 0, len(list))
	for _, c := range list {
		ids = append(ids, c.repository)
	}
	err = w.opt.withAlive(ctx, sorted(ids), func(alive map[int64]bool, tx pgx.Tx) error {
		var sum counts
		sum, gone = addUp(list, alive)
		if state, err = w.batches.apply(ctx, tx, n, list); err != nil || state != "" {
			return err
		}
		if err := sum.writeFlushed(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			UPDATE redisprocessingstate SET keys_processed_count = keys_processed_count + $1,
				redis_epoch = GREATEST(redis_epoch, $2), updated_at = now()`, len(list), n); err != nil {
			return fmt.Errorf("recording a flush of pulls: %w", err)
		}
		w.crash("before commit")
		return nil
	})
	w.crash("after commit")
	if err == nil && state == "" {
		state = batchApplied
	}
	return state, gone, err
}
