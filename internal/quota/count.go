package quota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// pageOfQuotas is how many quotas one call of Count counts at most.
	pageOfQuotas = 20
	// writersPoll is how often waitForWriters looks.
	writersPoll = 50 * time.Millisecond
	// writersWait is how long Count waits for transactions that may not know a quota.
	writersWait = time.Minute
)

// rowKey identifies a quota. A namespace's later quota has another id.
type rowKey struct {
	namespaceID, id int64
}

// Count counts the content of namespaces with a new quota, and of those for which a recount
// was asked. No push waits. `more` says that there are further quotas to count. Any number of
// processes may call it at once.
//
// From its commit on, all triggers see a new quota's row and add to its numbers what they change.
// A transaction whose triggers ran before may still be under way. So Count first waits
// until every transaction that has written something before it read the row has ended. Then it
// reads, in one snapshot, the numbers of the row with its slots and the sums over the content. Both have
// exactly the transactions that were committed before the snapshot, so their difference is what
// was there before the quota, and it stays the same however much is written meanwhile. Adding it
// to the row makes the numbers right. The row's number of counts makes sure that no difference
// is added twice.
func (k *Keeper) Count(ctx context.Context) (more bool, err error) {
	list, err := k.uncounted(ctx, pageOfQuotas+1)
	if err != nil || len(list) == 0 {
		return false, err
	}
	if more = len(list) > pageOfQuotas; more {
		list = list[:pageOfQuotas]
	}
	wait, cancel := context.WithTimeout(ctx, writersWait)
	defer cancel()
	if err := k.waitForWriters(wait); err != nil {
		return false, err
	}
	for _, q := range list {
		if err := k.countContent(ctx, q); err != nil {
			return false, err
		}
	}
	return more, nil
}

func (k *Keeper) uncounted(ctx context.Context, n int) ([]rowKey, error) {
	rows, err := k.db.Pool.Query(ctx, `
		SELECT namespace_id, id FROM namespacequotas WHERE NOT counted OR recount ORDER BY namespace_id LIMIT $1`, n)
	if err != nil {
		return nil, fmt.Errorf("looking for quotas to count: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (q rowKey, err error) {
		err = row.Scan(&q.namespaceID, &q.id)
		return q, err
	})
}

// waitForWriters waits until every transaction of this database that has an id now has ended. A
// transaction gets its id before its first write, and triggers run after the write. Until it ends
// it has locks of its id and of the table. Comparing ids instead, by snapshots, would wait for
// transactions of the server's other databases too.
func (k *Keeper) waitForWriters(ctx context.Context) error {
	const writers = `
		SELECT COALESCE(array_agg(DISTINCT x.transactionid::text), '{}') FROM pg_locks x
		WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted AND x.virtualtransaction IN (
			SELECT virtualtransaction FROM pg_locks
			WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`
	var ids []string
	err := k.db.Pool.QueryRow(ctx, writers).Scan(&ids)
	for err == nil && len(ids) > 0 {
		if err = worker.Sleep(ctx, writersPoll); err == nil {
			err = k.db.Pool.QueryRow(ctx, writers+" AND x.transactionid::text = ANY ($1)", ids).Scan(&ids)
		}
	}
	if err != nil {
		return fmt.Errorf("waiting for transactions that don't know a new quota: %w", err)
	}
	return nil
}

// countContent counts the content of a namespace and corrects the numbers of its quota. It does
// nothing if the quota was deleted, or somebody else has counted it meanwhile.
func (k *Keeper) countContent(ctx context.Context, q rowKey) error {
	ctx = db.Unhurried(ctx)
	stored, content, counts, err := k.compareContent(ctx, q)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = k.db.Tx(ctx, func(tx pgx.Tx) error {
			b := new(db.Batch)
			b.Exec(`
				UPDATE namespacequotas SET bytes = bytes + @bytes, repositories = repositories + @repositories, tags = tags + @tags,
					counts = counts + 1, counted = true, recount = false
				WHERE namespace_id = @namespace AND id = @id AND counts = @counts`, db.Args{
				"namespace": q.namespaceID, "id": q.id, "counts": counts,
				"bytes": content.Bytes - stored.Bytes, "repositories": content.Repositories - stored.Repositories, "tags": content.Tags - stored.Tags})
			b.Exec("SELECT purser_quota_close($1)", q.namespaceID)
			return b.Send(ctx, tx)
		})
	}
	if err != nil {
		return fmt.Errorf("counting the content of namespace %d: %w", q.namespaceID, err)
	}
	return nil
}

// compareContent reads, in one snapshot, the numbers of a quota, the sums over the
// namespace's content, and how often the content was counted. It reads whole partitions, since
// content of deleted repositories counts until it is deleted too, and no index leads to it by the
// namespace.
func (k *Keeper) compareContent(ctx context.Context, q rowKey) (stored, content Usage, counts int64, err error) {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, k.db.Pool, o, func(tx pgx.Tx) error {
		if err := db.LiftLimits(ctx, tx); err != nil {
			return err
		}
		b := new(db.Batch)
		b.Exec("SET LOCAL enable_seqscan = on")
		b.Row([]any{&stored.Bytes, &stored.Repositories, &stored.Tags, &counts},
			`SELECT q.bytes + s.bytes, q.repositories + s.repositories, q.tags + s.tags, q.counts
			FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s
			WHERE q.namespace_id = $1 AND q.id = $2`, q.namespaceID, q.id)
		b.Row([]any{&content.Bytes}, `
			SELECT LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint
			FROM (SELECT DISTINCT blob_digest FROM repository_blobs WHERE top_level_namespace_id = $1) l
			CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = l.blob_digest OFFSET 0) b`, q.namespaceID)
		b.Row([]any{&content.Repositories}, "SELECT count(*) FROM repositories WHERE top_level_namespace_id = $1", q.namespaceID)
		b.Row([]any{&content.Tags}, "SELECT count(*) FROM tags WHERE top_level_namespace_id = $1", q.namespaceID)
		return b.Send(ctx, tx)
	})
	return stored, content, counts, err
}

// Drift is a quota whose numbers differ from the content of its namespace.
type Drift struct {
	Namespace       string
	Stored, Content Usage
	key             rowKey
}

// Drifts compares the numbers of each counted quota with the content of its namespace, and
// calls found for those that differ. Pushes don't make numbers differ.
func (k *Keeper) Drifts(ctx context.Context, found func(Drift) error) (compared int64, err error) {
	after := ""
	for {
		list, next, err := k.List(ctx, after, pageOfQuotas)
		if err != nil {
			return compared, err
		}
		for _, q := range list {
			if !q.Counted {
				continue
			}
			d := Drift{Namespace: q.Namespace, key: rowKey{q.namespaceID, q.ID}}
			d.Stored, d.Content, _, err = k.compareContent(db.Unhurried(ctx), d.key)
			if errors.Is(err, pgx.ErrNoRows) {
				continue
			}
			if err != nil {
				return compared, fmt.Errorf("comparing the quota of %s with its content: %w", q.Namespace, err)
			}
			compared++
			if d.Stored != d.Content {
				if err := found(d); err != nil {
					return compared, err
				}
			}
		}
		if after = next; after == "" {
			return compared, nil
		}
	}
}

// Repair counts the content of the namespace again.
func (k *Keeper) Repair(ctx context.Context, d Drift) error {
	return k.countContent(ctx, d.key)
}
