package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Pull is an entry of pulls, or a HEAD request of the table pullheads, as Log.Pulls
// returns it to the statistics worker.
type Pull struct {
	Position
	Time         time.Time  // of several pulls, that of the last
	N            int        // number of pulls or heads in the entry
	RepositoryID int64      // 0: the repository is gone
	Tag          string     // "": the pull was by digest
	Digest       oci.Digest // zero: the entry names none
	CountedBy    string
	// Head says that this is a HEAD request for a tag and no pull. Then its digest isn't
	// known.
	Head bool
	// Used says that this is a client's GET by digest that Redis has already counted,
	// together with a HEAD before it, as one pull of a tag. Such a GET is written to the
	// table pullheads like a HEAD, so Head is set too. It tells the statistics that they
	// must not join another pull with that HEAD.
	Used bool
	// Client is the value of Entry.Client, and Port the client's port. They are set only
	// for HEADs and for pulls by digest.
	Client ClientKey
	Port   int
	// First is the time of the first request. If there are several, Later encodes the time
	// and port of the others: see Requests.
	First time.Time
	Later []byte
}

// Pulls returns up to `n` pulls and HEADs after the position `after`, in the order of
// positions. It returns only entries of transactions that are older than every open
// transaction. Since no entry can be inserted before these any more, a reader that
// continues from the last position misses none and gets none twice.
func (l *Log) Pulls(ctx context.Context, after Position, n int) ([]Pull, error) {
	xid, id := after.Arguments()
	rows, err := l.db.Pool.Query(ctx, `
		SELECT xid::text AS xid_text, id, time, repository_id, tag, digest, counted_by, pulls,
			head, client, port, used, first_time, later, actor, address, user_agent FROM (
			(SELECT xid, id, time, COALESCE(repository_id, 0) AS repository_id, COALESCE(tag, '') AS tag, digest, COALESCE(counted_by, '') AS counted_by,
				pulls, false AS head, NULL::bytea AS client, COALESCE(port, 0) AS port, false AS used, first_time, later,
				CASE WHEN tag IS NULL THEN COALESCE(actor, '') END AS actor, CASE WHEN tag IS NULL THEN COALESCE(address, '') END AS address,
				CASE WHEN tag IS NULL THEN COALESCE(user_agent, '') END AS user_agent
			FROM auditlog
			WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot())
			ORDER BY xid, id LIMIT $3)
			UNION ALL
			(SELECT xid, id, time, repository_id, tag, NULL, '', 1, true, client, port, used, first_time, later, NULL, NULL, NULL
			FROM pullheads
			WHERE (xid, id) > ($1::text::xid8, $2::bigint) AND xid < pg_snapshot_xmin(pg_current_snapshot())
			ORDER BY xid, id LIMIT $3)) both_kinds
		ORDER BY xid, id LIMIT $3`, xid, id, n)
	if err != nil {
		return nil, fmt.Errorf("reading pulls in the audit log: %w", err)
	}
	var list []Pull
	var r pullRow
	var client []byte
	var first *time.Time
	var actor, address, agent *string
	_, err = pgx.ForEachRow(rows, append(r.fields(), &r.p.Head, &client, &r.p.Port, &r.p.Used, &first, &r.p.Later, &actor, &address, &agent), func() error {
		p, err := r.pull()
		p.First, p.Later = p.Time, slices.Clone(p.Later)
		if first != nil {
			p.First = *first
		}
		switch {
		case p.Head && len(client) == len(p.Client):
			p.Client = ClientKey(client)
		case actor != nil:
			p.Client = clientKey(*actor, *address, *agent, p.RepositoryID, p.Digest)
		}
		list = append(list, p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading pulls in the audit log: %w", err)
	}
	return list, nil
}

// OldestUnread returns the time of the oldest pull or HEAD after the position `after`, or
// zero if there is none. It includes entries that Pulls doesn't return yet because an older
// transaction is open. It examines only the next 10,000 pulls and the next 10,000 HEADs;
// that is enough, since the order of positions is roughly the order of times.
func (l *Log) OldestUnread(ctx context.Context, after Position) (oldest time.Time, err error) {
	xid, id := after.Arguments()
	var at *time.Time
	err = l.db.Pool.QueryRow(ctx, `
		SELECT LEAST(
			(SELECT min(time) FROM (SELECT COALESCE(first_time, time) AS time FROM auditlog
				WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint) ORDER BY xid, id LIMIT 10000) pulls),
			(SELECT min(time) FROM (SELECT COALESCE(first_time, time) AS time FROM pullheads
				WHERE (xid, id) > ($1::text::xid8, $2::bigint) ORDER BY xid, id LIMIT 10000) heads))`, xid, id).Scan(&at)
	if err != nil {
		return oldest, fmt.Errorf("looking at the pulls in the audit log: %w", err)
	}
	if at != nil {
		oldest = *at
	}
	return oldest, nil
}

// pullRow scans those columns of a database row that the queries of PullsOf and Pulls have
// in common.
type pullRow struct {
	p      Pull
	xid    string
	digest []byte
}

func (r *pullRow) fields() []any {
	return []any{&r.xid, &r.p.ID, &r.p.Time, &r.p.RepositoryID, &r.p.Tag, &r.digest, &r.p.CountedBy, &r.p.N}
}

func (r *pullRow) pull() (p Pull, err error) {
	p = r.p
	if p.Position, err = PositionOf(r.xid, p.ID); err != nil {
		return p, fmt.Errorf("entry %d: %w", p.ID, err)
	}
	if r.digest != nil {
		if p.Digest, err = oci.DigestFromBytes(r.digest); err != nil {
			return p, fmt.Errorf("entry %d: %w", p.ID, err)
		}
	}
	return p, nil
}

// maxUnread is how many entries of pulls PullsOf examines at most. The statement has this
// number as a literal, because with a parameter the planner would prefer a plan that reads
// all unread entries.
const maxUnread = 10_000

// PullsOf returns the pulls of a repository after the position `after`. If the statistics
// have been counted up to this position, these are the pulls that they lack. Unlike Pulls,
// PullsOf also returns pulls of transactions that aren't older than every open transaction.
// `all` is false if there are more than 10,000 entries of pulls after the position, in all
// repositories together; then the list may be incomplete.
func (l *Log) PullsOf(ctx context.Context, repository int64, after Position) (list []Pull, all bool, err error) {
	xid, id := after.Arguments()
	rows, err := l.db.Pool.Query(ctx, fmt.Sprintf(`
		WITH unread AS MATERIALIZED (
			SELECT * FROM auditlog
			WHERE kind = 'pull_repo' AND (xid, id) > ($1::text::xid8, $2::bigint)
			ORDER BY xid, id LIMIT %d)
		SELECT (SELECT count(*) FROM unread), COALESCE(xid, '0')::text AS xid_text, COALESCE(id, 0), COALESCE(time, 'epoch'),
			COALESCE(repository_id, 0), COALESCE(tag, ''), digest, COALESCE(counted_by, ''), COALESCE(pulls, 1)
		FROM (SELECT) one LEFT JOIN unread ON repository_id = $3 ORDER BY unread.xid, unread.id`, maxUnread+1), xid, id, repository)
	if err != nil {
		return nil, false, fmt.Errorf("reading pulls in the audit log: %w", err)
	}
	var r pullRow
	var unread int
	_, err = pgx.ForEachRow(rows, append([]any{&unread}, r.fields()...), func() error {
		if r.p.ID == 0 {
			return nil // the row of the outer join that has no pull
		}
		p, err := r.pull()
		list = append(list, p)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("reading pulls in the audit log: %w", err)
	}
	return list, unread <= maxUnread, nil
}

// PullState describes the audit log's pulls in relation to the position up to which the
// statistics worker has read them.
type PullState struct {
	Now time.Time // by the database's clock
	// Oldest is the time of the first pull after the position that Redis hasn't counted, or
	// zero if there is none. Log.Pulls may not return that pull yet, because an older
	// transaction is still open.
	Oldest time.Time
	// Foreign says that the server's transaction ids have begun anew since the statistics
	// worker read up to the position, because the database was restored or moved. Then the
	// order by transaction id is no longer the order in which entries were written, and the
	// caller must call ResetPulls.
	Foreign bool
}

// PullState compares the audit log with the position `read`. If all transaction ids come
// from the same server, the id in the position is lower than that of every open
// transaction, and no entry of a pull has the id of a transaction that hasn't begun. If one
// of these two conditions fails, PullState sets Foreign.
func (l *Log) PullState(ctx context.Context, read Position) (s PullState, err error) {
	xid, id := read.Arguments()
	var oldest *time.Time
	err = l.db.Pool.QueryRow(ctx, `
		SELECT clock_timestamp(), (
				SELECT COALESCE(first_time, time) FROM auditlog
				WHERE kind = 'pull_repo' AND counted_by IS DISTINCT FROM 'redis' AND (xid, id) > ($1::text::xid8, $2::bigint)
				ORDER BY xid, id LIMIT 1),
			$1::text::xid8 >= pg_snapshot_xmin(pg_current_snapshot()) OR EXISTS (
				SELECT FROM auditlog WHERE kind = 'pull_repo' AND xid >= pg_snapshot_xmax(pg_current_snapshot()))`,
		xid, id).Scan(&s.Now, &oldest, &s.Foreign)
	if err != nil {
		return s, fmt.Errorf("looking at the pulls in the audit log: %w", err)
	}
	if oldest != nil {
		s.Oldest = *oldest
	}
	return s, nil
}

// ResetPulls gives the audit log's pulls new transaction ids, in the caller's transaction,
// after a restore of the database has made the old ids useless. It returns a new position
// `to`, which differs from the old position `read`, and the number of pulls that it has put
// after `to`. These are the pulls after `read` by their old ids, and the pulls later than
// the time `last`. Pulls that other transactions write while ResetPulls runs also come
// after `to`. All other pulls come before `to`, so the statistics worker won't count them
// again.
func ResetPulls(ctx context.Context, tx pgx.Tx, read Position, last time.Time) (to Position, unread int64, err error) {
	xid, id := read.Arguments()
	var least string
	// xmin is the lowest id of a transaction that is open now. So the entries that open and
	// later transactions write have an xid of at least xmin.
	if err := tx.QueryRow(ctx, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text").Scan(&least); err != nil {
		return to, 0, fmt.Errorf("giving the pulls in the audit log a new order: %w", err)
	}
	if to, err = PositionOf(least, maxID); err != nil {
		return to, 0, fmt.Errorf("giving the pulls in the audit log a new order: %w", err)
	}
	to.XID-- // a position before every entry of that transaction or of later ones
	if to == read {
		to.ID-- // so that a reader which read from there notices the change
	}
	// The statistics join a HEAD only with a pull that follows shortly, within less time
	// than a restore takes. So no HEAD from before the restore is needed.
	if _, err := tx.Exec(ctx, "DELETE FROM pullheads"); err != nil {
		return to, 0, fmt.Errorf("giving the pulls in the audit log a new order: %w", err)
	}
	err = tx.QueryRow(ctx, `
		WITH put AS (
			UPDATE auditlog SET xid = CASE WHEN (xid, id) > ($1::text::xid8, $2::bigint) OR time > $3
				THEN pg_current_xact_id() ELSE '0' END
			WHERE kind = 'pull_repo' AND (xid >= $4::text::xid8 OR (xid, id) > ($1::text::xid8, $2::bigint) OR time > $3)
			RETURNING xid, pulls)
		SELECT COALESCE(sum(pulls), 0) FROM put WHERE xid > '0'`, xid, id, last, least).Scan(&unread)
	if err != nil {
		return to, 0, fmt.Errorf("giving the pulls in the audit log a new order: %w", err)
	}
	return to, unread, nil
}
