// Package gc deletes what the registry no longer needs. Database triggers put each manifest
// and blob that may be without a reference into a review queue; Reviewers delete those of them
// that nothing references. The Reaper deletes the rows of abandoned uploads. The objects of
// deleted blobs and uploads are recorded as pending deletions, rows of gc_doomed_objects; the
// Sweeper deletes these objects from the blob store. Collect does the work of all three until
// nothing is due.
//
// # A review
//
// A review works on a batch of due rows of one queue, in one transaction of a few set-based
// statements (Collector.Review, then review_manifests.go or review_blobs.go):
//
//   - claim: it locks due rows of the queue, and skips rows that other transactions have
//     locked;
//   - look: it finds out which of the manifests or blobs in these rows are referenced;
//   - lock: it locks the manifests or blobs that seem unreferenced, and skips those that other
//     transactions have locked;
//   - look again: it repeats the look for the locked manifests or blobs, in a new statement;
//   - delete: it deletes those that are still unreferenced, and records the object of each
//     deleted blob as a pending deletion;
//   - settle: it drops the queue rows of manifests or blobs that are referenced, deleted or
//     missing, and postpones the queue rows of those that other transactions have locked. A
//     review of manifests drops queue rows before it deletes, since triggers insert new queue
//     rows for what a deletion frees.
//
// Such a review never deletes a manifest or blob in use, and never forgets an unused one,
// because:
//
//   - The review locks the queue row first. A transaction that removes a reference writes the
//     same row. If such a transaction wrote the row before the claim, it has either committed,
//     so that the review sees its change, or still has the row locked, so that the claim skips
//     the row. If it writes the row later, it waits for the review and then inserts a new row.
//     So the review may drop the queue row of a manifest or blob in use.
//
//   - The review locks a manifest or blob that seems unused FOR UPDATE, and then looks again
//     in a new statement. Making a reference takes KEY SHARE on the referenced row, so no
//     reference can be made after the lock, and the second look sees the references made
//     before. A single statement that both locks and looks would use a snapshot from before
//     the lock.
//
//   - A review doesn't wait for clients: it skips and postpones the manifests and blobs that
//     another transaction has locked. So no client waits for a reviewer that waits for another
//     client. There is one exception: the triggers that run on the review's deletions write to
//     the review queues, and may have to wait for a row there. If a client waits for the
//     review at the same time, the review fails and not the client, since the lock timeout of
//     the review's connection is shorter than PostgreSQL's deadlock_timeout.
//
//   - A promise of existence (a client was told that a blob or manifest exists) is a queue row
//     that isn't due yet. Once the row is due, the promise has expired, since no event makes a
//     row due earlier. A client that asks again during the review has to write the row, and so
//     waits for the review's lock on the row.
//
// The files, in the order of reading: reviewer.go has the worker that reviews batch after
// batch, review.go the transaction of one batch, review_manifests.go and review_blobs.go the
// steps of that transaction. Of its special cases, review_cycles.go explains manifests that
// reference each other in a cycle, review_referrers.go the referrers of a subject,
// review_links.go the links of repositories to blobs. failed_reviews.go postpones reviews that
// fail and makes them due again. The race tests prove each statement of a review (see
// race_rule_test.go); "make model" explores the whole protocol.
//
// # Objects
//
// The following rules guarantee that the sweeper never deletes an object in use, whichever
// process stalls or dies, and that every object to be deleted is deleted at last:
//
//   - An object is recorded for deletion by the transaction that deletes the row of the blob
//     or upload to which the object belonged, and storage keys are never reused. So the
//     deletion may come arbitrarily late: no other object can have the key.
//
//   - Deleting an object twice is harmless, since keys are never reused. The row in
//     gc_doomed_objects is removed only after the store has confirmed the deletion. If a
//     sweeper dies in between, its claim of the row expires after SweeperOptions.ClaimTime,
//     and another sweeper deletes the object.
//
//   - A request whose upload was deleted, or taken over by another request, may still be
//     writing an object of that upload. So the sweeper deletes the objects of an upload a
//     second time, when every request that began before the first time must be over.
//
//   - The object of a deleted blob isn't deleted from the store before gc.keep_doomed has
//     passed since the blob's row was deleted. If the database is restored within that time to
//     a state from before the deletion, the restored row of the blob still finds its object in
//     the store. The pending deletion isn't part of the restored state.
//
//   - While the store carries another database's identity, nothing is swept, reaped or
//     repaired: the objects of this database would be missing there and count as deleted, and
//     the objects in the store belong to another registry.
//
//   - No storage call is made inside a database transaction, so that no lock and no connection
//     is occupied while a storage call hangs.
package gc

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// Options configures a Collector.
type Options struct {
	Catalog *catalog.Catalog // required: it ends uploads, and knows how long a request may write
	DB      *db.DB           // required: reads, and claims objects for the sweeper
	// Reviews is the connection pool that reviews use; default DB. Its Options.Replica must be
	// empty, so that the caches of all processes, including this one, are notified of what a
	// review deletes. Its LockTimeout must be shorter than PostgreSQL's deadlock_timeout, so
	// that the review fails if a review and a client wait for each other.
	Reviews *db.DB
	// KeepDoomed is how long the objects of deleted blobs stay in the store, so that a
	// restored older database still finds them. Default 0: the sweeper deletes them at once.
	KeepDoomed time.Duration
	Log        *slog.Logger // default slog.Default()
}

// Collector runs the transactions of garbage collection; Reviewer, Reaper, Sweeper and Collect
// decide when. Its methods may be called concurrently, by any number of processes on one
// database.
type Collector struct {
	db  *db.DB
	opt Options
	log *slog.Logger
}

// New makes a collector. It starts nothing.
func New(o Options) *Collector {
	o.Reviews = cmp.Or(o.Reviews, o.DB)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Collector{db: o.DB, opt: o, log: o.Log}
}

// KeepDoomed is how long objects of deleted blobs are kept.
func (c *Collector) KeepDoomed() time.Duration { return c.opt.KeepDoomed }

// Snapshot runs fn in a read-only transaction all of whose statements see the same state of
// the database.
func (c *Collector) Snapshot(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}
