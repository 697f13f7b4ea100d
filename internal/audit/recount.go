package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Place is the place of an entry in the order by time and id.
type Place struct {
	Time time.Time
	ID   int64
}

// RedisPull is a pull whose entry says that it was counted in Redis.
type RedisPull struct {
	Place
	RepositoryID int64 // 0: the repository is gone
	Tag          string
	Digest       oci.Digest
	Seq          int64 // the sequence number that Redis gave it; 0: none
}

// CountedByRedis returns up to `n` pulls that were counted in Redis, ordered by time and
// id, beginning after the place `after`. `next` is the place from which to continue; it is
// zero if there are no more pulls.
func (l *Log) CountedByRedis(ctx context.Context, after Place, n int) (list []RedisPull, next Place, err error) {
	rows, err := l.db.Pool.Query(ctx, `
		SELECT time, id, COALESCE(repository_id, 0), COALESCE(tag, ''), digest, COALESCE(redis_seq, 0) FROM auditlog
		WHERE time >= $1 AND (time, id) > ($1, $2) AND kind = 'pull_repo' AND counted_by = 'redis' ORDER BY time, id LIMIT $3`,
		after.Time, after.ID, n)
	if err != nil {
		return nil, next, fmt.Errorf("reading pulls that Redis has counted: %w", err)
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p RedisPull, err error) {
		var digest []byte
		if err = row.Scan(&p.Time, &p.ID, &p.RepositoryID, &p.Tag, &digest, &p.Seq); err == nil && digest != nil {
			p.Digest, err = oci.DigestFromBytes(digest)
		}
		return p, err
	})
	if err != nil {
		return nil, next, fmt.Errorf("reading pulls that Redis has counted: %w", err)
	}
	if len(list) == n {
		next = list[n-1].Place
	}
	return list, next, nil
}

// CountAgain marks pulls whose counts Redis has lost as pulls to be counted from the audit
// log. It gives them the id of its own transaction, so that the statistics worker reads
// them again like new entries. It leaves pulls unchanged that are no longer marked as
// counted in Redis.
func (l *Log) CountAgain(ctx context.Context, list []RedisPull) error {
	if len(list) == 0 {
		return nil
	}
	times, ids := make([]time.Time, len(list)), make([]int64, len(list))
	for i, p := range list {
		times[i], ids[i] = p.Time, p.ID
	}
	_, err := l.db.Pool.Exec(ctx, `
		UPDATE auditlog a SET counted_by = 'audit', xid = pg_current_xact_id(), redis_seq = NULL
		FROM unnest($1::timestamptz[], $2::bigint[]) AS lost (time, id)
		WHERE a.time = lost.time AND a.id = lost.id AND a.counted_by = 'redis'`, times, ids)
	if err != nil {
		return fmt.Errorf("having pulls counted again: %w", err)
	}
	return nil
}
