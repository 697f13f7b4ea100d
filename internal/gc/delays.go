package gc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/gc/events"
)

// SetReviewDelays stores the configured review delays in gc_review_after_defaults: `single`
// has the delays of some events by name, and `all` is the delay of every other event. The
// delays apply to events from now on.
//
// The table has, for each event, the delay in force and the configured delay that was
// applied last. If the configuration of an event hasn't changed since, SetReviewDelays
// keeps the delay in force. So when replicas restart, a delay that an operator has set in
// the table stays.
func (c *Collector) SetReviewDelays(ctx context.Context, all time.Duration, single map[string]time.Duration) error {
	delays := map[string]time.Duration{}
	for _, e := range events.WithDelay() {
		delays[e] = all
	}
	for e, d := range single {
		if _, ok := delays[e]; !ok {
			return fmt.Errorf("setting review delays: unknown event %q: one of %v", e, events.WithDelay())
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
	var kept []string
	err := c.db.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO gc_review_after_defaults AS d (event, value, configured)
			SELECT event, delay, delay FROM unnest($1::text[], $2::interval[]) AS c (event, delay) ORDER BY event
			ON CONFLICT (event) DO UPDATE SET
				value = CASE WHEN d.configured IS NULL THEN d.value ELSE EXCLUDED.value END,
				configured = EXCLUDED.configured
			WHERE d.configured IS DISTINCT FROM EXCLUDED.configured`, names, values)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT event || ' ' || value FROM gc_review_after_defaults
			WHERE event = ANY ($1) AND value <> configured ORDER BY event`, names)
		if err != nil {
			return err
		}
		kept, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return fmt.Errorf("setting review delays: %w", err)
	}
	if len(kept) > 0 {
		c.log.InfoContext(ctx, "review delays that were changed in the table gc_review_after_defaults stay as they are, whatever the setting gc.review_after says", "delays", kept)
	}
	return nil
}
