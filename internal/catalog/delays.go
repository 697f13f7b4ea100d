package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// ReviewEvents are the events after which something is queued for review.
var ReviewEvents = []string{
	"blob_upload", "manifest_upload", "manifest_delete", "layer_delete", "manifest_list_delete",
	"tag_delete", "tag_switch", "subject_delete", "blob_delete",
}

// SetReviewDelays makes the delay of each event in events, and all for every
// other, the ones in force, from the next event on.
func (c *Catalog) SetReviewDelays(ctx context.Context, all time.Duration, events map[string]time.Duration) error {
	delays := make(map[string]time.Duration, len(ReviewEvents))
	for _, e := range ReviewEvents {
		delays[e] = all
	}
	for e, d := range events {
		if _, ok := delays[e]; !ok {
			return fmt.Errorf("setting review delays: unknown event %q: one of %v", e, ReviewEvents)
		}
		delays[e] = d
	}
	names := slices.Sorted(maps.Keys(delays))
	values := make([]time.Duration, len(names))
	for i, e := range names {
		if values[i] = delays[e]; values[i] < 0 {
			return fmt.Errorf("setting review delays: %s: a delay can't be negative", e)
		}
	}
	err := c.db.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO gc_review_after_defaults AS d (event, value)
			SELECT * FROM unnest($1::text[], $2::interval[]) ORDER BY 1
			ON CONFLICT (event) DO UPDATE SET value = EXCLUDED.value WHERE d.value <> EXCLUDED.value`, names, values)
		return err
	})
	if err != nil {
		return fmt.Errorf("setting review delays: %w", err)
	}
	return nil
}
