package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
)

// tidyRows is the largest number of rows that one statement deletes. The metric of pending
// notices counts at most pendingMost notices.
const (
	tidyRows    = 1000
	pendingMost = 100_000
)

// tidyBatch deletes some of the notices that were delivered or given up longer ago than
// Options.Keep, unless nothing may be deleted for its age. Then, or if that fails, it sets the
// metric of pending notices.
func (s *Sender) tidyBatch(ctx context.Context) (more bool, err error) {
	if s.opt.MayDelete != nil {
		err = s.opt.MayDelete(ctx)
	}
	if err == nil {
		more, err = s.deleteOld(ctx)
	}
	if more && err == nil {
		return true, nil
	}
	return false, cmp.Or(err, s.observePending(ctx))
}

// observePending sets the metric of pending notices. If nobody knows their number, the metric
// isn't a number (NaN), rather than the last one.
func (s *Sender) observePending(ctx context.Context) error {
	var n int
	err := s.opt.DB.Pool.QueryRow(ctx, `
		SELECT count(*) FROM (SELECT FROM webhooknotices WHERE delivered_at IS NULL AND given_up_at IS NULL LIMIT $1) p`, pendingMost).Scan(&n)
	if err != nil {
		s.opt.Metrics.setPending(math.NaN())
		return fmt.Errorf("counting pending notices: %w", err)
	}
	s.opt.Metrics.setPending(float64(n))
	return nil
}

// deleteOld deletes some notices and webhooks that are no longer needed.
func (s *Sender) deleteOld(ctx context.Context) (more bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		DELETE FROM webhooknotices WHERE id = ANY (ARRAY(
			SELECT id FROM webhooknotices
			WHERE (delivered_at IS NOT NULL OR given_up_at IS NOT NULL)
				AND coalesce(delivered_at, given_up_at) < now() - $1::interval
			LIMIT $2 FOR UPDATE SKIP LOCKED))`, s.opt.Keep, tidyRows)
	if err != nil {
		return false, fmt.Errorf("deleting old notices: %w", err)
	}
	if tag.RowsAffected() == tidyRows {
		return true, nil
	}
	if more, err := s.tidyHooks(ctx); err != nil || more {
		return more, err
	}
	if s.url == nil {
		return s.abandon(ctx)
	}
	return false, nil
}

// abandon deletes notices for the configured URL that have been due for longer than
// Options.Keep. Such notices exist if the URL was removed from the configuration, so that
// no process sends them. A process that has a URL doesn't call abandon; so even after a
// long outage it still sends its notices.
func (s *Sender) abandon(ctx context.Context) (more bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		DELETE FROM webhooknotices WHERE id = ANY (ARRAY(
			SELECT id FROM webhooknotices
			WHERE webhook IS NULL AND delivered_at IS NULL AND given_up_at IS NULL AND next_attempt < now() - $1::interval
			LIMIT $2 FOR UPDATE SKIP LOCKED))`, s.opt.Keep, tidyRows)
	if err != nil {
		return false, fmt.Errorf("deleting abandoned notices: %w", err)
	}
	if n := tag.RowsAffected(); n > 0 {
		s.opt.Log.WarnContext(ctx, "deleted notices that nobody will send, since no webhook is configured any more", "notices", n)
	}
	return tag.RowsAffected() == tidyRows, nil
}

// tidyHooks deletes notices of webhooks that were deleted, and notices that have been due
// for a disabled webhook for longer than Options.Keep. It disables webhooks for which at
// least Options.MaxWaiting notices wait.
func (s *Sender) tidyHooks(ctx context.Context) (more bool, err error) {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		DELETE FROM webhooknotices WHERE id = ANY (ARRAY(
			SELECT d.id FROM webhooknotices d
			WHERE d.webhook IS NOT NULL AND d.url IS NULL AND d.delivered_at IS NULL AND d.given_up_at IS NULL
				AND (NOT EXISTS (SELECT FROM webhooks w WHERE w.uuid = d.webhook)
					OR d.next_attempt < now() - $1::interval AND EXISTS (SELECT FROM webhooks w WHERE w.uuid = d.webhook AND NOT w.enabled))
			LIMIT $2 FOR UPDATE OF d SKIP LOCKED))`, s.opt.Keep, tidyRows)
	if err != nil {
		return false, fmt.Errorf("deleting notices of webhooks that were deleted: %w", err)
	}
	if tag.RowsAffected() == tidyRows {
		return true, nil
	}
	rows, err := s.opt.DB.Pool.Query(ctx, `
		SELECT n.name, w.uuid, w.title, w.url, w.events FROM webhooks w JOIN live_namespaces n ON n.id = w.namespace_id
		WHERE w.enabled AND (SELECT count(*) FROM (
			SELECT FROM webhooknotices WHERE webhook = w.uuid AND delivered_at IS NULL AND given_up_at IS NULL LIMIT $1) p) >= $1`, s.opt.MaxWaiting)
	if err != nil {
		return false, fmt.Errorf("looking for webhooks with too many waiting notices: %w", err)
	}
	var namespace string
	var h Hook
	var full []func() error
	_, err = pgx.ForEachRow(rows, []any{&namespace, &h.ID, &h.Title, &h.URL, &h.Events}, func() error {
		namespace, h := namespace, h
		full = append(full, func() error { return s.disable(ctx, namespace, h) })
		return nil
	})
	for _, disable := range full {
		err = errors.Join(err, disable())
	}
	return false, err
}

// disable disables a webhook, until a client enables it again.
func (s *Sender) disable(ctx context.Context, namespace string, h Hook) error {
	reason := fmt.Sprintf("%d notices waited for it", s.opt.MaxWaiting)
	return s.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE webhooks SET enabled = false, disabled_reason = $2, updated_at = clock_timestamp() WHERE uuid = $1 AND enabled`, h.ID, reason)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM webhookcounts WHERE webhook = $1", h.ID); err != nil {
			return err
		}
		s.opt.Log.ErrorContext(ctx, "a webhook was disabled: too many notices wait for it; enable it when its receiver answers again",
			"namespace", namespace, "webhook", h.ID, "waiting", s.opt.MaxWaiting)
		return audit.Append(ctx, tx, hookEntry(audit.UpdateWebhook, namespace, h, map[string]any{"changed": []string{"enabled"}, "reason": reason}))
	})
}
