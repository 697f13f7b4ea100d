// Package gc deletes what the registry no longer needs. Reviewers take the manifests and
// blobs that database triggers have put into the review queues, and delete those without a
// reference. The Reaper deletes the rows of abandoned uploads. Both record the freed objects
// as pending deletions, rows of gc_doomed_objects; the Sweeper deletes these objects from the
// blob store. Collect does all three until nothing is due.
//
// # A review
//
// A review takes a batch of due rows from one queue, in one transaction of a few set-based
// statements (Collector.Review, then review_manifests.go or review_blobs.go):
//
//   - claim: it locks the due rows of the queue, and skips those that others have locked;
//   - look: it finds out which objects are referenced;
//   - lock: it locks the objects that seem unreferenced, and skips those that others have
//     locked;
//   - look again, in a new statement;
//   - delete the objects that are still unreferenced; of a blob, the object in the store is
//     recorded for deletion;
//   - settle: it drops the queue's rows of objects that are referenced, deleted or missing,
//     and postpones the rows of objects that other transactions have locked. For manifests
//     it drops the rows before it deletes, since triggers make new rows for objects that a
//     deletion frees.
//
// This never deletes an object in use, and never forgets an unused one, because:
//
//   - The review locks the queue's row first. A transaction that removes a reference writes
//     this row too, so it waits from then on, and what it did before is visible to the
//     statements that follow. So the review may drop the row when it finds the object in
//     use: whoever removes that reference later makes a new row.
//   - The review locks an object that seems unused FOR UPDATE, and then looks again in a new
//     statement. Making a reference takes KEY SHARE on its target, so no reference can be
//     made after the lock, and those made before are seen. A single statement that locks and
//     looks would look with a snapshot from before the lock.
//   - A review skips and postpones objects that another transaction has locked: it doesn't
//     wait for clients, so clients never wait for a reviewer that waits for a client. Where
//     it has to wait (for the queue rows of what its deletions free), its connection's lock
//     timeout is shorter than deadlock_timeout, so that the review fails and not the client.
//   - A promise of existence ("it exists", told to a client) is a queue row that isn't due
//     yet. A due row holds no promise, since no event makes a row due earlier; and it stays
//     due until the commit, since whoever wants to promise waits for the row's lock.
//
// The files, in the order of reading: reviewer.go has the worker that reviews batch after
// batch, review.go one batch, review_manifests.go and review_blobs.go its steps;
// review_cycles.go explains manifests that reference each other in a cycle,
// review_referrers.go the referrers of a subject, review_links.go the links of repositories
// to blobs; failed_reviews.go postpones reviews that fail and brings them back. The race
// tests prove each statement of a review (see race_rule_test.go); "make model" explores the
// whole protocol.
//
// # Objects
//
// The following rules guarantee that no object in use is ever deleted, whatever stalls or
// dies, and that no object to be deleted is forgotten:
//
//   - An object is recorded for deletion in the same transaction that removes the row which
//     owned it, and storage keys are never reused. So the deletion may come arbitrarily
//     late: its key can't mean another object.
//   - Deleting an object twice is harmless for the same reason. The row in gc_doomed_objects
//     is removed only after the store has confirmed the deletion. If a sweeper dies in
//     between, another sweeper takes the object when the first one's claim expires
//     (SweeperOptions.ClaimTime); two sweepers that claim the same object do no harm.
//   - A request that lost its upload may still write an object of that upload. So the
//     objects of an upload are swept a second time, after the longest time that a request
//     which began earlier can run.
//   - The object of a deleted blob is claimed no earlier than gc.keep_doomed after its row
//     was deleted. If the database is restored to a state from before, within that time, it
//     finds the object under the key in the restored row; the row that scheduled the
//     deletion belongs to the newer state and is gone.
//   - Nothing is swept, reaped or repaired while the store carries another database's
//     identity: objects missing there would count as deleted, and its objects belong to
//     another registry.
//   - No storage call is made inside a database transaction: a store that hangs holds no
//     lock and no connection.
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
	// Reviews is the pool of reviews. Its Options.Replica is empty, so that the caches of
	// all processes, including this one, are notified of what a review deletes; its
	// LockTimeout is shorter than PostgreSQL's deadlock_timeout, so that of a review and a
	// client that wait for each other the review fails. Default DB.
	Reviews *db.DB
	// KeepDoomed is how long objects of deleted blobs stay in the store, so that they still
	// exist after a restore of an older database. Default 0: they are deleted at once.
	KeepDoomed time.Duration
	Log        *slog.Logger // default slog.Default()
}

// Collector runs the transactions of garbage collection. The workers of this package decide
// when to run which transaction. Its methods may be called concurrently, by any number of
// processes on one database.
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

// Snapshot runs fn in a read-only transaction that sees one moment of the database.
func (c *Collector) Snapshot(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}
