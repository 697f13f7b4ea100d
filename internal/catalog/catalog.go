// Package catalog stores the registry's metadata: namespaces, repositories, manifests, tags,
// blobs and uploads. It has the SQL of clients' requests. The SQL of garbage collection and
// auto-pruning is in the packages gc and autoprune, which follow the same rules and call this
// package through face.go.
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
// A quota is counted under locks of its own, and not under those of the review queue, which every
// link of an existing blob takes too. So the argument in db/routines/quotas.sql needs nothing from
// the code that changes links. A quota in one row would make the pushes of a namespace wait for one
// another: over 16 connections they took 42% longer. Slots with room of their own let them commit
// together, and no limit is exceeded.
//
// A request that deletes a repository or a namespace changes a single row, and so does one that
// restores it. A deleted namespace hides its repositories, whose rows keep their paths, so a path
// is unique within a namespace's row only. See trash.go.
//
// Triggers notify the caches of other processes, so changes by psql are covered too. They send
// nothing while no other process keeps a cache, since each notification slows commits.
package catalog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
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
	// TrashKeep is how long a deleted repository or namespace can be brought back. 0: not at all.
	TrashKeep time.Duration
	// SparseIndexes accepts indexes that list manifests which the repository lacks.
	SparseIndexes bool
	// Look compares an object of the store with the size in bytes that it must have. It
	// returns a description of the difference, or "" if there is none. It is called outside of
	// transactions. Nil: objects aren't checked.
	Look func(ctx context.Context, key string, size int64) (wrong string, err error)
	// Store is where labels of images are read from, in namespaces that allow labels to decide about
	// tags. Nil: no label counts.
	Store Reader
	// MostProtectionRules is how many rules a repository, a namespace or the registry may have that
	// protect tags. Default MaxProtectionRules.
	MostProtectionRules int
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

	protection atomic.Pointer[protection] // nil until it was read
	expiry     expiry
	quotas     quotaCache
	labelReads *limit.Queue // of the reads of labels

	interruptions atomic.Uint64 // see Interruptions
}

// New makes a catalog. Its caches stay unused until Listen runs.
func New(o Options) *Catalog {
	o.ManifestCacheBytes = cmp.Or(o.ManifestCacheBytes, 64<<20)
	o.CacheEntries = cmp.Or(o.CacheEntries, 100_000)
	o.MaxRequest = cmp.Or(o.MaxRequest, 2*time.Hour)
	o.MostProtectionRules = cmp.Or(o.MostProtectionRules, MaxProtectionRules)
	o.Background = cmp.Or(o.Background, o.DB)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Catalog{db: o.DB, opt: o, log: o.Log, cache: newCache(o), labelReads: limit.NewQueue(labelReads, labelReadsWaiting)}
}

// AliveRepositories returns those of the `ids` whose repositories exist, sorted, and locks
// these repositories against deletion until the transaction ends. The recorder of pulls calls
// it, because it writes audit entries some time after the pulls, when a repository may have
// been deleted. A repository in the trash exists: the pulls were before, and it may come back.
func AliveRepositories(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// LivingNamespaces returns, for those of the `ids` whose repositories exist, the ids of their
// namespaces, and locks these repositories against deletion until the transaction ends. The
// statistics of pulls call it for the same reason as [AliveRepositories]. It leaves out
// repositories whose namespace is deleted, which are about to be deleted too.
func LivingNamespaces(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]int64, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.id, r.top_level_namespace_id FROM repositories r
		WHERE r.id = ANY ($1) AND EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = r.top_level_namespace_id OFFSET 0)
		ORDER BY r.id FOR KEY SHARE OF r`, ids)
	if err != nil {
		return nil, err
	}
	namespaces := make(map[int64]int64, len(ids))
	var id, namespace int64
	_, err = pgx.ForEachRow(rows, []any{&id, &namespace}, func() error {
		namespaces[id] = namespace
		return nil
	})
	return namespaces, err
}

// repository identifies a repository's row.
type repository struct {
	namespace, id int64
}

// lookUp returns an existing repository. Error: NAME_UNKNOWN.
func (c *Catalog) lookUp(ctx context.Context, path string) (repository, error) {
	fresh := c.cache.fresh(ctx)
	gen := c.cache.content(path)
	if r, ok := get(c.cache, fresh, c.cache.repositories, pathKey(path), gen); ok {
		return r, nil
	}
	var r repository
	err := c.db.Pool.QueryRow(ctx,
		"SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).Scan(&r.namespace, &r.id)
	switch {
	case isNoRows(err):
		return r, nameUnknown(path)
	case err != nil:
		return r, fmt.Errorf("looking for repository %s: %w", path, err)
	}
	keep(c.cache, c.cache.repositories, pathKey(path), r, gen)
	return r, nil
}

// HasRepository returns whether there is a repository of that name.
func (c *Catalog) HasRepository(ctx context.Context, path string) (bool, error) {
	_, err := c.lookUp(ctx, path)
	if oci.CodeOf(err) == oci.NameUnknown {
		return false, nil
	}
	return err == nil, err
}

// create makes a repository, and its namespace if that doesn't exist. If the repository
// exists, create does nothing and `made` is false. Rows that deleted repositories and namespaces
// of these names have left are in nobody's way: those in the trash have other names (see
// trash.go), and a path is unique only among the repositories of one namespace's row.
func (c *Catalog) create(ctx context.Context, path string) (made bool, err error) {
	namespace, _, _ := strings.Cut(path, "/")
	err = db.Retry(ctx, func() error {
		b := new(batch)
		b.exec("INSERT INTO top_level_namespaces (name) VALUES ($1) ON CONFLICT DO NOTHING", namespace)
		b.row([]any{&made}, `
			WITH made AS (
				INSERT INTO repositories (top_level_namespace_id, path)
				SELECT id, $2 FROM live_namespaces WHERE name = $1 FOR KEY SHARE
				ON CONFLICT DO NOTHING RETURNING 1)
			SELECT EXISTS (SELECT FROM made)`, namespace, path)
		// xmin is the id of the transaction that inserted a row. So this statement writes an
		// audit entry only for a namespace and a repository that this transaction made.
		b.exec(`
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id)
			SELECT 'org_create', @actor, @address, @user_agent, @request_id, name, NULL, NULL::bigint
			FROM top_level_namespaces WHERE name = @namespace AND xmin = pg_current_xact_id()::xid
			UNION ALL
			SELECT 'create_repo', @actor, @address, @user_agent, @request_id, @namespace, path, id
			FROM repositories WHERE path = @path AND deleted_at IS NULL AND xmin = pg_current_xact_id()::xid`,
			audit.Args(ctx, db.Args{"namespace": namespace, "path": path}))
		return b.send(ctx, c.db.Pool)
	})
	if err = c.quotaRefusal(ctx, path, err); err != nil {
		if isClientError(err) {
			return false, err
		}
		return false, fmt.Errorf("creating repository %s: %w", path, err)
	}
	return made, nil
}

func nameUnknown(path string) error {
	return oci.Errorf(oci.NameUnknown, "repository %s is not known to this registry", path).
		WithDetail(map[string]string{"name": path})
}
