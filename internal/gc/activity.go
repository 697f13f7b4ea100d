package gc

import (
	"context"
	"fmt"
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

// ForgetActivity deletes counts that are more than a month old.
func (c *Collector) ForgetActivity(ctx context.Context) error {
	if _, err := c.db.Pool.Exec(ctx, "DELETE FROM gc_activity WHERE minute < now() - interval '31 days'"); err != nil {
		return fmt.Errorf("deleting old counts of collected garbage: %w", err)
	}
	return nil
}
