// Package catalog is the registry's metadata: namespaces, repositories,
// manifests, tags, blobs, uploads and the objects that are to be deleted. All
// SQL on those tables is here.
//
// What holds inside, and why no content in use is lost:
//
//   - Every stored object has exactly one owner row. An upload's row is there
//     before its first byte; the commit of an upload deletes that row and makes
//     the blob's, or dooms the object, in one transaction; so does whatever
//     deletes a blob.
//   - A reference is a foreign key, so making one takes KEY SHARE on its
//     target; who deletes a target locks it FOR UPDATE first and looks for
//     references in a later statement. Every statement sees what committed
//     before it (READ COMMITTED), so one of the two always sees the other.
//   - A write is one transaction with one order of locks: the repository's row;
//     the names of tags that are put; the review row of a blob that exists and is
//     to be linked or unlinked;
//     blobs; their links to the repository; children of an index; tags; review
//     rows of manifests; many of a kind in the order of their keys. When it loses
//     a race all the same (a deadlock, a target that was deleted while it waited)
//     it runs again whole, and what the client hears is the answer of the last
//     run.
//   - What a sparse index lists and the repository doesn't have is linked when it
//     is pushed or, if both were pushed at the same moment, by the manifest's
//     review before it decides (see sparse.go).
//   - To say that a blob exists is to promise that it stays for the review
//     delay: the promise is written before the blob is looked for (see
//     PromiseBlob).
//   - Caches never serve what this process has changed (see cache) and are
//     used only while news of other processes' changes arrives (see Listen).
package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Options says how to keep the catalog.
type Options struct {
	DB *db.DB // required; its Options.Replica must be Replica.String()
	// Background is the pool of reviews. Its Options.Replica is empty, so that
	// the caches of every process, this one included, hear of what a review
	// deletes, and its LockTimeout is short. Default DB, for a process without
	// caches.
	Background *db.DB
	// Pruning is the pool in which policies read and delete tags, opened like that
	// of reviews. Default Background.
	Pruning *db.DB
	// Replica names this process among those that share the database.
	Replica uuid.UUID
	// ManifestCacheBytes bounds the payloads kept in memory. Default 64 MiB.
	ManifestCacheBytes int
	// CacheEntries bounds each of the other caches (tags, blobs of
	// repositories, repositories, promises). Default 100,000.
	CacheEntries int
	// CacheOff leaves every cache unused.
	CacheOff bool
	// MaxRequest is the longest that a request may write to the store: doomed
	// objects that came from an upload are swept once more after it. Default
	// 2 h.
	MaxRequest time.Duration
	// KeepDoomed is how long objects of deleted blobs are kept, so that they are
	// still there after a restore of an older database. Default 0: not at all.
	KeepDoomed time.Duration
	// SparseIndexes accepts indexes of which manifests are missing.
	SparseIndexes bool
	// Look says what is wrong with an object of the store that must have size bytes,
	// "" for nothing. It is called outside of transactions. Nil: nobody looks.
	Look  func(ctx context.Context, key string, size int64) (wrong string, err error)
	Audit Audit // the zero value writes nothing
	// Collected makes a statement, without arguments of its own, that notes what garbage
	// collection deletes, from a query of namespace, repository (identifiers) and
	// manifests, a number. It becomes a part of the deletion's statement. Nil: nobody
	// wants to know.
	Collected func(query string) string
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
}

// New makes a catalog. Its caches stay unused until Listen runs.
func New(o Options) *Catalog {
	if o.ManifestCacheBytes <= 0 {
		o.ManifestCacheBytes = 64 << 20
	}
	if o.CacheEntries <= 0 {
		o.CacheEntries = 100_000
	}
	if o.MaxRequest <= 0 {
		o.MaxRequest = 2 * time.Hour
	}
	if o.Background == nil {
		o.Background = o.DB
	}
	if o.Pruning == nil {
		o.Pruning = o.Background
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Audit = o.Audit.orNone()
	return &Catalog{db: o.DB, opt: o, log: o.Log, cache: newCache(o)}
}

// repository is the identity of a repository's row.
type repository struct {
	namespace, id int64
}

// lockRepository is the first statement of every transaction that inserts
// below a repository: it keeps the repository and its namespace alive until the
// commit, and refuses if they are gone, so that nothing is inserted that a
// deletion in progress would overlook. Arguments: namespace, id, path.
const lockRepository = `
	SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('` + string(repositoryGone) + `') END
	FROM (SELECT FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
	      WHERE n.id = $1 AND r.id = $2 AND r.path = $3
	      FOR KEY SHARE) alive`

// lookUp finds a repository that exists. It returns NAME_UNKNOWN otherwise.
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

// HasRepository tells whether there is a repository of that name.
func (c *Catalog) HasRepository(ctx context.Context, path string) (bool, error) {
	_, err := c.lookUp(ctx, path)
	if oci.CodeOf(err) == oci.NameUnknown {
		return false, nil
	}
	return err == nil, err
}

// lifeAttempts is how often a write may find its repository deleted and make it
// anew. Each time somebody has deleted it in between.
const lifeAttempts = 20

// ensure finds a repository or creates it with its namespace, unless mayCreate,
// which may be nil, has an answer instead. Path must be a valid name.
func (c *Catalog) ensure(ctx context.Context, path string, mayCreate func() error) (repository, error) {
	r, err := c.lookUp(ctx, path)
	for range lifeAttempts { // it may be deleted as soon as it is made
		if oci.CodeOf(err) != oci.NameUnknown {
			break
		}
		if mayCreate != nil {
			if err := mayCreate(); err != nil {
				return r, err
			}
		}
		if _, err := c.create(ctx, path); err != nil {
			return r, err
		}
		r, err = c.lookUp(ctx, path)
	}
	return r, err
}

// create makes a repository with its namespace, unless there is one by that name.
func (c *Catalog) create(ctx context.Context, path string) (made bool, err error) {
	namespace, _, _ := strings.Cut(path, "/")
	err = db.Retry(ctx, func() error {
		b := new(batch)
		// One that its namespace has left behind is in the way until it is drained.
		b.exec(`DELETE FROM repositories r WHERE path = $1
			AND NOT EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = r.top_level_namespace_id)`, path)
		b.exec("INSERT INTO top_level_namespaces (name) VALUES ($1) ON CONFLICT DO NOTHING", namespace)
		b.row([]any{&made}, `
			WITH made AS (
				INSERT INTO repositories (top_level_namespace_id, path)
				SELECT id, $2 FROM top_level_namespaces WHERE name = $1 FOR KEY SHARE
				ON CONFLICT DO NOTHING RETURNING 1)
			SELECT EXISTS (SELECT FROM made)`, namespace, path)
		// What is of this transaction was made by it.
		b.exec(c.entries(`
			SELECT 'org_create' AS kind, name AS namespace, NULL::text AS repository, NULL::bigint AS repository_id,
				NULL::text AS tag, NULL::bytea AS digest, NULL::jsonb AS detail
			FROM top_level_namespaces WHERE name = $5 AND xmin = pg_current_xact_id()::xid
			UNION ALL
			SELECT 'create_repo', $5, path, id, NULL, NULL, NULL
			FROM repositories WHERE path = $6 AND xmin = pg_current_xact_id()::xid`), c.who(ctx, namespace, path)...)
		return b.send(ctx, c.db.Pool)
	})
	if err != nil {
		return false, fmt.Errorf("creating repository %s: %w", path, err)
	}
	return made, nil
}

// change runs a write that changes what the caches may hold of path, and drops
// that before and after. A client that goes away doesn't stop it: the change is
// more useful done than in doubt.
func (c *Catalog) change(ctx context.Context, path string, drop func(path string), write func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	drop(path)
	err := write(ctx)
	if err != nil && !isAnswer(err) && !isRefusal(err) && db.Code(err) == "" {
		c.cache.doubt(path)
	}
	drop(path)
	return err
}

// txOrAnswer runs fn in a transaction that is committed also where fn has an answer for
// the client, or a refusal, instead of a change: fn has changed nothing then but what does
// no harm. A transaction that is rolled back looks like a failure to those who watch
// PostgreSQL.
func (c *Catalog) txOrAnswer(ctx context.Context, fn func(tx pgx.Tx) error) error {
	var answer error
	err := c.db.Tx(ctx, func(tx pgx.Tx) error {
		answer = fn(tx)
		if isAnswer(answer) || isRefusal(answer) {
			return nil
		}
		return answer
	})
	if err != nil {
		return err
	}
	return answer
}

// writeTimeout bounds a write, reruns included.
const writeTimeout = time.Minute

// withRepository runs write on the repository, created if need be and mayCreate
// (nil: always) doesn't answer instead, again when the repository was deleted
// meanwhile or the write lost a race.
func (c *Catalog) withRepository(ctx context.Context, path string, mayCreate func() error, write func(r repository) error) error {
	for range lifeAttempts {
		r, err := c.ensure(ctx, path, mayCreate)
		if err != nil {
			return err
		}
		err = db.Retry(ctx, func() error { return write(r) })
		if !errors.Is(err, repositoryGone) {
			return err
		}
		c.cache.dropAll(path)
	}
	return fmt.Errorf("repository %s is deleted and created again without pause", path)
}

// isAnswer says whether err is what a client is to be told, and not a failure.
func isAnswer(err error) bool {
	_, ok := errors.AsType[*oci.Error](err)
	return ok
}

func nameUnknown(path string) error {
	return oci.Errorf(oci.NameUnknown, "repository %s is not known to this registry", path).
		WithDetail(map[string]string{"name": path})
}
