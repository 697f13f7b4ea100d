package hold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/worker"
)

// Events of which notices are sent.
const (
	EventSilent = "hold.reporter_silent" // no report has come for half of the lease
	EventEnded  = "hold.reporter_ended"  // the lease is over, so the reporter's holds have ended
)

// Notice is the content of both events.
type Notice struct {
	Namespace string    `json:"namespace,omitempty"` // absent: the whole registry
	Reporter  string    `json:"reporter"`
	Kind      string    `json:"kind,omitempty"`
	Digests   int64     `json:"digests"`
	Reported  time.Time `json:"reported_at"`
	Expires   time.Time `json:"expires_at"`
}

const (
	watchPage = 100    // reporters that one batch of the watcher tells of
	holdsPage = 10_000 // holds that one batch deletes
	// keepEnded is how long a reporter is kept after its holds have ended.
	keepEnded = "30 days"
)

// watch tells of reporters that are silent and of those whose holds have ended, each once,
// deletes old reporters and the holds of those that are gone, and updates the metrics. Several
// replicas may call it at once: the first one has the work, the others skip it.
func (h *Holds) watch(ctx context.Context) (more bool, err error) {
	if err := h.measure(ctx); err != nil {
		return false, err
	}
	rests := false
	if h.opt.MayDelete != nil {
		err := h.opt.MayDelete(ctx)
		if rests = errors.Is(err, worker.ErrRest); err != nil && !rests {
			return false, err
		}
	}
	told := 0
	err = h.db.Tx(ctx, func(tx pgx.Tx) error {
		told, more = 0, false
		var mine bool
		if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(1886745447, 1)").Scan(&mine); err != nil || !mine {
			return err
		}
		if told, err = h.tell(ctx, tx); err != nil || told > 0 {
			more = true // the audit log is locked last, so the rest has a transaction of its own
			return err
		}
		if !rests { // a clock that runs ahead would end the holds of all reporters for good
			if more, err = h.clean(ctx, tx); err == nil {
				err = clock.CheckTx(ctx, tx, h.opt.CheckTime)
			}
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("watching reporters: %w", err)
	}
	if told > 0 && h.opt.Notified != nil {
		h.opt.Notified()
	}
	return more, nil
}

// tell queues notices of reporters and writes the audit log. It skips reporters that are
// reporting at the moment.
func (h *Holds) tell(ctx context.Context, tx pgx.Tx) (told int, err error) {
	rows, err := tx.Query(ctx, `
		WITH late AS (
			SELECT id, expires_at <= now() AS ended FROM holdreporters
			WHERE digests > 0 AND (expires_at <= now() AND ended_told_at IS NULL
				OR reported_at + lease / 2 <= now() AND silent_told_at IS NULL AND expires_at > now())
				AND (namespace_id IS NULL OR EXISTS (SELECT FROM live_namespaces n WHERE n.id = namespace_id))
			ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
		), marked AS (
			UPDATE holdreporters r SET silent_told_at = COALESCE(silent_told_at, now()),
				ended_told_at = CASE WHEN late.ended THEN now() ELSE ended_told_at END
			FROM late WHERE r.id = late.id
			RETURNING r.namespace_id, r.name, r.kind, r.digests, r.reported_at, r.expires_at, late.ended
		)
		SELECT COALESCE(n.name, ''), m.name, m.kind, m.digests, m.reported_at, m.expires_at, m.ended
		FROM marked m LEFT JOIN live_namespaces n ON n.id = m.namespace_id ORDER BY 1, 2`, watchPage)
	if err != nil {
		return 0, err
	}
	type found struct {
		Notice
		ended bool
	}
	list, err := pgx.CollectRows(rows, func(c pgx.CollectableRow) (f found, err error) {
		err = c.Scan(&f.Namespace, &f.Reporter, &f.Kind, &f.Digests, &f.Reported, &f.Expires, &f.ended)
		return f, err
	})
	if err != nil {
		return 0, err
	}
	var entries []audit.Entry
	for _, f := range list {
		event, kind := EventSilent, audit.HoldReporterSilent
		if f.ended {
			event, kind = EventEnded, audit.HoldReporterEnded
		}
		h.log.WarnContext(ctx, "a reporter of holds is silent", "reporter", f.Reporter, "namespace", f.Namespace, "digests", f.Digests,
			"reported_at", f.Reported, "expires_at", f.Expires, "ended", f.ended)
		if h.opt.Notify != nil {
			if err := h.opt.Notify(ctx, tx, event, f.Notice); err != nil {
				return 0, err
			}
		}
		entries = append(entries, audit.Entry{Kind: kind, Namespace: f.Namespace, Detail: map[string]any{
			"reporter": f.Reporter, "digests": f.Digests, "reported_at": f.Reported, "expires_at": f.Expires,
		}})
	}
	ctx = audit.WithSource(ctx, audit.Source{Actor: audit.ActorHolds})
	return len(list), audit.Append(ctx, tx, entries...)
}

// clean deletes a page of the holds whose reporter is gone, and reporters whose holds ended long
// ago. The recursive query reads one row of the index for each reporter. It sees the rows of a
// report only together with its reporter, since one transaction commits both, and it never sees
// a later reporter under the same number, since numbers aren't used again.
func (h *Holds) clean(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	if _, err := tx.Exec(ctx, "DELETE FROM holdreporters WHERE expires_at < now() - $1::interval", keepEnded); err != nil {
		return false, err
	}
	done, err := tx.Exec(ctx, `
		WITH RECURSIVE holder (id) AS (
			(SELECT reporter_id FROM holds ORDER BY reporter_id LIMIT 1)
			UNION ALL
			SELECT n.reporter_id FROM holder p
			CROSS JOIN LATERAL (SELECT reporter_id FROM holds WHERE reporter_id > p.id ORDER BY reporter_id LIMIT 1) n
		), stray AS MATERIALIZED (
			SELECT p.id FROM holder p WHERE NOT EXISTS (SELECT FROM holdreporters r WHERE r.id = p.id OFFSET 0)
		)
		DELETE FROM holds WHERE (digest, reporter_id) IN (
			SELECT h.digest, h.reporter_id FROM stray s
			CROSS JOIN LATERAL (SELECT digest, reporter_id FROM holds WHERE reporter_id = s.id ORDER BY reporter_id, digest LIMIT $1) h
			LIMIT $1)`, holdsPage)
	return err == nil && done.RowsAffected() == holdsPage, err
}
