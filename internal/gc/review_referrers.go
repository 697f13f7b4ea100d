package gc

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A manifest may be the subject of any number of referrers, so neither putting nor deleting
// it may read them all:
//
//   - A review deletes a referrer because its subject doesn't exist. From before its second
//     look until its commit it holds a shared advisory lock on the subject's digest. A put
//     of a new manifest takes the same lock exclusively, before its insert. So either the
//     review ends before the put goes on, and the put's client never sees the deleted
//     referrer; or the review doesn't get the lock, for which it never waits, and postpones
//     the referrer. When the review runs again, or gets the lock, its second look is a
//     new statement, which sees the subject if that was committed.
//   - A put of an existing manifest needs no lock: it keeps the row itself (FOR KEY SHARE)
//     until its commit, and every look sees that row.
//   - The deletion of a subject queues one page of referrers, and leaves a row in
//     gc_subject_review_queue for the others. Pages are queued in order of ids; each
//     transaction also stores where the next page begins, so if a worker dies, the row is as
//     it was. A referrer that is pushed later isn't missed: its put waits for the deletion,
//     and queues the referrer itself. If the subject is put and deleted again meanwhile, the
//     row starts again behind the new deletion's first page.
//   - A review of a referrer that the deletion hasn't queued yet (an older event may have
//     queued it) postpones it, so that the referrer isn't deleted before the deletion's
//     delay is over.
//
// A replica of the first release takes no advisory lock when it reviews. While such a
// replica runs, it may delete a referrer at the moment at which the subject is committed, as
// if the review had come first.

// maxSubjects bounds the advisory locks of one review, which take space in PostgreSQL's lock
// table. Referrers of further subjects are left to the next batch.
const maxSubjects = 200

// lockSubjects takes the advisory locks on the subjects of locked manifests, which block
// puts of those subjects. ready are the manifests that have no subject, or whose subject it
// locked; nextBatch are the manifests whose subjects exceed maxSubjects. keys maps a
// manifest's id to its subject's lock key.
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

// QueueReferrers queues up to page referrers of one deleted subject for review, and says
// whether there was such a subject. Several processes may do so at once.
func (c *Collector) QueueReferrers(ctx context.Context, page int) (did bool, err error) {
	if err := c.opt.Reviews.Pool.QueryRow(ctx, "SELECT gc_queue_more_referrers($1)", page).Scan(&did); err != nil {
		return false, fmt.Errorf("queueing referrers of a deleted subject: %w", err)
	}
	return did, nil
}
