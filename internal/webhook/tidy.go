package webhook

import (
	"context"
	"fmt"
)

// tidyRows bounds the rows that one statement deletes, and pendingMost those that
// are counted for the gauge.
const (
	tidyRows    = 1000
	pendingMost = 100_000
)

// tidyBatch deletes notices that were settled long ago, some at a time, and tells
// how many are pending.
func (s *Sender) tidyBatch(ctx context.Context) (more bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		DELETE FROM webhookdeliveries WHERE id = ANY (ARRAY(
			SELECT id FROM webhookdeliveries
			WHERE (delivered_at IS NOT NULL OR given_up_at IS NOT NULL)
				AND coalesce(delivered_at, given_up_at) < now() - $1::interval
			LIMIT $2 FOR UPDATE SKIP LOCKED))`, s.opt.Keep, tidyRows)
	if err != nil {
		return false, fmt.Errorf("deleting old notices: %w", err)
	}
	if tag.RowsAffected() == tidyRows {
		return true, nil
	}
	if s.url == nil {
		return s.abandon(ctx)
	}
	var n int
	err = s.opt.DB.Pool.QueryRow(ctx, `
		SELECT count(*) FROM (SELECT FROM webhookdeliveries WHERE `+pending+` LIMIT $1) p`, pendingMost).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("counting pending notices: %w", err)
	}
	s.opt.Metrics.setPending(n)
	return false, nil
}

// abandon deletes what has been due for as long as settled notices are kept and
// nobody has tried: the webhook was removed from the configuration. A process that
// has one never does this, however long it was down.
func (s *Sender) abandon(ctx context.Context) (more bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		DELETE FROM webhookdeliveries WHERE id = ANY (ARRAY(
			SELECT id FROM webhookdeliveries
			WHERE `+pending+` AND next_attempt < now() - $1::interval
			LIMIT $2 FOR UPDATE SKIP LOCKED))`, s.opt.Keep, tidyRows)
	if err != nil {
		return false, fmt.Errorf("deleting abandoned notices: %w", err)
	}
	if n := tag.RowsAffected(); n > 0 {
		s.opt.Log.WarnContext(ctx, "notices were deleted that nobody sends, since no webhook is configured any more", "notices", n)
	}
	return tag.RowsAffected() == tidyRows, nil
}
