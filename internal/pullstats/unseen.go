package pullstats

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrUnseen says that Redis counts pulls, or has unflushed pulls, and that this process
// can't read them because it has no redis.url.
var ErrUnseen = errors.New("pulls are counted in Redis, which this process can't read, so it can't tell what was used: " +
	"set redis.url here too; or, where Redis counts no more, run \"purser pulls flush\" on a process that has it; " +
	"or, where it is no more, give up what it had with \"purser pulls reset --redis\"")

// unseen says whether this process has no Redis client although Redis counts the pulls of
// some process or may have pulls that weren't flushed to the statistics.
func (w *SyncWorker) unseen(ctx context.Context) (unseen bool, err error) {
	if w.opt.Redis != nil {
		return false, nil
	}
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pullrecorders
			WHERE redis AND (ended_at IS NULL OR ended_at >= (SELECT last_processed_timestamp FROM redisprocessingstate)))`).Scan(&unseen)
	if err != nil {
		return false, fmt.Errorf("asking whether pulls are counted in Redis: %w", err)
	}
	return unseen, nil
}

// AbandonRedis gives up the pulls in a Redis that no longer exists. It records that
// statistics are complete only from now on. It doesn't affect processes that still count in
// Redis.
func (w *SyncWorker) AbandonRedis(ctx context.Context) error {
	return w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM pullrecorders WHERE redis AND ended_at IS NOT NULL"); err != nil {
			return fmt.Errorf("giving up the pulls in Redis: %w", err)
		}
		_, err := tx.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET recorded_since = GREATEST(recorded_since, now())")
		if err != nil {
			return fmt.Errorf("giving up the pulls in Redis: %w", err)
		}
		return nil
	})
}
