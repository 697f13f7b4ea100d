package audit

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Pull is an entry of a pull as the statistics read it.
type Pull struct {
	Position
	Time         time.Time  // of several, that of the last
	N            int        // how many pulls, or heads, it is of
	RepositoryID int64      // 0: the repository is gone
	Tag          string     // "": the pull was by digest
	Digest       oci.Digest // zero: the entry names none
	CountedBy    string
	// Head says that it is no pull but a HEAD of a tag; Digest isn't known then.
	Head bool
	// Used says that it is a pull by digest, counted elsewhere, which has used a HEAD. Head
	// is set too.
	Used bool
	// Client and Port, as Entry has them, are those of heads and of pulls by digest.
	Client ClientKey
	Port   int
	// First and Later are their times and ports, where there are several: see Requests.
	First time.Time
	Later []byte
}

// Less says whether p comes before other.
func (p Position) Less(other Position) bool {
	return p.XID < other.XID || p.XID == other.XID && p.ID < other.ID
}

// arguments are a position's in a statement: text, because xid8 is no type that the
// driver knows, and the id.
func (p Position) arguments() (xid string, id int64) { return strconv.FormatUint(p.XID, 10), p.ID }

// Pulls are up to n pulls and heads behind a position, in their order. Only those of
// transactions are told before which none is open any more: what is between two of
// them can't change, so that a reader who remembers the last one misses none and
// meets none twice.
func (l *Log) Pulls(ctx context.Context, after Position, n int) ([]Pull, error) {
	xid, id := after.arguments()
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

// OldestUnread is the time of the oldest pull or head behind a position, whether it can be
// read yet or not; zero: there is none. It looks at the next 10,000, since they come about
// in the order of their times.
func (l *Log) OldestUnread(ctx context.Context, after Position) (oldest time.Time, err error) {
	xid, id := after.arguments()
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

// pullRow is a row of what PullsOf and Pulls have in common.
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
	if p.XID, err = strconv.ParseUint(r.xid, 10, 64); err != nil {
		return p, fmt.Errorf("entry %d: %w", p.ID, err)
	}
	if r.digest != nil {
		if p.Digest, err = oci.DigestFromBytes(r.digest); err != nil {
			return p, fmt.Errorf("entry %d: %w", p.ID, err)
		}
	}
	return p, nil
}

// maxUnread is how many unread pulls PullsOf looks at. (The statement has it
// literally: with a number that isn't known the planner would rather read all.)
const maxUnread = 10_000

// PullsOf are the pulls of a repository behind a position, whether they can be read
// by Pulls yet or not: what statistics that were read up to there don't hold. All is
// false when there are more than 10,000 behind the position, of all repositories
// together, so that not all were looked at.
func (l *Log) PullsOf(ctx context.Context, repository int64, after Position) (list []Pull, all bool, err error) {
	xid, id := after.arguments()
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
			return nil // there is none
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

// PullState is how the log stands to a position up to which pulls were read.
type PullState struct {
	Now time.Time // by the database's clock
	// Oldest is the time of the first pull behind the position that isn't counted
	// elsewhere, zero when there is none. It may not be ready to be read yet.
	Oldest time.Time
	// Foreign says that transaction ids have begun anew since pulls were read: the
	// database was restored or moved, and the order of its entries is no longer that
	// in which they were written. See ResetPulls.
	Foreign bool
}

// PullState looks at the log. Of a log whose transaction ids are its server's own, a
// position that was read is before all open transactions, and no entry is of a
// transaction that hasn't begun.
func (l *Log) PullState(ctx context.Context, read Position) (s PullState, err error) {
	xid, id := read.arguments()
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

// ResetPulls gives pulls a new order, after a restore, in a transaction of the
// caller's, and returns the position, which is another one than before, behind which
// are those that weren't read: by their old order, or by being younger than the last
// that was. Pulls that are written meanwhile come behind it too.
func ResetPulls(ctx context.Context, tx pgx.Tx, read Position, last time.Time) (to Position, unread int64, err error) {
	xid, id := read.arguments()
	var least string
	// What a transaction that is open now writes is of its id or a later one.
	if err := tx.QueryRow(ctx, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text").Scan(&least); err != nil {
		return to, 0, fmt.Errorf("giving the pulls in the audit log a new order: %w", err)
	}
	if to.XID, err = strconv.ParseUint(least, 10, 64); err != nil {
		return to, 0, fmt.Errorf("giving the pulls in the audit log a new order: %w", err)
	}
	to.XID-- // before all that is, or will be, of that id
	if to.ID = maxID; to == read {
		to.ID-- // so that who has read from there finds it changed
	}
	// Heads hold for less time than a restore takes.
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

const maxID = 1<<63 - 1
