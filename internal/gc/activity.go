package gc

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/clock"
)

// Activity counts what garbage collection did.
type Activity struct {
	ManifestsReviewed, ManifestsDeleted int64
	BlobsReviewed, BlobsDeleted         int64
	ObjectsSwept, BytesSwept            int64
}

// RecordActivity adds the numbers in `a` to the counts of the current minute.
func (c *Collector) RecordActivity(ctx context.Context, a Activity) error {
	_, err := c.opt.Reviews.Pool.Exec(ctx, `
		INSERT INTO gc_activity AS g (minute, manifests_reviewed, manifests_deleted, blobs_reviewed, blobs_deleted,
			objects_swept, bytes_swept)
		VALUES (date_trunc('minute', now()), $1, $2, $3, $4, $5, $6)
		ON CONFLICT (minute) DO UPDATE SET
			manifests_reviewed = g.manifests_reviewed + EXCLUDED.manifests_reviewed,
			manifests_deleted = g.manifests_deleted + EXCLUDED.manifests_deleted,
			blobs_reviewed = g.blobs_reviewed + EXCLUDED.blobs_reviewed,
			blobs_deleted = g.blobs_deleted + EXCLUDED.blobs_deleted,
			objects_swept = g.objects_swept + EXCLUDED.objects_swept,
			bytes_swept = LEAST(g.bytes_swept::numeric + EXCLUDED.bytes_swept, 9223372036854775807)::bigint`,
		a.ManifestsReviewed, a.ManifestsDeleted, a.BlobsReviewed, a.BlobsDeleted, a.ObjectsSwept, a.BytesSwept)
	if err != nil {
		return fmt.Errorf("recording counts of collected garbage: %w", err)
	}
	return nil
}

// DayReclaimed is what garbage collection deleted on one day, UTC.
type DayReclaimed struct {
	Day time.Time `json:"day"` // its beginning
	Reclaimed
}

// ActivityDays is the number of days for which counts are kept.
const ActivityDays = 31

// ReclaimedByDay returns what garbage collection deleted on each of the last `days` days, of which
// today is the last. Days on which it deleted nothing are left out. There is one row per minute,
// so it reads at most 1440 rows for each day.
func (c *Collector) ReclaimedByDay(ctx context.Context, days int) ([]DayReclaimed, error) {
	rows, err := c.db.Pool.Query(ctx, `
		SELECT date_trunc('day', minute, 'UTC'), sum(manifests_deleted)::bigint, sum(blobs_deleted)::bigint,
			sum(objects_swept)::bigint, LEAST(sum(bytes_swept), 9223372036854775807)::bigint
		FROM gc_activity
		WHERE minute >= date_trunc('day', now(), 'UTC') - make_interval(days => $1)
			AND (manifests_deleted > 0 OR blobs_deleted > 0 OR objects_swept > 0)
		GROUP BY 1 ORDER BY 1`, days-1)
	if err != nil {
		return nil, fmt.Errorf("reading counts of collected garbage: %w", err)
	}
	list := []DayReclaimed{}
	var d DayReclaimed
	_, err = pgx.ForEachRow(rows, []any{&d.Day, &d.Manifests, &d.Blobs, &d.Objects, &d.Bytes}, func() error {
		d.Day = d.Day.UTC()
		list = append(list, d)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading counts of collected garbage: %w", err)
	}
	return list, nil
}

// ForgetActivity deletes counts that are older than ActivityDays. It returns an error that wraps
// worker.ErrRest, and deletes nothing, while nothing may be deleted for its age.
func (c *Collector) ForgetActivity(ctx context.Context) error {
	err := c.db.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM gc_activity WHERE minute < now() - make_interval(days => $1)", ActivityDays); err != nil {
			return err
		}
		return clock.CheckTx(ctx, tx, c.opt.CheckTime)
	})
	if err != nil {
		return fmt.Errorf("deleting old counts of collected garbage: %w", err)
	}
	return nil
}
