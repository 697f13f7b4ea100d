package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A manifest may be the subject of any number of referrers, so neither a put nor a
// deletion of it reads them all:
//
//   - A review deletes a referrer because its subject isn't there. It holds an advisory
//     lock on the subject's digest, shared, from before its second look until its commit. A
//     put of a manifest that isn't there holds the same lock alone, from before its insert.
//     So either the review is over before the put goes on, and the put's client never sees
//     the referrer that was deleted; or the review doesn't get the lock, for which it never
//     waits, and puts the referrer off. When it comes back, or when it gets the lock, its
//     look is a new statement, which sees the subject if that was committed.
//   - A put of a manifest that is there needs no lock: it holds the row itself (FOR KEY
//     SHARE) until its commit, and every look sees that row.
//   - The deletion of a subject queues a page of referrers, and leaves a row of
//     gc_subject_review_queue for the others. Pages are queued in order of ids, each in one
//     transaction with the place where the next page begins; a worker that dies in between
//     leaves the row as it was. A referrer that comes later isn't missed: its put has
//     waited for the deletion, and has queued it. A deletion of the same subject, put again
//     meanwhile, begins anew behind its own first page.
//   - A review of a referrer that isn't queued yet (it may have an older row of its own)
//     puts it off, so that it isn't deleted before the delay of the deletion is over.
//
// A replica of the first release takes no advisory lock when it reviews. While one runs
// beside, a referrer that it reviews at the moment at which the subject is committed may
// go, as if the review had been first.

// subjectLocks is the first key of the advisory locks of subjects.
const subjectLocks = "1886745444"

// maxSubjects bounds the advisory locks of one review, which stand in PostgreSQL's memory
// for locks. The referrers of further subjects are left to the next batch.
const maxSubjects = 200

// subjectKey is the SQL of the second key of a subject's advisory lock.
func subjectKey(repository, digest string) string {
	return "hashtext(" + repository + " || ':' || encode(" + digest + ", 'hex'))"
}

// lockSubjects locks the subjects of manifests that are locked, against their puts, and
// returns those manifests whose subjects it has locked, or that have none; left are those
// whose subjects were too many. keys are of the subjects, by manifest.
func lockSubjects(ctx context.Context, tx pgx.Tx, locked manifestKeys, keys map[int64]int32) (held, left manifestKeys, err error) {
	if len(keys) == 0 {
		return locked, left, nil
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
	rows, err := tx.Query(ctx, "SELECT key FROM unnest($1::int[]) AS key WHERE pg_try_advisory_xact_lock_shared("+subjectLocks+", key)", want)
	if err != nil {
		return held, left, err
	}
	var key int32
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error {
		got[key] = true
		return nil
	}); err != nil {
		return held, left, err
	}
	for i, id := range locked.ids {
		key, ok := keys[id]
		mine, asked := got[key]
		switch {
		case !ok || mine:
			held.add(locked.namespaces[i], locked.repositories[i], id)
		case !asked:
			left.add(locked.namespaces[i], locked.repositories[i], id)
		}
	}
	return held, left, nil
}

// QueueReferrers queues up to page referrers of one deleted subject for review, and says
// whether there was such a subject. Several processes may do so at once.
func (c *Catalog) QueueReferrers(ctx context.Context, page int) (did bool, err error) {
	if err := c.opt.Background.Pool.QueryRow(ctx, "SELECT gc_queue_more_referrers($1)", page).Scan(&did); err != nil {
		return false, fmt.Errorf("queueing referrers of a deleted subject: %w", err)
	}
	return did, nil
}
