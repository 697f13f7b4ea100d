package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// errRedisLost says that Redis has lost data that it was given.
var errRedisLost = errors.New("Redis has lost pulls, so it can't be told what was used lately")

// epoch has two numbers of flushes: redis is the newest one that Redis has, stats the
// newest one that, according to the database, Redis has had.
type epoch struct{ redis, stats int64 }

// lost says whether Redis was emptied, or set back to an older state.
func (e epoch) lost() bool { return e.redis < e.stats }

// epochs returns the epoch, and the epoch of the older version (upgrade.go). It asks the
// database first: Redis's number only grows, so a flush between the two reads doesn't look
// like a loss.
func (r *Redis) epochs(ctx context.Context, c redis.UniversalClient) (now, older epoch, err error) {
	if err := r.stats.Pool.QueryRow(ctx, "SELECT redis_flush, redis_epoch FROM redisprocessingstate").Scan(&now.stats, &older.stats); err != nil {
		return now, older, fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	for key, to := range map[string]*int64{epochKey: &now.redis, olderEpochKey: &older.redis} {
		if *to, err = c.Get(ctx, key).Int64(); err != nil && !errors.Is(err, redis.Nil) {
			return now, older, fmt.Errorf("reading how far pulls in Redis were flushed: the key %s should be a number: %w", key, err)
		}
	}
	return now, older, nil
}

// raiseEpoch raises the number of a flush that Redis has under key to n, provided that
// Redis has at least the number kept; otherwise Redis has lost data. Error: errRedisLost.
func (r *Redis) raiseEpoch(ctx context.Context, key string, n, kept int64) error {
	c := &call{script: epochScript, keys: []string{key}, args: []any{n, kept}}
	r.run(ctx, []*call{c})
	if got, err := c.outcome(); got != answered {
		return fmt.Errorf("telling Redis of flush %d: %w", n, err)
	}
	if raised, err := c.cmd.Int(); err != nil || raised == 0 {
		return fmt.Errorf("telling Redis of flush %d: %w", n, cmp.Or(err, errRedisLost))
	}
	return nil
}

// reconcileEpochs compares the epochs in Redis and in the database, and recovers if either
// of the two has lost data.
func (w *FlushWorker) reconcileEpochs(ctx context.Context) error {
	c, err := w.opt.Redis.connect(ctx)
	if err != nil {
		return err
	}
	if err := w.opt.Redis.own(ctx, c); err != nil { // Redis may have been emptied and given to another registry
		return fmt.Errorf("reaching Redis at %s: %w", w.opt.Redis.Address(), err)
	}
	now, older, err := w.opt.Redis.epochs(ctx, c)
	if err == nil && (now.lost() || older.lost()) {
		err = w.recover(ctx, c)
	}
	if err != nil {
		return err
	}
	return w.restored(ctx, now.redis)
}

// restored handles a database that was restored from a backup: Redis knows a flush (known)
// that is newer than every flush the database knows. Pulls of counters that are still in
// Redis are counted again; those of counters that have expired are missing. Later flushes
// get greater numbers.
func (w *FlushWorker) restored(ctx context.Context, known int64) error {
	var newest int64
	if err := w.opt.Stats.Pool.QueryRow(ctx, "SELECT flush FROM redisprocessingstate").Scan(&newest); err != nil {
		return fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	if known <= newest {
		return nil
	}
	w.opt.Logger.ErrorContext(ctx, "the database of the statistics was restored, and pulls that were counted after that state may be missing",
		"flush", known, "flush_of_database", newest)
	if err := Unrecorded(ctx, w.opt.Stats, 0); err != nil {
		return err
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, "UPDATE redisprocessingstate SET flush = GREATEST(flush, $1)", known); err != nil {
		return fmt.Errorf("numbering flushes of a database that was restored: %w", err)
	}
	return nil
}
