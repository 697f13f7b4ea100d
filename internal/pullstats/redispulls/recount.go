package redispulls

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// recountMargin is how long a pull may wait before Redis counts it. Pulls that Redis has
	// counted since the last complete flush may be older than this flush by recountMargin,
	// so a recount searches the audit log from that earlier time on.
	recountMargin = 10 * time.Minute
	// recountMost is how far back a recount searches the audit log for pulls that Redis has
	// lost.
	recountMost = 24 * time.Hour
	// recountPage is how many of the audit log's entries a recount checks at once.
	recountPage = 2000
	// recountWait is how long a recount waits for processes to write their pulls to the
	// audit log.
	recountWait = 10 * time.Second
	// recountLook is how often a recount looks whether they have.
	recountLook = 250 * time.Millisecond
)

//lint:ignore ST1005 Redis is a name
var errUnwritten = errors.New("Redis has lost pulls, which are counted from the log when all processes have written theirs")

// recover is called when Redis has lost pulls. It marks the lost pulls that the audit log
// has, so that pullstats.SyncWorker counts them, and then stores the database's epoch in Redis
// again. It holds the lock of lockCounters, so only one process at a time recovers, and the
// next one finds the epochs equal and does nothing.
func (w *FlushWorker) recover(ctx context.Context, c redis.UniversalClient) error {
	return w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if err := statsdb.Unhurried(ctx, tx); err != nil {
			return err
		}
		if err := lockCounters(ctx, tx); err != nil {
			return err
		}
		e, err := w.opt.Redis.epoch(ctx, c)
		if err != nil || !e.lost() { // another process has recovered already
			return err
		}
		w.opt.Logger.ErrorContext(ctx, "Redis has lost pulls: it was emptied, or set back", "flush", e.redis, "flush_of_database", e.stats)
		all, err := w.recount(ctx, tx)
		if err != nil {
			return err
		}
		// If Redis was restored to an older state, nothing shows which pulls are missing in
		// its counters.
		if !all || e.redis > 0 {
			if err := statsdb.Unrecorded(ctx, w.opt.Stats, 0); err != nil {
				return err
			}
		}
		return w.opt.Redis.raiseEpoch(ctx, e.stats, 0)
	})
}

// recount marks the pulls that Redis has lost, so that pullstats.SyncWorker counts them from the
// audit log. It returns whether the log has all of them.
//
// Redis gives each pull that it counts a sequence number, which grows within a counter and
// is stored in the pull's entry in the audit log. The table redispullcounters has, for each
// counter, the number of the last pull that is in the statistics. So a pull in the log is
// in the statistics if its number isn't greater than the number in the counter's row. It is
// in Redis if its number isn't less than the counter's field `born`, the number of the
// first pull that the counter has. If it is in neither, it is lost. recount marks a lost
// pull to be counted from the log, and gives its entry a position after the watermark, so
// that the SyncWorker reads and counts it once, like a new one. An interrupted recount can
// be repeated: it no longer sees the entries that are marked.
//
// No flush may count pulls from after the loss before the recount is over: it would raise
// the number in a counter's row above the numbers of lost pulls, which would then seem to be
// in the statistics. During the recount no flush counts anything, since the caller of recount
// holds the lock of lockCounters. Before the recount, Redis doesn't have the epoch: a flush
// that finds this after it has read counters doesn't count them, and only the caller of
// recount restores the epoch.
func (w *FlushWorker) recount(ctx context.Context, tx pgx.Tx) (all bool, err error) {
	from, all, err := w.recountFrom(ctx)
	if err != nil {
		return false, err
	}
	log := audit.New(w.opt.Log)
	for after := (audit.Place{Time: from}); ; {
		page, next, err := log.CountedByRedis(ctx, after, recountPage)
		if err != nil {
			return false, err
		}
		lost, unknown, err := w.lost(ctx, tx, page)
		if err != nil {
			return false, err
		}
		if unknown {
			all = false
		}
		if err := log.CountAgain(ctx, lost); err != nil {
			return false, err
		}
		if len(lost) > 0 {
			w.opt.Logger.WarnContext(ctx, "pulls that Redis has lost are counted from the audit log", "pulls", len(lost))
		}
		if next == (audit.Place{}) {
			return all, nil
		}
		after = next
	}
}

// recountFrom waits until all processes have written their pulls to the audit log. Then it
// returns the time from which on Redis may have lost pulls, and whether the log has all
// pulls since then. Error: errUnwritten if a process takes longer than recountWait.
func (w *FlushWorker) recountFrom(ctx context.Context) (from time.Time, all bool, err error) {
	var flushed, now time.Time
	if err := w.opt.Stats.Pool.QueryRow(ctx, "SELECT last_processed_timestamp, clock_timestamp() FROM redisprocessingstate").Scan(&flushed, &now); err != nil {
		return from, false, fmt.Errorf("reading how pulls in Redis are flushed: %w", err)
	}
	for deadline := time.Now().Add(recountWait); ; {
		var waits bool
		err := w.opt.Stats.Pool.QueryRow(ctx, `
			SELECT count(*) FILTER (WHERE written_to < $1 AND ended_at IS NULL AND seen_at > now() - $2::bigint * interval '1 microsecond') > 0,
				count(*) > 0 AND bool_and(logged) FROM pullrecorders WHERE redis AND (ended_at IS NULL OR ended_at >= $3)`,
			now, statsdb.GoneAfter.Microseconds(), flushed).Scan(&waits, &all)
		if err != nil {
			return from, false, fmt.Errorf("asking up to when pulls are written: %w", err)
		}
		if !waits {
			break
		}
		if time.Now().After(deadline) {
			return from, false, errUnwritten
		}
		if err := worker.Sleep(ctx, recountLook); err != nil {
			return from, false, err
		}
	}
	if from = flushed.Add(-recountMargin); from.Before(now.Add(-recountMost)) {
		return now.Add(-recountMost), false, nil
	}
	return from, all, nil
}

// lost returns those of the pulls in `page` that are neither in the statistics nor in
// Redis. `unknown` says that this can't be decided for some pulls, because Redis never
// answered whether it had counted them.
func (w *FlushWorker) lost(ctx context.Context, tx pgx.Tx, page []audit.RedisPull) (lost []audit.RedisPull, unknown bool, err error) {
	var open []audit.RedisPull
	var keys []string
	var ids []counterID
	for _, p := range page {
		switch {
		case p.RepositoryID == 0: // its repository is deleted, so it isn't counted
			continue
		case p.Seq == 0:
			unknown = true // Redis didn't answer
			continue
		}
		key := counterKey(p.RepositoryID, p.Tag, p.Digest)
		open, keys, ids = append(open, p), append(keys, key), append(ids, idOf(key))
	}
	if len(open) == 0 {
		return nil, unknown, nil
	}
	has, err := countedOf(ctx, tx, ids)
	if err != nil {
		return nil, false, err
	}
	born, err := w.opt.Redis.born(ctx, keys)
	if err != nil {
		return nil, false, err
	}
	for i, p := range open {
		if p.Seq > has[ids[i]].seq && (born[i] == 0 || p.Seq < born[i]) {
			lost = append(lost, p)
		}
	}
	return lost, unknown, nil
}

// born returns, for each key, the sequence number of the counter's first pull; 0 for keys
// that don't exist in Redis.
func (r *Client) born(ctx context.Context, keys []string) ([]int64, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	p := c.Pipeline()
	cmds := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		cmds[i] = p.HGet(ctx, key, "born")
	}
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("asking Redis what it has: %w", err)
	}
	list := make([]int64, len(keys))
	for i, cmd := range cmds {
		n, err := cmd.Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("asking Redis what it has: %w", err)
		}
		list[i] = n
	}
	return list, nil
}
