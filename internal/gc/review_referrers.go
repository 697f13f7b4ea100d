package gc

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A manifest may be the subject of any number of referrers, so neither the put nor the
// deletion of a subject may read all its referrers:
//
//   - A review deletes a referrer if its subject doesn't exist. Before that, the review
//     takes a shared advisory lock on the subject's digest, then looks for the subject a
//     second time, and keeps the lock until its commit. A put of a new manifest takes the
//     advisory lock on its own digest exclusively before its insert. If the review gets the
//     lock first, the put of the subject waits for the review's commit, so its client never
//     sees the deleted referrer. If the put has the lock, the review doesn't wait but
//     postpones the referrer. Once the review gets the lock, it looks for the subject in a
//     new statement, which sees a subject that was committed before.
//
//   - A put of a manifest that exists already needs no advisory lock: it locks the
//     manifest's row (FOR KEY SHARE) until its commit. So no review deletes the manifest,
//     and every review of its referrers sees it.
//
//   - The deletion of a subject queues up to a hundred of its referrers for review. For the
//     others it inserts a row into gc_subject_review_queue, and reviewers queue them page
//     by page (QueueReferrers), in the order of manifest ids. The transaction that queues a
//     page also stores in this row where the next page begins, so that another process
//     continues there if this one dies. A referrer that is pushed later isn't missed: its
//     put waits for the subject's deletion, and queues the referrer itself. If the subject
//     is put and deleted again meanwhile, the new deletion queues the first referrers
//     again, and sets the row back to the referrer after these.
//
//   - An older event may have queued a referrer for review before QueueReferrers does. A
//     review postpones such a referrer, so that it isn't deleted before the review delay of
//     the subject's deletion is over.

// maxSubjects bounds the advisory locks of one review, which take space in PostgreSQL's
// lock table. If a batch has referrers of more subjects, the rows of the remaining
// referrers stay due for the next batch.
const maxSubjects = 200

// lockSubjects tries to take the advisory locks on the subjects of the manifests in
// `locked`, which make puts of these subjects wait. `keys` maps a manifest's id to the key
// of its subject's lock. `ready` has the manifests that have no subject, or whose subject's
// lock was free. `nextBatch` has the manifests whose subjects exceed maxSubjects. If
// another transaction has the lock of a manifest's subject, the manifest is in neither
// result.
func lockSubjects(ctx context.Context, tx pgx.Tx, locked manifestKeys, keys map[int64]int32) (ready, nextBatch manifestKeys, err error) {
	if len(keys) == 0 {
		return locked, nextBatch, nil
	}
	got := make(map[int32]bool)
	var want []int32
	for _, id := range locked.ids {
		key, ok := keys[id]
		if _, known := got[key]; ok && !known && len(want) < maxSubjects {
			got[key] = false
			want = append(want, key)
		}
	}
	rows, err := tx.Query(ctx, "SELECT key FROM unnest($1::int[]) AS key WHERE pg_try_advisory_xact_lock_shared(1886745444, key)", want)
	if err != nil {
		return ready, nextBatch, err
	}
	var key int32
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error {
		got[key] = true
		return nil
	}); err != nil {
		return ready, nextBatch, err
	}
	for i, id := range locked.ids {
		key, ok := keys[id]
		mine, asked := got[key]
		switch {
		case !ok || mine:
			ready.add(locked.namespaces[i], locked.repositories[i], id)
		case !asked:
			nextBatch.add(locked.namespaces[i], locked.repositories[i], id)
		}
	}
	return ready, nextBatch, nil
}

// QueueReferrers queues up to `page` referrers of one deleted subject for review; `did`
// says whether a deleted subject was waiting for this. Several processes may call it at
// once.
func (c *Collector) QueueReferrers(ctx context.Context, page int) (did bool, err error) {
	if err := c.opt.Reviews.Pool.QueryRow(ctx, "SELECT gc_queue_more_referrers($1)", page).Scan(&did); err != nil {
		return false, fmt.Errorf("queueing referrers of a deleted subject: %w", err)
	}
	return did, nil
}
