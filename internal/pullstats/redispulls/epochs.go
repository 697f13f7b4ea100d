package redispulls

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// ErrLost says that Redis has lost data that it was given.
//
//lint:ignore ST1005 Redis is a name
var ErrLost = errors.New("Redis has lost pulls, so it can't be told what was used lately")

// epoch has the numbers of two flushes: `redis` is the highest number that Redis has;
// `stats` is the highest number that Redis must have, according to the statistics'
// database, because a flush has stored it there.
type epoch struct{ redis, stats int64 }

// lost says whether Redis was emptied or restored to an older state.
func (e epoch) lost() bool { return e.redis < e.stats }

// epoch reads the epoch in the database and then that in Redis. In this order, since the
// number in Redis only grows: so a flush between the two reads doesn't look like a loss of
// data.
func (r *Client) epoch(ctx context.Context, c redis.UniversalClient) (e epoch, err error) {
	if err := r.stats.Pool.QueryRow(ctx, "SELECT redis_flush FROM redisprocessingstate").Scan(&e.stats); err != nil {
		return e, fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	if e.redis, err = c.Get(ctx, epochKey).Int64(); err != nil && !errors.Is(err, redis.Nil) {
		return e, fmt.Errorf("reading how far pulls in Redis were flushed: the key %s should be a number: %w", epochKey, err)
	}
	return e, nil
}

// raiseEpoch raises the epoch in Redis to n. Before that, Redis must have a number of at
// least `kept`; if it has a lower one, it has lost data, and raiseEpoch returns
// ErrLost.
func (r *Client) raiseEpoch(ctx context.Context, n, kept int64) error {
	c := &call{script: epochScript, keys: []string{epochKey}, args: []any{n, kept}}
	r.run(ctx, []*call{c})
	if got, err := c.outcome(); got != Answered {
		return fmt.Errorf("telling Redis of flush %d: %w", n, err)
	}
	if raised, err := c.cmd.Int(); err != nil || raised == 0 {
		return fmt.Errorf("telling Redis of flush %d: %w", n, cmp.Or(err, ErrLost))
	}
	return nil
}

// reconcileEpochs compares the epochs in Redis and in the database. If Redis has lost data,
// it has the lost pulls counted from the audit log (recover). If the database was restored
// to an older state, it records that the statistics are complete only from now on
// (restored).
func (w *FlushWorker) reconcileEpochs(ctx context.Context) error {
	c, err := w.opt.Redis.connect(ctx)
	if err != nil {
		return err
	}
	if err := w.opt.Redis.own(ctx, c); err != nil { // Redis may have been emptied and given to another registry
		return fmt.Errorf("reaching Redis at %s: %w", w.opt.Redis.Address(), err)
	}
	e, err := w.opt.Redis.epoch(ctx, c)
	if err == nil && e.lost() {
		err = w.recover(ctx, c)
	}
	if err != nil {
		return err
	}
	return w.restored(ctx, e.redis)
}

// restored checks whether the statistics' database was restored to an older state: then
// Redis has an epoch (`known`) that is greater than the number of every flush in the
// database. In that case it records that statistics are complete only from now on, and lets
// all further flushes get numbers greater than `known`. The flush that follows counts the
// pulls that the database has lost, as far as their counters are still in Redis. Pulls of
// counters that have expired stay missing.
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
	if err := statsdb.Unrecorded(ctx, w.opt.Stats, 0); err != nil {
		return err
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, "UPDATE redisprocessingstate SET flush = GREATEST(flush, $1)", known); err != nil {
		return fmt.Errorf("numbering flushes of a database that was restored: %w", err)
	}
	return nil
}
