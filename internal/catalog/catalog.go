// Package catalog stores the registry's metadata: namespaces, repositories, manifests, tags,
// blobs and uploads. It has the SQL of clients' requests. The SQL of garbage collection and
// auto-pruning is in the packages gc and autoprune, which follow the same rules and call this
// package through face.go. Lists and descriptions are in browse, and the deletion of repositories and
// namespaces is in trash, above this package; quotas and the rules that protect tags are in quota and
// protection, below it.
//
// No content in use is lost, because all code keeps these rules:
//
//   - Every stored object has exactly one owner row. An upload's row exists before the
//     upload's first byte. The commit of an upload deletes the upload's row and, in the same
//     transaction, either inserts the blob's row or records the object for deletion. Every
//     transaction that deletes a blob's row also records its object for deletion.
//
//   - A reference is a foreign key. A transaction that inserts a reference has a KEY SHARE lock
//     on the row of the reference's target. A transaction that deletes a target first locks
//     the target's row FOR UPDATE, and looks for references in a later statement. Every
//     statement sees what was committed before it began (READ COMMITTED). So either the
//     deletion sees the new reference, or the insert finds that the target was deleted.
//
//   - A write is one transaction with a fixed order of locks: the repository's row; if it
//     deletes tags or manifests, the lock of deletions (see package hold); the names of the
//     tags to be put; the review row of an existing blob that is to be linked or unlinked;
//     blobs; their links to the repository; children of an index; tags; review rows of
//     manifests; and last the namespace's quota, which triggers lock (db/routines/quotas.sql).
//     Several rows of one table are locked in the order of their keys. The write may still
//     fail because of a concurrent transaction: by a deadlock, or because a row that it
//     references was deleted while it waited. Then the write runs again from the beginning,
//     and the client gets the answer of the last run. [Catalog.write] decides after which
//     failures a write runs again.
//
//   - A sparse index lists manifests that the repository lacks. When such a manifest is
//     pushed, it becomes the index's child. If index and manifest are pushed at the same
//     moment, neither push may see the other; then the manifest's review makes it the index's
//     child before it looks for references to the manifest (see sparse.go).
//
//   - Telling a client that a blob exists promises that the blob stays for the review delay:
//     the promise is written before the blob is looked up (see PromiseBlobExists).
//
//   - A cache never serves data that this process has changed after the data was cached (see
//     cache). The caches are used only while notifications of other processes' changes arrive
//     (see Listen).
//
// # Decisions
//
// A push of a manifest deletes no row of the review queue. A manifest with a tag needs no review,
// but its row in the queue may be a promise of existence to another client. If the push deleted the
// row, a later event with a shorter delay could queue the manifest again, and its review would come
// before the promise is over. So only a review deletes such a row. A new manifest that arrives with
// its tag isn't queued at all: one statement inserts manifest and tag, and the trigger sees the
// tag.
//
// The foreign key from an index to its children is checked at the commit, so that one statement can
// delete an index with its children. PostgreSQL then locks the children only at the commit, too
// late for a push. Therefore the push of an index locks them by a statement of its own
// (lock_children in put_manifest.sql).
//
// A blob whose object is lost (blobs.lost_at) doesn't exist for clients, so that the next push
// restores it for every repository. Therefore the registry looks for the blob's object in the store
// before it says that the blob exists (VerifyBlob).
//
// A request locks an upload's repository when it commits the upload as a blob, not when it saves
// the upload's state. So a save takes no lock on the repository's row. If an upload is saved for
// the first time while its repository is being deleted, the reaper ends the upload.
//
// Open uploads are counted by their rows, when the rows are inserted (StartUploads). So the limits
// of clients and accounts are exact, whichever replica starts, finishes or cancels an upload. Rows
// that are made ahead belong to the client for whom they are made, so starting an upload needs no
// commit of its own. They count too, and few of them are made near a limit.
//
// A request that deletes a repository or a namespace changes a single row, and so does one that
// restores it. A deleted namespace hides its repositories, whose rows keep their paths, so a path
// is unique within a namespace's row only. See package trash.
//
// Triggers notify the caches of other processes, so changes by psql are covered too. They send
// nothing while no other process keeps a cache, since each notification slows commits.
package catalog

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/quota"
)

// Options configures a catalog.
type Options struct {
	DB *db.DB // required; its Options.Replica must be Replica.String()
	// Background is the pool for work that no client waits for. Its Options.Replica is empty,
	// so that the caches of all processes, including this one, are notified of changes made
	// through this pool. Its LockTimeout is short. If Background is nil, the pool DB does this
	// work too, which suits a process without caches.
	Background *db.DB
	// Replica names this process among those that share the database.
	Replica uuid.UUID
	// ManifestCacheBytes bounds the payloads kept in memory. Default 64 MiB.
	ManifestCacheBytes int
	// CacheEntries bounds the number of entries in each of four caches: of tags, of blobs of
	// repositories, of repositories, and of promises. Default 100,000.
	CacheEntries int
	// CacheOff disables every cache.
	CacheOff bool
	// MaxRequest is the longest time for which a request may write to the store. After an
	// upload has ended, a request that began before the end may still write one of the
	// upload's objects. Therefore the sweeper deletes these objects a second time, when
	// MaxRequest, TicketMaxAge and a minute have passed since the end. Default 2 h.
	MaxRequest time.Duration
	// Quotas keeps the quotas of namespaces. Whoever changes quotas in this process uses the same
	// keeper. Default: one of the catalog's own.
	Quotas *quota.Keeper
	// SparseIndexes accepts indexes that list manifests which the repository lacks.
	SparseIndexes bool
	// Look compares an object of the store with the size in bytes that it must have. It
	// returns a description of the difference, or "" if there is none. It is called outside of
	// transactions. Nil: objects aren't checked.
	Look func(ctx context.Context, key string, size int64) (wrong string, err error)
	// Store is where labels of images are read from, in namespaces that allow labels to decide about
	// tags. Nil: no label counts.
	Store Reader
	// CheckTime returns an error while what is old at a time that the database has given mustn't be
	// deleted for its age (clock.Guard.CheckTime). Nil: it may.
	CheckTime func(ctx context.Context, now time.Time) error
	Log       *slog.Logger // default slog.Default()
}

// Catalog reads and writes the metadata. Its methods may be called
// concurrently, by any number of processes on one database.
type Catalog struct {
	db    *db.DB
	opt   Options
	log   *slog.Logger
	cache *cache

	protection atomic.Pointer[protection.Rules] // nil until it was read
	expiry     expiry
	quotas     *quota.Keeper
	labelReads *limit.Queue // of the reads of labels

	interruptions atomic.Uint64 // see Interruptions
}

// New makes a catalog. Its caches stay unused until Listen runs.
func New(o Options) *Catalog {
	o.ManifestCacheBytes = cmp.Or(o.ManifestCacheBytes, 64<<20)
	o.CacheEntries = cmp.Or(o.CacheEntries, 100_000)
	o.MaxRequest = cmp.Or(o.MaxRequest, 2*time.Hour)
	o.Background = cmp.Or(o.Background, o.DB)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Quotas == nil {
		o.Quotas = quota.New(quota.Options{DB: o.DB, Log: o.Log})
	}
	return &Catalog{db: o.DB, opt: o, log: o.Log, cache: newCache(o), quotas: o.Quotas, labelReads: limit.NewQueue(labelReads, labelReadsWaiting)}
}
