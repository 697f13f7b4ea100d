package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Change is the audit log's entry of a push, of a tag's creation or move, or of a deletion.
// Position is its place in the order in which Changes returns entries.
//
// NamespaceID tells the namespace from others that have had its name. It is 0 if it isn't known.
type Change struct {
	Position
	Entry
	NamespaceID int64
}

// Changes returns up to `n` entries of changes after the position `after`, ordered by the
// writing transaction's id and the entry's id. `more` says that further entries may follow.
// If the limit n might cut through the entries of the last transaction, Changes omits that
// transaction, unless the list has no other. Like Log.Pulls, it returns only entries of
// transactions that are older than every open transaction, since no entry can appear before
// or between these any more. Hence a reader that continues from the position of the last
// entry in the list misses no entry and gets none twice.
func Changes(ctx context.Context, tx pgx.Tx, after Position, n int) (list []Change, more bool, err error) {
	xid, id := after.Arguments()
	rows, err := tx.Query(ctx, `
		SELECT xid::text AS xid_text, COALESCE(namespace_id, 0), id, time, kind, COALESCE(actor, ''), COALESCE(address, ''), COALESCE(user_agent, ''),
			COALESCE(request_id, ''), COALESCE(namespace, ''), COALESCE(repository, ''), COALESCE(repository_id, 0),
			COALESCE(tag, ''), digest, COALESCE(policy, '00000000-0000-0000-0000-000000000000'),
			COALESCE(run, '00000000-0000-0000-0000-000000000000'), detail, COALESCE(counted_by, ''), pulls, first_time,
			true, false
		FROM auditlog
		WHERE kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag',
				'delete_manifest', 'delete_repo', 'autoprune_tag_delete') -- as the index auditlog_changes_idx has them
			AND (xid, id) > ($1::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot())
		ORDER BY xid, id LIMIT $3`, xid, id, n)
	if err != nil {
		return nil, false, fmt.Errorf("reading changes in the audit log: %w", err)
	}
	list, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (c Change, err error) {
		var xid string
		found, err := scanRow(withMore{r, []any{&xid, &c.NamespaceID}})
		if err != nil {
			return c, err
		}
		c.Entry = found.Entry
		c.Position, err = PositionOf(xid, found.ID)
		return c, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("reading changes in the audit log: %w", err)
	}
	if more = len(list) == n; more {
		list = wholeTransactions(list)
	}
	return list, more, nil
}

// wholeTransactions removes the entries of the last transaction from `list`, because other
// entries of that transaction may be missing there. If the list has entries of only one
// transaction, it returns the list unchanged.
func wholeTransactions(list []Change) []Change {
	last := list[len(list)-1].XID
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].XID != last {
			return list[:i+1]
		}
	}
	return list
}

// withMore wraps a database row whose first columns are others than those of an entry. Scan stores
// them where `more` points.
type withMore struct {
	pgx.CollectableRow
	more []any
}

func (r withMore) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(r.more, dest...)...)
}

// Watch asks CountPulls to count the pulls of a namespace from a time on. The namespace is named by
// its id, since others may have had its name.
type Watch struct {
	NamespaceID int64
	Since       time.Time
}

// PullCount is the number of pulls of a repository that CountPulls counted for one Watch.
type PullCount struct {
	Watch       int // index of the watch that it is counted for
	Repository  string
	Pulls       int64
	First, Last time.Time
}

// CountPulls reads up to `n` entries of pulls after the position `after`, and counts their
// pulls for each watch in `of` and each repository. `last` is the position of the last
// entry read; `more` says that further entries may follow. Like Changes, it reads only
// entries of transactions older than every open one, so a reader that continues from `last`
// counts every entry once. An entry of several pulls counts for a watch with all its pulls,
// if the last of them isn't before Watch.Since, because the time of each single pull isn't
// known. Therefore PullCount.First may be before Since, by at most the time within which
// the recorder joins pulls: a second, or more while the recorder's buffer was full.
func CountPulls(ctx context.Context, tx pgx.Tx, after Position, n int, of []Watch) (counts []PullCount, last Position, more bool, err error) {
	ids, since := make([]int64, len(of)), make([]time.Time, len(of))
	for i, w := range of {
		ids[i], since[i] = w.NamespaceID, w.Since
	}
	xid, id := after.Arguments()
	rows, err := tx.Query(ctx, `
		WITH unread AS MATERIALIZED (
			SELECT xid, id, time, COALESCE(first_time, time) AS first_time, pulls, namespace_id, repository FROM auditlog
			WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot())
			ORDER BY xid, id LIMIT $3
		), newest AS (
			SELECT xid, id FROM unread ORDER BY xid DESC, id DESC LIMIT 1
		)
		SELECT 0, '', (SELECT count(*) FROM unread), 'epoch'::timestamptz, 'epoch'::timestamptz, xid::text, id FROM newest
		UNION ALL
		SELECT w.n::int, COALESCE(u.repository, ''), sum(u.pulls)::bigint, min(u.first_time), max(u.time), '0', 0
		FROM unread u JOIN unnest($4::bigint[], $5::timestamptz[]) WITH ORDINALITY AS w (namespace_id, since, n)
			ON w.namespace_id = u.namespace_id AND u.time >= w.since
		GROUP BY w.n, u.repository`, xid, id, n, ids, since)
	if err != nil {
		return nil, after, false, fmt.Errorf("counting pulls in the audit log: %w", err)
	}
	last = after
	var c PullCount
	_, err = pgx.ForEachRow(rows, []any{&c.Watch, &c.Repository, &c.Pulls, &c.First, &c.Last, &xid, &id}, func() error {
		if c.Watch > 0 {
			c.Watch--
			counts = append(counts, c)
			return nil
		}
		more = c.Pulls == int64(n)
		var err error
		last, err = PositionOf(xid, id)
		return err
	})
	if err != nil {
		return nil, after, false, fmt.Errorf("counting pulls in the audit log: %w", err)
	}
	return counts, last, more, nil
}

// Unread returns whether there are new entries to read: for Changes after the position
// `changes`, or for CountPulls after the position `pulls`.
func Unread(ctx context.Context, q db.Querier, changes, pulls Position) (yes bool, err error) {
	xid, id := changes.Arguments()
	pullXID, pullID := pulls.Arguments()
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM auditlog
				WHERE kind IN ('push_repo', 'create_tag', 'move_tag', 'revert_tag', 'delete_tag',
					'delete_manifest', 'delete_repo', 'autoprune_tag_delete') -- as the index auditlog_changes_idx has them
				AND (xid, id) > ($1::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot()))
			OR EXISTS (SELECT FROM auditlog WHERE kind = 'pull_repo'
				AND (xid, id) > ($3::text::xid8, $4::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot()))`,
		xid, id, pullXID, pullID).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("looking for what is new in the audit log: %w", err)
	}
	return yes, nil
}
