package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// Bounds of what a dispatcher reads in one transaction.
const (
	maxChanges   = 1000 // as many as a transaction of auto-pruning deletes tags
	maxPulls     = 10_000
	maxCollected = 1000
	maxDue       = 1000
)

// dispatchBatch reads some of the events since the last batch, and queues notices of these
// events for the webhooks of namespaces. It does nothing if there is no work.
func (s *Sender) dispatchBatch(ctx context.Context) (more bool, err error) {
	work, err := s.lookAround(ctx)
	if err != nil || !work {
		return false, err
	}
	var told int
	err = s.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		more, told, err = s.dispatchOnce(ctx, tx)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("writing notices for webhooks: %w", err)
	}
	if told > 0 {
		s.lanes.loop.Wake()
	}
	return more, nil
}

// nextLook returns how long the dispatcher waits before it looks for new entries in the
// audit log again: Options.Look while a webhook is enabled, otherwise worker.MaxIdle. When
// a client of this process enables a webhook, Sender.change wakes the dispatcher.
func (s *Sender) nextLook(context.Context) (time.Duration, error) {
	if s.watching.Load() {
		return s.opt.Look, nil
	}
	return worker.MaxIdle, nil
}

// position says up to which entries the dispatcher has read the audit log: it reads entries
// of changes and entries of pulls separately.
type position struct {
	changes, pulls audit.Position
	since          time.Time
	foreign        bool // transaction ids have begun anew since, so the log's order is invalid
}

// scan reads a row that a query of webhookposition returned. It stores the six columns of
// the position in p, and the columns that the query selects after these in the variables to
// which `more` points.
func (p *position) scan(row pgx.Row, more ...any) (err error) {
	var xid, pullsXID string
	if err := row.Scan(append([]any{&xid, &p.changes.ID, &pullsXID, &p.pulls.ID, &p.since, &p.foreign}, more...)...); err != nil {
		return err
	}
	if p.changes, err = audit.PositionOf(xid, p.changes.ID); err == nil {
		p.pulls, err = audit.PositionOf(pullsXID, p.pulls.ID)
	}
	return err
}

// lookAround returns whether the dispatcher has work to do. It changes and locks nothing.
// While no webhook is enabled it needs only one statement, which reads small tables.
func (s *Sender) lookAround(ctx context.Context) (work bool, err error) {
	var p position
	var changes, pulls, enabled bool
	err = p.scan(s.opt.DB.Pool.QueryRow(ctx, `
		SELECT p.xid::text, p.id, p.pulls_xid::text, p.pulls_id, p.since,
			p.xid > pg_snapshot_xmin(pg_current_snapshot()) OR p.pulls_xid > pg_snapshot_xmin(pg_current_snapshot()),
			EXISTS (SELECT FROM webhooks WHERE enabled AND events && $1::text[]),
			EXISTS (SELECT FROM webhooks WHERE enabled AND 'pull' = ANY (events)),
			EXISTS (SELECT FROM webhooks WHERE enabled),
			EXISTS (SELECT FROM webhookcounts WHERE due_at <= now()) OR EXISTS (SELECT FROM webhookcollected)
		FROM webhookposition p`, ofChanges), &changes, &pulls, &enabled, &work)
	if err != nil {
		return false, fmt.Errorf("looking for webhooks: %w", err)
	}
	s.watching.Store(enabled)
	if work || !enabled || p.foreign {
		return work || enabled, nil
	}
	// If no webhook asks for changes, or none for pulls, audit.Unread needn't search for
	// entries of this kind. The position audit.End achieves that, since no entry comes
	// after it.
	if !changes {
		p.changes = audit.End
	}
	if !pulls {
		p.pulls = audit.End
	}
	return audit.Unread(ctx, s.opt.DB.Pool, p.changes, p.pulls)
}

// watcher is an enabled webhook.
type watcher struct {
	ID        uuid.UUID
	Namespace int64 // its id: others may have had its name
	Events    []string
	Since     time.Time
}

func (w watcher) wants(event string) bool { return slices.Contains(w.Events, event) }

// notice is a row to be written.
type notice struct {
	webhook uuid.UUID
	event   string
	body    string
}

// dispatchOnce does one round of the dispatcher in one transaction, which locks the row of
// webhookposition. It reads a limited number of changes, pulls and deletions by garbage
// collection, writes notices of changes, counts pulls and deletions, and writes notices of
// counts whose window is over. If another dispatcher has locked the row, dispatchOnce does
// nothing. `told` is the number of notices that it wrote; `more` says that there may be
// further work.
func (s *Sender) dispatchOnce(ctx context.Context, tx pgx.Tx) (more bool, told int, err error) {
	var p position
	err = p.scan(tx.QueryRow(ctx, `
		SELECT xid::text, id, pulls_xid::text, pulls_id, since,
			xid > pg_snapshot_xmin(pg_current_snapshot()) OR pulls_xid > pg_snapshot_xmin(pg_current_snapshot())
		FROM webhookposition FOR UPDATE SKIP LOCKED`))
	if errors.Is(err, pgx.ErrNoRows) {
		return false, 0, nil // another process is dispatching
	}
	if err != nil {
		return false, 0, err
	}
	if p.foreign {
		s.opt.Log.WarnContext(ctx, "the database was restored or moved, and the order of its audit log began anew: webhooks aren't told of what happened before now")
		return true, 0, beginAnew(ctx, tx)
	}
	watchers, err := watchersOf(ctx, tx, p.since)
	if err != nil {
		return false, 0, err
	}
	notices, moreChanges, err := readChanges(ctx, tx, &p, watchers)
	if err != nil {
		return false, 0, err
	}
	morePulls, err := s.countPulls(ctx, tx, &p, watchers)
	if err != nil {
		return false, 0, err
	}
	moreCollected, err := s.countCollected(ctx, tx)
	if err != nil {
		return false, 0, err
	}
	due, err := dueCounts(ctx, tx)
	if err != nil {
		return false, 0, err
	}
	notices = append(notices, due...)
	if err := writeNotices(ctx, tx, notices); err != nil {
		return false, 0, err
	}
	xid, id := p.changes.Arguments()
	pullsXID, pullsID := p.pulls.Arguments()
	_, err = tx.Exec(ctx, `
		UPDATE webhookposition SET xid = $1::text::xid8, id = $2, pulls_xid = $3::text::xid8, pulls_id = $4`, xid, id, pullsXID, pullsID)
	return moreChanges || morePulls || moreCollected || len(due) == maxDue, len(notices), err
}

// BeginAnew makes webhooks tell only of what happens from now on. It is for a database that was
// restored or moved.
func BeginAnew(ctx context.Context, d *db.DB) error {
	if err := beginAnew(ctx, d.Pool); err != nil {
		return fmt.Errorf("skipping what happened before the restore: %w", err)
	}
	return nil
}

// beginAnew moves the position to the end of the audit log, so that no notices are sent of
// entries before it.
func beginAnew(ctx context.Context, q db.Querier) error {
	_, err := q.Exec(ctx, `
		UPDATE webhookposition SET xid = pg_snapshot_xmin(pg_current_snapshot()), id = 0,
			pulls_xid = pg_snapshot_xmin(pg_current_snapshot()), pulls_id = 0, since = clock_timestamp()`)
	return err
}

// watchersOf returns the enabled webhooks, and locks them against deletion until the
// transaction ends. A webhook gets notices of events after watcher.Since: when it was
// enabled, or `since` if that is later.
func watchersOf(ctx context.Context, tx pgx.Tx, since time.Time) ([]watcher, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.uuid, n.id, w.events, GREATEST(w.active_since, $1)
		FROM webhooks w JOIN live_namespaces n ON n.id = w.namespace_id
		WHERE w.enabled ORDER BY w.uuid FOR KEY SHARE OF w`, since)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[watcher])
}

// readChanges reads entries of changes after the position p, and moves p past them. It
// returns the notices of these changes for the webhooks that ask for them.
func readChanges(ctx context.Context, tx pgx.Tx, p *position, watchers []watcher) (list []notice, more bool, err error) {
	in := make(map[int64][]watcher)
	for _, w := range watchers {
		if slices.ContainsFunc(ofChanges, w.wants) {
			in[w.Namespace] = append(in[w.Namespace], w)
		}
	}
	if len(in) == 0 {
		return nil, false, nil
	}
	changes, more, err := audit.Changes(ctx, tx, p.changes, maxChanges)
	if err != nil || len(changes) == 0 {
		return nil, false, err
	}
	p.changes = changes[len(changes)-1].Position
	changes = slices.DeleteFunc(changes, func(c audit.Change) bool { return len(in[c.NamespaceID]) == 0 })
	for _, h := range happenings(changes) {
		e := Event{Type: h.event, Time: h.at, Data: h.data}
		body, err := e.body()
		if err != nil {
			return nil, false, err
		}
		for _, w := range in[h.namespace] {
			if w.wants(h.event) && !h.at.Before(w.Since) {
				list = append(list, notice{w.ID, h.event, body})
			}
		}
	}
	return list, more, nil
}

// countPulls reads entries of pulls after the position p, and moves p past them. It adds
// the numbers of pulls to webhookcounts for the webhooks that ask for pulls.
func (s *Sender) countPulls(ctx context.Context, tx pgx.Tx, p *position, watchers []watcher) (more bool, err error) {
	var of []audit.Watch
	var ids []uuid.UUID
	for _, w := range watchers {
		if w.wants(EventPull) {
			of, ids = append(of, audit.Watch{NamespaceID: w.Namespace, Since: w.Since}), append(ids, w.ID)
		}
	}
	if len(of) == 0 {
		return false, nil
	}
	counts, last, more, err := audit.CountPulls(ctx, tx, p.pulls, maxPulls, of)
	if err != nil {
		return false, err
	}
	p.pulls = last
	n := len(counts)
	hooks, repositories := make([]uuid.UUID, n), make([]string, n)
	numbers, first, latest := make([]int64, n), make([]time.Time, n), make([]time.Time, n)
	for i, c := range counts {
		hooks[i], repositories[i], numbers[i], first[i], latest[i] = ids[c.Watch], c.Repository, c.Pulls, c.First, c.Last
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO webhookcounts AS c (webhook, event, repository, number, first_at, last_at, due_at)
		SELECT webhook, 'pull', repository, number, first_at, last_at, now() + $6::interval
		FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::timestamptz[], $5::timestamptz[])
			AS u (webhook, repository, number, first_at, last_at)
		ON CONFLICT (webhook, event, repository) DO UPDATE SET number = c.number + EXCLUDED.number,
			first_at = LEAST(c.first_at, EXCLUDED.first_at), last_at = GREATEST(c.last_at, EXCLUDED.last_at)`,
		hooks, repositories, numbers, first, latest, s.opt.Window)
	return more, err
}

// countCollected deletes some rows of webhookcollected, in which garbage collection has
// written how many manifests it deleted, and adds these numbers to webhookcounts.
func (s *Sender) countCollected(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	var n int
	err = tx.QueryRow(ctx, `
		WITH gone AS (
			DELETE FROM webhookcollected WHERE id = ANY (ARRAY(
				SELECT id FROM webhookcollected ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
			RETURNING namespace_id, repository, manifests, at
		), added AS (
			INSERT INTO webhookcounts AS c (webhook, event, repository, number, first_at, last_at, due_at)
			SELECT w.uuid, 'gc', gone.repository, sum(gone.manifests), min(gone.at), max(gone.at), now() + $2::interval
			FROM gone JOIN webhooks w ON w.namespace_id = gone.namespace_id
			WHERE w.enabled AND 'gc' = ANY (w.events) AND gone.at >= w.active_since
			GROUP BY w.uuid, gone.repository
			ON CONFLICT (webhook, event, repository) DO UPDATE SET number = c.number + EXCLUDED.number,
				first_at = LEAST(c.first_at, EXCLUDED.first_at), last_at = GREATEST(c.last_at, EXCLUDED.last_at)
		)
		SELECT count(*) FROM gone`, maxCollected, s.opt.Window).Scan(&n)
	return n == maxCollected, err
}

// dueCounts deletes the rows of webhookcounts whose window is over, and returns a notice of
// the number in each row, for the caller to queue.
func dueCounts(ctx context.Context, tx pgx.Tx) ([]notice, error) {
	rows, err := tx.Query(ctx, `
		WITH gone AS (
			DELETE FROM webhookcounts WHERE (webhook, event, repository) IN (
				SELECT webhook, event, repository FROM webhookcounts WHERE due_at <= now() ORDER BY due_at LIMIT $1)
			RETURNING webhook, event, repository, number, first_at, last_at
		)
		SELECT gone.webhook, gone.event, n.name, gone.repository, gone.number, gone.first_at, gone.last_at
		FROM gone JOIN webhooks w ON w.uuid = gone.webhook JOIN live_namespaces n ON n.id = w.namespace_id`, maxDue)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (n notice, err error) {
		var namespace, repository string
		var number int64
		var data counted
		if err := row.Scan(&n.webhook, &n.event, &namespace, &repository, &number, &data.From, &data.To); err != nil {
			return n, err
		}
		data.place, data.From, data.To = placeOf(namespace, repository), data.From.UTC(), data.To.UTC()
		if n.event == EventGC {
			data.Manifests = number
		} else {
			data.Pulls = number
		}
		n.body, err = Event{Type: n.event, Time: data.To, Data: data}.body()
		return n, err
	})
}

// writeNotices queues notices.
func writeNotices(ctx context.Context, tx pgx.Tx, list []notice) error {
	if len(list) == 0 {
		return nil
	}
	ids, hooks := make([]uuid.UUID, len(list)), make([]uuid.UUID, len(list))
	events, bodies := make([]string, len(list)), make([]string, len(list))
	for i, n := range list {
		ids[i], hooks[i], events[i], bodies[i] = uuid.New(), n.webhook, n.event, n.body
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO webhooknotices (id, webhook, event, body)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[])`, ids, hooks, events, bodies)
	return err
}
