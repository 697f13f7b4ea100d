package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// quotaBatch is how many quotas one call of CountQuotas counts at most.
	quotaBatch = 20
	// writersPoll is how often waitForWriters looks.
	writersPoll = 50 * time.Millisecond
	// writersWait is how long CountQuotas waits for transactions that may not know a quota.
	writersWait = time.Minute
)

// quotaKey identifies a quota. A namespace's later quota has another id.
type quotaKey struct {
	namespaceID, id int64
}

// CountQuotas counts the content of namespaces with a new quota, and of those for which a recount
// was asked. No push waits. `more` says that there are further quotas to count. Any number of
// processes may call it at once.
//
// From its commit on, all triggers see a new quota's row and add to its numbers what they change.
// A transaction whose triggers ran before may still be under way. So CountQuotas first waits
// until every transaction that has written something before it read the row has ended. Then it
// reads, in one snapshot, the numbers of the row with its slots and the sums over the content. Both have
// exactly the transactions that were committed before the snapshot, so their difference is what
// was there before the quota, and it stays the same however much is written meanwhile. Adding it
// to the row makes the numbers right. The row's number of counts makes sure that no difference
// is added twice.
func (c *Catalog) CountQuotas(ctx context.Context) (more bool, err error) {
	list, err := c.uncounted(ctx, quotaBatch+1)
	if err != nil || len(list) == 0 {
		return false, err
	}
	if more = len(list) > quotaBatch; more {
		list = list[:quotaBatch]
	}
	wait, cancel := context.WithTimeout(ctx, writersWait)
	defer cancel()
	if err := c.waitForWriters(wait); err != nil {
		return false, err
	}
	for _, q := range list {
		if err := c.countQuota(ctx, q); err != nil {
			return false, err
		}
	}
	return more, nil
}

func (c *Catalog) uncounted(ctx context.Context, n int) ([]quotaKey, error) {
	rows, err := c.db.Pool.Query(ctx, `
		SELECT namespace_id, id FROM namespacequotas WHERE NOT counted OR recount ORDER BY namespace_id LIMIT $1`, n)
	if err != nil {
		return nil, fmt.Errorf("looking for quotas to count: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (q quotaKey, err error) {
		err = row.Scan(&q.namespaceID, &q.id)
		return q, err
	})
}

// waitForWriters waits until every transaction of this database that has an id now has ended. A
// transaction gets its id before its first write, and triggers run after the write. Until it ends
// it has locks of its id and of the table. Comparing ids instead, by snapshots, would wait for
// transactions of the server's other databases too.
func (c *Catalog) waitForWriters(ctx context.Context) error {
	const writers = `
		SELECT COALESCE(array_agg(DISTINCT x.transactionid::text), '{}') FROM pg_locks x
		WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted AND x.virtualtransaction IN (
			SELECT virtualtransaction FROM pg_locks
			WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`
	var ids []string
	err := c.db.Pool.QueryRow(ctx, writers).Scan(&ids)
	for err == nil && len(ids) > 0 {
		if err = worker.Sleep(ctx, writersPoll); err == nil {
			err = c.db.Pool.QueryRow(ctx, writers+" AND x.transactionid::text = ANY ($1)", ids).Scan(&ids)
		}
	}
	if err != nil {
		return fmt.Errorf("waiting for transactions that don't know a new quota: %w", err)
	}
	return nil
}

// countQuota counts the content of a namespace and corrects the numbers of its quota. It does
// nothing if the quota was deleted, or somebody else has counted it meanwhile.
func (c *Catalog) countQuota(ctx context.Context, q quotaKey) error {
	ctx = db.Unhurried(ctx)
	stored, content, counts, err := c.compareQuota(ctx, q)
	if isNoRows(err) {
		return nil
	}
	if err == nil {
		err = c.db.Tx(ctx, func(tx pgx.Tx) error {
			b := new(batch)
			b.exec(`
				UPDATE namespacequotas SET bytes = bytes + @bytes, repositories = repositories + @repositories, tags = tags + @tags,
					counts = counts + 1, counted = true, recount = false
				WHERE namespace_id = @namespace AND id = @id AND counts = @counts`, db.Args{
				"namespace": q.namespaceID, "id": q.id, "counts": counts,
				"bytes": content.Bytes - stored.Bytes, "repositories": content.Repositories - stored.Repositories, "tags": content.Tags - stored.Tags})
			b.exec("SELECT purser_quota_close($1)", q.namespaceID)
			return b.send(ctx, tx)
		})
	}
	if err != nil {
		return fmt.Errorf("counting the content of namespace %d: %w", q.namespaceID, err)
	}
	return nil
}

// compareQuota reads, in one snapshot, the numbers of a quota, the sums over the
// namespace's content, and how often the content was counted. It reads whole partitions, since
// content of deleted repositories counts until it is deleted too, and no index leads to it by the
// namespace.
func (c *Catalog) compareQuota(ctx context.Context, q quotaKey) (stored, content Usage, counts int64, err error) {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, c.db.Pool, o, func(tx pgx.Tx) error {
		if err := db.LiftLimits(ctx, tx); err != nil {
			return err
		}
		b := new(batch)
		b.exec("SET LOCAL enable_seqscan = on")
		b.row([]any{&stored.Bytes, &stored.Repositories, &stored.Tags, &counts},
			`SELECT q.bytes + s.bytes, q.repositories + s.repositories, q.tags + s.tags, q.counts
			FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s
			WHERE q.namespace_id = $1 AND q.id = $2`, q.namespaceID, q.id)
		b.row([]any{&content.Bytes}, `
			SELECT LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint
			FROM (SELECT DISTINCT blob_digest FROM repository_blobs WHERE top_level_namespace_id = $1) l
			CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = l.blob_digest OFFSET 0) b`, q.namespaceID)
		b.row([]any{&content.Repositories}, "SELECT count(*) FROM repositories WHERE top_level_namespace_id = $1", q.namespaceID)
		b.row([]any{&content.Tags}, "SELECT count(*) FROM tags WHERE top_level_namespace_id = $1", q.namespaceID)
		return b.send(ctx, tx)
	})
	return stored, content, counts, err
}

// QuotaDrift is a quota whose numbers differ from the content of its namespace.
type QuotaDrift struct {
	Namespace       string
	Stored, Content Usage
	key             quotaKey
}

// QuotaDrifts compares the numbers of each counted quota with the content of its namespace, and
// calls found for those that differ. Pushes don't make numbers differ.
func (c *Catalog) QuotaDrifts(ctx context.Context, found func(QuotaDrift) error) (compared int64, err error) {
	after := ""
	for {
		list, next, err := c.Quotas(ctx, after, quotaBatch)
		if err != nil {
			return compared, err
		}
		for _, q := range list {
			if !q.Counted {
				continue
			}
			d := QuotaDrift{Namespace: q.Namespace, key: quotaKey{q.namespaceID, q.ID}}
			d.Stored, d.Content, _, err = c.compareQuota(db.Unhurried(ctx), d.key)
			if isNoRows(err) {
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

// RepairQuota counts the content of the namespace again.
func (c *Catalog) RepairQuota(ctx context.Context, d QuotaDrift) error {
	return c.countQuota(ctx, d.key)
}
