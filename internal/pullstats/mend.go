package pullstats

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// announcedAfter is how far in the future recorded_since and checks_since may be: a process
// that doesn't record moves them ahead (statsdb.Unrecorded).
const announcedAfter = 2 * time.Hour

// mendTimes sets the times in pullstatisticsprocessingstate that are in the future to the present
// time: they were written before the database's clock was set back. What they stand for has
// happened by now, so statistics are complete from now on. Requests that wait to be joined get
// the present time too; they would otherwise wait for their own time.
func (w *SyncWorker) mendTimes(ctx context.Context) error {
	ahead := statsdb.FutureAfter.Microseconds()
	done, err := w.opt.Stats.Pool.Exec(ctx, `
		UPDATE pullstatisticsprocessingstate s SET
			recorded_since = CASE WHEN s.recorded_since > announced THEN now() ELSE s.recorded_since END,
			checks_since = CASE WHEN s.checks_since > announced THEN now() ELSE s.checks_since END,
			history_since = CASE WHEN s.history_since > now() THEN now() ELSE s.history_since END,
			uncounted_at = CASE WHEN s.uncounted_at > now() THEN now() ELSE s.uncounted_at END,
			last_processed_timestamp = CASE WHEN s.last_processed_timestamp > now() THEN now() ELSE s.last_processed_timestamp END,
			updated_at = CASE WHEN s.updated_at > now() THEN now() ELSE s.updated_at END
		FROM (SELECT now() + $1::bigint * interval '1 microsecond' AS latest, now() + $2::bigint * interval '1 microsecond' AS announced) l
		WHERE GREATEST(s.recorded_since, s.checks_since) > announced
			OR GREATEST(s.history_since, s.uncounted_at, s.last_processed_timestamp, s.updated_at) > latest`, ahead, announcedAfter.Microseconds())
	if err != nil {
		return fmt.Errorf("mending times in the future: %w", err)
	}
	if done.RowsAffected() > 0 {
		w.log.WarnContext(ctx, "the database's clock was set back: times of the statistics of pulls that were in the future are set to the present")
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, `
		UPDATE pullstatisticspending SET time = now() WHERE time > now() + $1::bigint * interval '1 microsecond'`, ahead); err != nil {
		return fmt.Errorf("mending times in the future: %w", err)
	}
	return nil
}

// mendAll also sets the last uses of tags and manifests that are in the future to the present
// time. Until then such tags count as used, whether or not anybody uses them.
func (w *SyncWorker) mendAll(ctx context.Context) error {
	if err := w.mendTimes(ctx); err != nil {
		return err
	}
	return w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if err := statsdb.Unhurried(ctx, tx); err != nil {
			return err
		}
		for _, sql := range []string{
			`UPDATE tagpullstatistics SET last_tag_pull_date = CASE WHEN last_tag_pull_date > now() THEN now() ELSE last_tag_pull_date END, last_check_date = CASE WHEN last_check_date > now() THEN now() ELSE last_check_date END
			WHERE GREATEST(last_tag_pull_date, last_check_date) > now() + $1::bigint * interval '1 microsecond'`,
			`UPDATE manifestpullstatistics SET last_pull_date = CASE WHEN last_pull_date > now() THEN now() ELSE last_pull_date END, last_tag_pull_date = CASE WHEN last_tag_pull_date > now() THEN now() ELSE last_tag_pull_date END,
				last_check_date = CASE WHEN last_check_date > now() THEN now() ELSE last_check_date END
			WHERE GREATEST(last_pull_date, last_tag_pull_date, last_check_date) > now() + $1::bigint * interval '1 microsecond'`,
		} {
			if _, err := tx.Exec(ctx, sql, statsdb.FutureAfter.Microseconds()); err != nil {
				return fmt.Errorf("mending last uses in the future: %w", err)
			}
		}
		return nil
	})
}
