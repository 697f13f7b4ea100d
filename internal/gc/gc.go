// Package gc deletes what the registry no longer needs. When a manifest or blob may have
// lost its last reference, database triggers insert a row for it into a review queue.
// Reviewers later delete the manifest or blob if nothing references it. The Reaper deletes
// the rows of abandoned uploads. The objects of deleted blobs and uploads are recorded as
// pending deletions (rows of gc_doomed_objects), and the Sweeper deletes these objects from
// the blob store. Collect does the work of Reviewers, Reaper and Sweeper until nothing is
// due.
//
// # A review
//
// A review works on a batch of due rows of one review queue, in one transaction of a few
// set-based statements (Collector.Review, then review_manifests.go or review_blobs.go):
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
//     review of manifests drops queue rows before it deletes manifests. For the triggers of
//     a deletion insert new queue rows for the manifests that lose a reference, and these
//     rows must stay.
//
// For the following reasons, a review never deletes a manifest or blob in use, and never
// drops the queue row of an unused one that it doesn't delete:
//
//   - A review locks the queue row of a manifest or blob before it looks for references. A
//     transaction that removes a reference to the manifest or blob writes to the same queue
//     row. If it wrote to the row before the review's claim, it has either committed, so
//     that the review sees its change, or still has the row locked, so that the claim skips
//     the row. If it writes to the row later, it waits for the review and then inserts a
//     new row. So the review may drop the queue row of a manifest or blob in use.
//
//   - A review locks a manifest or blob that seems unused FOR UPDATE, and then looks for
//     references again in a new statement. A transaction that makes a reference takes KEY
//     SHARE on the referenced row. So no reference can be made after the review's lock, and
//     the second look sees the references made before. A single statement that both locks
//     and looks would use a snapshot from before the lock.
//
//   - A review doesn't wait for clients: it skips and postpones the manifests and blobs
//     that another transaction has locked. So no client waits for a reviewer that waits for
//     another client. There are two exceptions. A review of manifests begins with the lock of
//     deletions (see package hold), and so waits for reports and changes of policies, before
//     it has any other lock. And the triggers that run on a review's deletions
//     write to the review queues, and may have to wait for a row there. If a client waits
//     for the review at the same time, the review fails and not the client, since the lock
//     timeout of the review's connection is shorter than PostgreSQL's deadlock_timeout. A
//     reviewer tries again what failed so.
//
//   - A promise of existence (a client was told that a blob or manifest exists) is stored
//     as the review_after of the blob's or manifest's queue row: until that time no review
//     claims the row. An event may move the review_after of a row to a later time, but never
//     to an earlier one, so the promise of a due row has expired. A client that asks again
//     during the review has to write to the row, and so waits for the review's lock on it.
//
// The files, in the order of reading: reviewer.go has the worker that reviews batch after
// batch, review.go the transaction of one batch, review_manifests.go and review_blobs.go
// the steps of that transaction. Three files explain special cases: review_cycles.go
// explains manifests that reference each other in a cycle, review_referrers.go the
// referrers of a subject, review_links.go the links of repositories to blobs.
// failed_reviews.go postpones reviews that fail and makes them due again. For each SQL
// statement of a review, race tests stop the review before and after it (see
// race_rule_test.go). "make model" explores a model of the whole protocol.
//
// # Objects
//
// The following rules guarantee that the sweeper never deletes an object in use, whichever
// process stalls or dies, and that it finally deletes every object that is to be deleted:
//
//   - The transaction that deletes a blob's or upload's row also records its objects for
//     deletion, and storage keys are never reused. So the sweeper may delete an object
//     arbitrarily late: no other object can have its key.
//
//   - Deleting an object twice is harmless, since storage keys are never reused. The
//     sweeper removes the object's row from gc_doomed_objects only after the store has
//     confirmed the deletion. If a sweeper dies in between, its claim of the row expires
//     after SweeperOptions.ClaimTime, and another sweeper deletes the object.
//
//   - A request whose upload was deleted, or taken over by another request, may still be
//     writing an object of that upload. So the sweeper deletes the objects of an upload a
//     second time, when every request that began before the first deletion must be over.
//
//   - The sweeper doesn't delete the object of a deleted blob before gc.keep_doomed has
//     passed since the deletion of the blob's row. If the database is restored within that
//     time to a state from before the row's deletion, the restored row still finds its
//     object in the store. The restored database has no pending deletion of the object.
//
//   - While a backup copies objects, sweepers claim no pending deletions: see PauseSweeps.
//     Everything else goes on.
//
//   - A store carries the identity of the database to which it belongs. If that database
//     isn't the one that this process uses, the sweeper, the reaper and repairs do nothing.
//     For the objects in such a store belong to another registry. And a store reports no
//     error if an object to be deleted is missing, so the sweeper would record objects as
//     deleted that still exist in this registry's own store.
//
//   - No call to the blob store is made inside a database transaction, so that no lock and
//     no database connection is occupied while a call hangs.
//
// # Decisions
//
// A due review of a blob doesn't look at the ages of the blob's links. When the review is due, the
// promise of existence is over, so all links of an unreferenced blob can be deleted.
//
// If more than a thousand repositories have a link to a blob, such as a base layer, its unused
// links are removed in several transactions (review_links.go). A single transaction would hold its
// locks for long, and clients would have to wait for it.
//
// The sweeper deletes the objects of young blobs twice, like those of uploads. If a write to the
// store was sent twice, the store may execute the second write late, after the object was deleted,
// and so create the object again.
//
// An object of another registry, whose import isn't finished, is kept out of the pending deletions
// by a trigger: see package registryimport.
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
	Catalog *catalog.Catalog // required: deletes uploads, and tells how long a request may write
	DB      *db.DB           // required: for reads and for the sweeper's claims
	// Reviews is the connection pool that reviews use; default DB. It must be opened with
	// an empty db.Options.Replica: triggers don't notify the process with the id Replica of
	// changes made on the pool's connections, but each process must remove from its cache
	// what its own reviews delete. The pool's LockTimeout must be shorter than PostgreSQL's
	// deadlock_timeout, so that the review fails if a review and a client wait for each
	// other.
	Reviews *db.DB
	// KeepDoomed is how long the objects of deleted blobs stay in the store, so that a
	// restored older database still finds them (gc.keep_doomed). Default 0: the sweeper
	// deletes them at once.
	KeepDoomed time.Duration
	// Untagged returns for how long policies keep manifests from when nothing references them,
	// by the manifest's id. Manifest i has the id manifests[i] and is in namespaces[i] and
	// repositories[i]. Nil: if there are such policies, the collector deletes no manifest.
	Untagged func(ctx context.Context, tx pgx.Tx, namespaces, repositories, manifests []int64) (map[int64]Retention, error)
	// MayDelete returns an error that wraps worker.ErrRest while nothing may be deleted for its age
	// (see package clock). Nil: it always may.
	MayDelete func(ctx context.Context) error
	// CheckTime returns an error while what is old at a time that the database has given mustn't be
	// deleted for its age (clock.Guard.CheckTime). Nil: it may.
	CheckTime func(ctx context.Context, now time.Time) error
	Log       *slog.Logger // default slog.Default()
}

// Collector runs the transactions of garbage collection; Reviewer, Sweeper and Collect decide
// when to run them. Its methods may be called concurrently, by any number of processes on one
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

// KeepDoomed returns Options.KeepDoomed.
func (c *Collector) KeepDoomed() time.Duration { return c.opt.KeepDoomed }

// Snapshot runs fn in a read-only transaction all of whose statements see the same state of
// the database.
func (c *Collector) Snapshot(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}
