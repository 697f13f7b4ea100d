package statsdb

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/db"
)

const (
	// GoneAfter is how long a process with unwritten pulls may go without reporting before
	// it counts as killed. (Statistics count as incomplete already after 15 s without a report.)
	GoneAfter = time.Minute
	// FutureAfter is how far in the future a stored time may be, since clocks differ a little.
	FutureAfter = 10 * time.Minute
)

// Unrecorded records that statistics are complete only from the time `now + d` on. A process
// that answers pulls without recording them must call Unrecorded again before that time has
// come. With d = 0 the caller says that pulls from before now may be missing.
func Unrecorded(ctx context.Context, stats *db.DB, d time.Duration) error {
	_, err := stats.Pool.Exec(ctx, `
		INSERT INTO pullstatisticsprocessingstate AS s (recorded_since) VALUES (now() + $1::bigint * interval '1 microsecond')
		ON CONFLICT (id) DO UPDATE SET recorded_since = GREATEST(s.recorded_since, EXCLUDED.recorded_since)`, d.Microseconds())
	if err != nil {
		return fmt.Errorf("telling that pulls aren't recorded: %w", err)
	}
	return nil
}

// Unchecked records that last-used times include HEAD requests only from the time `now + d`
// on. A process that answers HEAD requests without recording them must call Unchecked again
// before that time has come.
func Unchecked(ctx context.Context, stats *db.DB, d time.Duration) error {
	_, err := stats.Pool.Exec(ctx,
		"UPDATE pullstatisticsprocessingstate SET checks_since = GREATEST(checks_since, now() + $1::bigint * interval '1 microsecond')", d.Microseconds())
	if err != nil {
		return fmt.Errorf("telling that HEAD requests aren't remembered: %w", err)
	}
	return nil
}
