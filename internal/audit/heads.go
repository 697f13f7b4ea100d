package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/db"
)

// headOfTag is the kind that a Recorder gives to HEAD requests while they are in memory.
// No entry in the audit log has this kind.
const headOfTag Kind = "head_of_tag"

// headRetention is how long a HEAD request stays in the table pullheads if no statistics
// worker reads it.
const headRetention = 7 * 24 * time.Hour

// splitHeads splits the recorder's entries into pulls and HEAD requests.
func splitHeads(entries []Entry) (pulls, heads []Entry) {
	n := countHeads(entries)
	if n == 0 {
		return entries, nil
	}
	pulls, heads = make([]Entry, 0, len(entries)-n), make([]Entry, 0, n)
	for _, e := range entries {
		if e.Kind == headOfTag {
			heads = append(heads, e)
		} else {
			pulls = append(pulls, e)
		}
	}
	return pulls, heads
}

// countHeads returns how many of the recorder's entries are HEAD requests.
func countHeads(entries []Entry) (n int) {
	for i := range entries {
		if entries[i].Kind == headOfTag {
			n++
		}
	}
	return n
}

// appendHeads writes HEAD requests into the table pullheads. If an earlier attempt has
// written some of them already, it skips these. It doesn't check whether their repositories
// still exist: a HEAD of a deleted repository does no harm, because the statistics find no
// pull for it.
func appendHeads(ctx context.Context, tx pgx.Tx, heads []Entry) error {
	n := len(heads)
	if n == 0 {
		return nil
	}
	ids, repositories, ports, used := make([]int64, n), make([]int64, n), make([]int, n), make([]bool, n)
	times, clients, tags := make([]time.Time, n), make([][]byte, n), make([]string, n)
	firsts, later := make([]pgtype.Timestamptz, n), make([][]byte, n)
	for i, e := range heads {
		client := e.Client()
		ids[i], times[i], clients[i], repositories[i], tags[i], ports[i] = e.ID, e.Time, client[:], e.RepositoryID, clean(e.Tag), e.Port
		used[i] = e.CountedBy == CountedByRedis
		firsts[i], later[i] = pgtype.Timestamptz{Time: e.FirstTime, Valid: !e.FirstTime.IsZero()}, e.later
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO pullheads (id, time, client, repository_id, tag, port, used, first_time, later)
		SELECT * FROM unnest(@ids::bigint[], @times::timestamptz[], @clients::bytea[], @repositories::bigint[], @tags::text[],
			@ports::integer[], @used::boolean[], @firsts::timestamptz[], @later::bytea[])
		ON CONFLICT (id) DO NOTHING`, db.Args{
		"ids": ids, "times": times, "clients": clients, "repositories": repositories, "tags": tags, "ports": ports, "used": used,
		"firsts": firsts, "later": later,
	})
	if err != nil {
		return fmt.Errorf("writing HEAD requests: %w", err)
	}
	return nil
}

// ForgetHeads deletes from the table pullheads the HEAD requests up to the position `read`.
// The statistics worker calls it after it has read them and stored those it still needs.
func (l *Log) ForgetHeads(ctx context.Context, read Position) error {
	xid, id := read.Arguments()
	if _, err := l.db.Pool.Exec(ctx, "DELETE FROM pullheads WHERE (xid, id) <= ($1::text::xid8, $2::bigint)", xid, id); err != nil {
		return fmt.Errorf("deleting HEAD requests that were read: %w", err)
	}
	return nil
}

// deleteHeads deletes from the table pullheads the HEAD requests that came before the given time, which
// is headRetention ago. There are such HEADs only if no statistics worker reads the table.
func (pm *PartitionManager) deleteHeads(ctx context.Context, before time.Time) error {
	for {
		tag, err := pm.opt.DB.Pool.Exec(ctx, `
			DELETE FROM pullheads WHERE id = ANY (ARRAY(
				SELECT id FROM (SELECT id, time FROM pullheads ORDER BY xid, id LIMIT 1000) oldest WHERE time < $1))`, before)
		if err != nil || tag.RowsAffected() < 1000 {
			return err
		}
	}
}
