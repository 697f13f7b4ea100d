package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// Upload is the state of an upload in progress, as it is stored in the upload's row in the
// table uploads. With this state any process can continue the upload.
//
// Attempt is a fencing token: ClaimUpload and SaveUpload raise it in the upload's row. A
// request claims the upload before it writes an object, unless it has a Ticket for the object.
// Only a request that names the current Attempt can reserve object numbers, save the upload's
// state or commit its blob. So if a request stalls, and a newer request claims the upload
// meanwhile, the stalled one can't change anything when it goes on: it is fenced.
type Upload struct {
	ID         uuid.UUID
	Repository string        // its path
	Home       Home          // where it belongs
	StorageKey string        // prefix of the keys of the upload's objects
	Algorithm  oci.Algorithm // the hash whose state HashState is
	HashState  []byte        // the state of the hash, by encoding.BinaryMarshaler; nil: nothing is hashed
	Size       int64         // acknowledged bytes
	StoreState []byte        // the state of the blob store; nil: nothing is stored yet
	Tail       []byte        // the acknowledged bytes, up to MaxTail
	// LastFrom is the offset of the first byte that the last saved request brought, and LastHead
	// the first bytes of that request, up to HeadSize. By them a repeat of the request is
	// recognised.
	LastFrom int64
	LastHead []byte
	Attempt  int64
	// Ticket is the number of an object of this upload that this process has reserved and not
	// used yet, or NoTicket. It isn't a column of the row.
	Ticket    int64
	StartedAt time.Time
}

// Home says which namespace and repository an upload belongs to, by the ids of their rows: those that
// had the names in the upload's URL when the upload began, or when its state was last saved. 0: there
// was none, so the upload belongs to one that is made later. When the namespace or the repository is
// deleted, the upload ends: it doesn't pass to another one that gets the same name.
//
// Each statement that reads or changes an upload compares these ids with those that the names have
// now. The comparison stands in each of them, since PostgreSQL starts an executor for each call of a
// SQL function with subqueries.
type Home struct{ Namespace, Repository int64 }

// Home returns the namespace and repository that have the names in the path now.
func (c *Catalog) Home(ctx context.Context, path string) (h Home, err error) {
	err = c.db.Pool.QueryRow(ctx, `
		SELECT COALESCE((SELECT id FROM live_namespaces WHERE name = split_part($1::text, '/', 1)), 0),
			COALESCE((SELECT id FROM live_repositories WHERE path = $1::text), 0)`, path).Scan(&h.Namespace, &h.Repository)
	if err != nil {
		return h, fmt.Errorf("looking where uploads to %s belong: %w", path, err)
	}
	return h, nil
}

// KnownHome is like Home, but answers from the cache if that has the repository. Then `cached` is true,
// and another process may have deleted the repository within the last second.
func (c *Catalog) KnownHome(ctx context.Context, path string) (h Home, cached bool, err error) {
	fresh := c.cache.fresh(ctx)
	gen := c.cache.content(path)
	if r, ok := get(c.cache, fresh, c.cache.repositories, pathKey(path), gen); ok {
		return Home{r.namespace, r.id}, true, nil
	}
	if h, err = c.Home(ctx, path); err == nil && h.Repository != 0 {
		keep(c.cache, c.cache.repositories, pathKey(path), repository{h.Namespace, h.Repository}, gen)
	}
	return h, false, err
}

// Earlier returns the homes of uploads whose URLs may be used now: h itself, and those without a
// repository or namespace, since both may have been made after an upload began.
func (h Home) Earlier() []Home {
	list := []Home{h}
	if h.Repository != 0 {
		list = append(list, Home{Namespace: h.Namespace})
	}
	if h.Namespace != 0 {
		list = append(list, Home{})
	}
	return list
}

// UploadID names an upload: the id of its row, and the home that its URL gives it.
type UploadID struct {
	ID   uuid.UUID
	Home Home
}

// UploadID returns the upload's name.
func (u Upload) UploadID() UploadID { return UploadID{u.ID, u.Home} }

// NoTicket is the value of Upload.Ticket if no object number is reserved.
const NoTicket = -1

// MaxTail is the maximum number of bytes of an unfinished upload that are kept in its row. A
// longer upload is written to the store. So a small blob becomes an object only when its
// upload is complete.
const MaxTail = 64 << 10

// HeadSize is the maximum number of bytes of Upload.LastHead.
const HeadSize = 256

// StartOptions are the options of StartUploads.
type StartOptions struct {
	N int // how many uploads to start
	// Client and Account are who starts the uploads. Their open uploads are counted together
	// with those of the same client, and of the same account. "": not counted.
	Client, Account string
	// MostOfClient limits the open uploads of a client, MostOfAccount those of an account,
	// MostOfRobots those of all robots of a namespace (see limit.Share), and Most those of all.
	// 0: no limit.
	MostOfClient, MostOfAccount, MostOfRobots, Most int
	// Drop has ids of unused uploads, which StartUploads deletes first (see DropUploads).
	Drop []uuid.UUID
}

// StartUploads inserts the rows of up to o.N new uploads. For each upload it reserves one object
// number for the caller, so that the caller can write the first object without claiming the
// upload. The uploads belong to no repository until their state is first saved. A process
// calls StartUploads ahead of need, for several rows in one commit, so that a client that
// starts an upload waits for no commit. Rows that stay unused are deleted like abandoned
// uploads (ReapUploads).
//
// If a limit is reached, StartUploads starts no upload and returns an UploadLimitError. Each
// row counts from its insertion until it is deleted, because the upload was finished or
// cancelled or has expired, on whatever replica. So that uploads that are made ahead don't use
// up a limit, StartUploads starts no more than a 32nd of the uploads that the limits still
// allow, but at least one.
//
// The limits of clients, accounts and robots hold exactly. A transaction locks the client and then
// the account, or all robots of its namespace, by advisory locks, before it counts rows, and keeps
// the locks until its own rows are committed. So all that insert rows of the same client, account or
// robots see each other's, and the order of the locks prevents deadlocks. The limit of all may be
// exceeded by uploads that are started at the same time.
func (c *Catalog) StartUploads(ctx context.Context, o StartOptions) ([]Upload, error) {
	list := make([]Upload, o.N)
	ids, keys := make([]uuid.UUID, o.N), make([]string, o.N)
	for i := range list {
		ids[i], keys[i] = uuid.New(), blob.NewBase()
		list[i] = Upload{ID: ids[i], StorageKey: keys[i], Algorithm: oci.SHA256, Ticket: 0, StartedAt: time.Now()}
	}
	b := new(batch)
	if len(o.Drop) > 0 {
		b.exec("DELETE FROM uploads WHERE id = ANY ($1) AND attempt = 0 AND repository = ''", o.Drop)
	}
	if o.MostOfClient > 0 && o.Client != "" { // 1886745445 and 1886745446 are key spaces of advisory locks
		b.exec("SELECT pg_advisory_xact_lock(1886745445, hashtext($1))", o.Client)
	}
	share := limit.Share(o.Account)
	robots, afterRobots := "", "" // their names are in this range
	if share != o.Account && o.MostOfRobots > 0 {
		robots, afterRobots = share, strings.TrimSuffix(share, "+")+","
	}
	if (o.MostOfAccount > 0 || robots != "") && o.Account != "" {
		b.exec("SELECT pg_advisory_xact_lock(1886745446, hashtext($1))", share)
	}
	var made, ofClient, ofAccount, ofRobots, ofAll int
	b.row([]any{&made, &ofClient, &ofAccount, &ofRobots, &ofAll}, `
		WITH present AS MATERIALIZED (
			SELECT (SELECT count(*) FROM (SELECT FROM uploads WHERE client = @client AND status = 1 LIMIT @most_of_client) c) AS of_client,
				(SELECT count(*) FROM (SELECT FROM uploads WHERE account = @account AND status = 1 LIMIT @most_of_account) a) AS of_account,
				(SELECT count(*) FROM (
					SELECT FROM uploads WHERE account > @robots AND account < @after_robots AND status = 1 LIMIT @most_of_robots) r) AS of_robots,
				(SELECT count(*) FROM (SELECT FROM uploads LIMIT @most) u) AS of_all
		), room AS MATERIALIZED (
			SELECT LEAST(@most_of_client - of_client, @most_of_account - of_account, @most_of_robots - of_robots, @most - of_all) AS n FROM present
		), made AS (
			INSERT INTO uploads (id, repository, storage_key, algorithm, numbers, client, account)
			SELECT u.id, '', u.storage_key, 'sha256', 1, @client, @account
			FROM unnest(@ids::uuid[], @keys::text[]) WITH ORDINALITY AS u (id, storage_key, i), room
			WHERE room.n > 0 AND (i = 1 OR i <= room.n / 32)
			RETURNING id
		)
		SELECT (SELECT count(*) FROM made), of_client, of_account, of_robots, of_all FROM present`, db.Args{
		"ids": ids, "keys": keys, "client": nameOrNull(o.Client), "account": nameOrNull(o.Account),
		"robots": nameOrNull(robots), "after_robots": nameOrNull(afterRobots),
		"most_of_client": limitOf(o.MostOfClient), "most_of_account": limitOf(o.MostOfAccount),
		"most_of_robots": limitOf(o.MostOfRobots), "most": limitOf(o.Most)})
	if err := b.send(ctx, c.db.Pool); err != nil {
		return nil, fmt.Errorf("starting uploads: %w", err)
	}
	switch {
	case made > 0:
		return list[:made], nil
	case ofClient >= o.MostOfClient && o.MostOfClient > 0:
		return nil, &UploadLimitError{limit.ClientUploads}
	case ofAccount >= o.MostOfAccount && o.MostOfAccount > 0:
		return nil, &UploadLimitError{limit.AccountUploads}
	case robots != "" && ofRobots >= o.MostOfRobots:
		return nil, &UploadLimitError{limit.RobotUploads}
	}
	return nil, &UploadLimitError{limit.Uploads}
}

// nameOrNull returns nil (NULL) for "".
func nameOrNull(name string) *string {
	if name == "" {
		return nil
	}
	return &name
}

// UploadLimitError says that no upload was started, because a limit on open uploads is reached.
type UploadLimitError struct {
	Limit string // limit.ClientUploads, limit.AccountUploads, limit.RobotUploads or limit.Uploads
}

func (e *UploadLimitError) Error() string {
	return "too many uploads are open: the limit " + e.Limit + " is reached"
}

// limitOf returns the number for a limit in a statement: n, or if there is no limit the highest
// number.
func limitOf(n int) int64 {
	if n <= 0 {
		return math.MaxInt32
	}
	return int64(n)
}

// DropUploads deletes the rows of uploads that StartUploads made and no client got.
func (c *Catalog) DropUploads(ctx context.Context, ids []uuid.UUID) error {
	_, err := c.db.Pool.Exec(ctx, "DELETE FROM uploads WHERE id = ANY ($1) AND attempt = 0 AND repository = ''", ids)
	if err != nil {
		return fmt.Errorf("dropping unused uploads: %w", err)
	}
	return nil
}

// Upload returns the upload of the repository that has one of the names, if it belongs to the
// repository that has the path now. Error: BLOB_UPLOAD_UNKNOWN.
func (c *Catalog) Upload(ctx context.Context, path string, names ...UploadID) (Upload, error) {
	u := Upload{Ticket: NoTicket}
	var algorithm string
	ids, namespaces, repositories := make([]uuid.UUID, len(names)), make([]int64, len(names)), make([]int64, len(names))
	for i, n := range names {
		ids[i], namespaces[i], repositories[i] = n.ID, n.Home.Namespace, n.Home.Repository
	}
	err := c.db.Pool.QueryRow(ctx, `
		SELECT u.id, u.storage_key, u.algorithm, u.hash_state, u.size, u.store_state, u.tail, u.last_from, u.last_head, u.attempt, u.created_at,
			COALESCE(u.namespace_id, want.namespace), COALESCE(u.repository_id, want.repository)
		FROM unnest(@ids::uuid[], @namespaces::bigint[], @repositories::bigint[]) AS want (id, namespace, repository)
		CROSS JOIN LATERAL (SELECT * FROM uploads WHERE id = want.id OFFSET 0) u
		WHERE u.repository IN (@path, '') AND u.status = 1
			AND COALESCE(u.namespace_id, want.namespace) IN (0, (SELECT id FROM live_namespaces WHERE name = split_part(@path::text, '/', 1)))
			AND COALESCE(u.repository_id, want.repository) IN (0, (SELECT id FROM live_repositories WHERE path = @path::text))
		LIMIT 1`, db.Args{"ids": ids, "namespaces": namespaces, "repositories": repositories, "path": path}).
		Scan(&u.ID, &u.StorageKey, &algorithm, &u.HashState, &u.Size, &u.StoreState, &u.Tail,
			&u.LastFrom, &u.LastHead, &u.Attempt, &u.StartedAt, &u.Home.Namespace, &u.Home.Repository)
	if err == nil {
		u.Algorithm, err = oci.ParseAlgorithm(algorithm)
	}
	switch {
	case isNoRows(err):
		return u, uploadUnknown(path)
	case err != nil:
		return u, fmt.Errorf("looking for an upload of %s: %w", path, err)
	}
	u.Repository = path
	return u, nil
}

// ClaimUpload makes the caller the upload's only writer, if the upload's row still has the
// attempt u.Attempt, and reserves n object numbers for the caller. It returns the new attempt
// and the lowest reserved number, `next`; the others follow it without gaps. Error:
// BLOB_UPLOAD_INVALID with status 416 if another request has claimed or changed the upload
// since u was read, or if the upload doesn't belong to the repository that has its path now; DENIED
// with status 409 if the namespace's quota has no room for what the request needs. What was promised to a request that runs doesn't pass to the caller: it may be room
// for a blob that the caller doesn't name.
func (c *Catalog) ClaimUpload(ctx context.Context, u Upload, n int, need UploadNeed) (claim UploadClaim, err error) {
	b := new(batch)
	b.guard([]any{&claim.Attempt, &claim.Next}, `
		WITH claimed AS (
			UPDATE uploads SET attempt = attempt + 1, numbers = numbers + @n, updated_at = now(),
				expected = CASE WHEN promised_until IS NOT NULL THEN size ELSE expected END, promised_until = NULL
			WHERE id = @upload AND attempt = @attempt AND status = 1
				AND COALESCE(namespace_id, @namespace) IN (0, (SELECT id FROM live_namespaces WHERE name = split_part(@path::text, '/', 1)))
				AND COALESCE(repository_id, @repository) IN (0, (SELECT id FROM live_repositories WHERE path = @path::text))
			RETURNING attempt, numbers - @n AS next
		)
		SELECT COALESCE(c.attempt, 0), COALESCE(c.next, 0),
			CASE WHEN c.attempt IS NULL THEN purser_refuse('another request has continued, finished or cancelled the upload') END
		FROM (SELECT 1) one LEFT JOIN claimed c ON true`, db.Args{
		"upload": u.ID, "attempt": u.Attempt, "n": n, "path": u.Repository, "namespace": u.Home.Namespace, "repository": u.Home.Repository})
	room := c.reserve(b, u, u.Attempt+1, need, new(PromiseAge))
	err = b.send(ctx, c.db.Pool)
	if errors.Is(err, uploadLost) {
		return UploadClaim{}, UploadMoved()
	}
	if err != nil {
		if refused := c.quotaRefusal(ctx, u.Repository, err); isClientError(refused) {
			return claim, refused
		}
		return claim, fmt.Errorf("claiming upload %s: %w", u.ID, err)
	}
	claim.Promised = room.n != nil
	claim.Room, claim.Beyond = room.room()
	return claim, nil
}

// UploadNumbers reserves n more object numbers, never used before, for the request that has
// claimed the upload. It returns the first of these numbers. Error: the same as ClaimUpload's.
func (c *Catalog) UploadNumbers(ctx context.Context, u Upload, n int) (first int64, err error) {
	err = c.db.Pool.QueryRow(ctx, `
		UPDATE uploads SET numbers = numbers + $3, updated_at = now()
		WHERE id = $1 AND attempt = $2
		RETURNING numbers - $3`, u.ID, u.Attempt, n).Scan(&first)
	if isNoRows(err) {
		return 0, UploadMoved()
	}
	if err != nil {
		return 0, fmt.Errorf("numbering parts of upload %s: %w", u.ID, err)
	}
	return first, nil
}

// SaveUpload stores the fields of u in the upload's row and ends the caller's claim, if the
// caller has claimed the upload. The caller may then tell the client that the bytes are saved.
// From the first save on, the row says which repository the upload belongs to, if there is one:
// deleting the repository cancels the upload. If the repository is deleted during the first save, the
// reaper later deletes the upload as abandoned. From it on, too, the upload's bytes count for its
// namespace's quota. SaveUpload returns the upload as its row is now, with a Ticket if the upload has
// no object yet. Errors: the same as ClaimUpload's.
func (c *Catalog) SaveUpload(ctx context.Context, u Upload) (Upload, error) {
	taken := 0
	if u.StoreState == nil && u.Ticket == NoTicket {
		taken = 1
	}
	b, saved := new(batch), u
	b.guard([]any{&saved.Attempt, &saved.Ticket, &saved.Home.Namespace, &saved.Home.Repository}, `
		WITH saved AS (
			UPDATE uploads SET attempt = attempt + 1, repository = @path, algorithm = @algorithm, hash_state = @hash_state,
				size = @size, store_state = @store_state, tail = @tail, last_from = @last_from, last_head = @last_head,
				numbers = numbers + @taken, updated_at = now(),
				expected = CASE WHEN promised_until < now() THEN size ELSE expected END, promised_until = NULL,
				repository_id = (SELECT id FROM live_repositories WHERE path = @path),
				namespace_id = (SELECT id FROM live_namespaces WHERE name = split_part(@path, '/', 1))
			WHERE id = @upload AND attempt = @attempt AND status = 1
				AND COALESCE(namespace_id, @namespace) IN (0, (SELECT id FROM live_namespaces WHERE name = split_part(@path::text, '/', 1)))
				AND COALESCE(repository_id, @repository) IN (0, (SELECT id FROM live_repositories WHERE path = @path::text))
			RETURNING attempt, CASE WHEN @taken > 0 THEN numbers - 1 ELSE @ticket END AS ticket, namespace_id, repository_id
		)
		SELECT COALESCE(s.attempt, 0), COALESCE(s.ticket, 0), COALESCE(s.namespace_id, 0), COALESCE(s.repository_id, 0),
			CASE WHEN s.attempt IS NULL THEN purser_refuse('another request has continued, finished or cancelled the upload') END
		FROM (SELECT 1) one LEFT JOIN saved s ON true`, db.Args{
		"upload": u.ID, "attempt": u.Attempt, "path": u.Repository, "algorithm": u.Algorithm.String(), "hash_state": u.HashState,
		"size": u.Size, "store_state": u.StoreState, "tail": u.Tail, "last_from": u.LastFrom, "last_head": u.LastHead,
		"taken": taken, "ticket": u.Ticket, "namespace": u.Home.Namespace, "repository": u.Home.Repository,
	})
	c.reserve(b, u, u.Attempt+1, UploadNeed{Bytes: u.Size}, nil)
	err := b.send(ctx, c.db.Pool)
	switch {
	case errors.Is(err, uploadLost):
		return u, UploadMoved()
	case err != nil:
		if refused := c.quotaRefusal(ctx, u.Repository, err); isClientError(refused) {
			return u, refused
		}
		return u, fmt.Errorf("saving upload %s: %w", u.ID, err)
	}
	return saved, nil
}

// CommitUpload turns the upload into a blob of its repository, in one transaction. If the blob
// is new, the transaction is one statement, which deletes the upload's row and inserts the
// blob's row and its link to the repository. If the blob exists already, the upload's objects
// are recorded for deletion, and the client is promised that the blob stays for the review
// delay. But if the store has lost the existing blob's object, the upload's object replaces
// it. `key` is the storage key of the upload's object; `leftovers` says that the upload may
// have other objects, which are then recorded for deletion. Error: the same as ClaimUpload's. No
// repository is made for an upload that belonged to one which was deleted.
func (c *Catalog) CommitUpload(ctx context.Context, u Upload, d oci.Digest, key string, leftovers bool) error {
	if err := c.AdmitBlob(ctx, u.Repository, u.ID, d, u.Size); err != nil {
		return err
	}
	doing := fmt.Sprintf("committing upload %s to %s as %s", u.ID, u.Repository, d)
	mayCreate := func(ctx context.Context) error {
		h, err := c.Home(ctx, u.Repository)
		if err == nil && !slices.Contains(h.Earlier(), u.Home) {
			err = UploadMoved()
		}
		return err
	}
	err := c.write(ctx, write{path: u.Repository, doing: doing, create: true, checkBeforeCreate: mayCreate, run: func(ctx context.Context, r repository) error {
		err := c.commitNew(ctx, r, u, d, key, leftovers)
		if errors.Is(err, blobExists) {
			if err = c.verifyKnown(ctx, u.Repository, d); err == nil {
				err = c.commitKnown(ctx, r, u, d)
			}
		}
		if errors.Is(err, blobLost) {
			err = c.commitLost(ctx, r, u, d, key, leftovers)
		}
		return err
	}})
	if errors.Is(err, uploadLost) {
		return UploadMoved()
	}
	return err
}

// commitNew commits an upload whose blob doesn't exist yet, and returns the refusal blobExists
// if the blob exists. Its statement is a chain of CTEs, each of which reads the CTE before it,
// so that they run in this order: lock the repository; lock the upload; insert the blob;
// delete the upload's row if the blob was inserted. The insert waits for transactions that
// insert or delete the same blob.
func (c *Catalog) commitNew(ctx context.Context, r repository, u Upload, d oci.Digest, key string, leftovers bool) error {
	b := new(batch)
	b.guard(nil, `
		WITH alive AS MATERIALIZED (
			SELECT FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
			WHERE n.id = @namespace AND r.id = @repository AND r.path = @path AND r.deleted_at IS NULL
			FOR KEY SHARE
		), held AS MATERIALIZED (
			SELECT FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND EXISTS (SELECT FROM alive)
				AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			FOR UPDATE
		), b AS (
			INSERT INTO blobs (digest, size, storage_key)
			SELECT @digest, @size, @key FROM held
			ON CONFLICT (digest) DO NOTHING
			RETURNING digest
		), l AS (
			INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT @namespace, @repository, digest FROM b ON CONFLICT DO NOTHING
		), gone AS (
			DELETE FROM uploads WHERE id = @upload AND EXISTS (SELECT FROM b) RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, again_at)
			SELECT storage_key, true, @key, now() + @late::interval FROM gone WHERE @leftovers
		)
		SELECT CASE
			WHEN NOT EXISTS (SELECT FROM alive) THEN purser_refuse('the repository was deleted meanwhile')
			WHEN NOT EXISTS (SELECT FROM held) THEN purser_refuse('another request has continued, finished or cancelled the upload')
			WHEN NOT EXISTS (SELECT FROM b) THEN purser_refuse('the blob exists already') END`,
		db.Args{"upload": u.ID, "attempt": u.Attempt, "digest": d.Bytes(), "size": u.Size, "key": key, "leftovers": leftovers,
			"late": c.late(), "namespace": r.namespace, "repository": r.id, "path": u.Repository,
			"home_namespace": u.Home.Namespace, "home_repository": u.Home.Repository})
	return b.send(ctx, c.db.Pool)
}

// commitKnown commits an upload whose blob exists: it promises that the blob stays for the
// review delay, locks the blob's row, and links the blob to the repository. If another
// transaction deletes the blob while commitKnown waits for the lock, commitKnown returns the
// refusal blobGone, and [Catalog.write] runs the whole commit again.
func (c *Catalog) commitKnown(ctx context.Context, r repository, u Upload, d oci.Digest) error {
	b := new(batch)
	b.lockRepository(r, u.Repository)
	b.promiseBlob(d)
	b.guard(nil, `
		SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the blob was deleted meanwhile')
			WHEN count(lost_at) > 0 THEN purser_refuse('the store has lost the blob') END
		FROM (SELECT lost_at FROM blobs WHERE digest = $1 FOR KEY SHARE) locked`, d.Bytes())
	b.guard(nil, `
		WITH u AS (
			DELETE FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND purser_accepted()
				AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
			SELECT storage_key, true, @size, now() + @late::interval FROM u)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM u) THEN purser_refuse('another request has continued, finished or cancelled the upload') END`,
		db.Args{"upload": u.ID, "attempt": u.Attempt, "size": u.Size, "late": c.late(), "namespace": r.namespace, "repository": r.id,
			"home_namespace": u.Home.Namespace, "home_repository": u.Home.Repository})
	b.linkBlob(r, d)
	return b.send(ctx, c.db.Pool)
}

// commitLost commits an upload whose blob exists but has lost its object in the store. The
// blob's row gets the upload's object, so every repository with a link to the blob has it
// again. The old object is recorded for deletion. If two uploads of the same lost blob are committed at once, the second
// commit finds that the blob has an object again, and CommitUpload runs again and calls
// commitKnown. Right after it has locked the blob, commitLost deletes the upload's row, and
// refuses the commit if the row has another attempt. So a request whose upload was taken over
// by a newer request changes nothing else.
func (c *Catalog) commitLost(ctx context.Context, r repository, u Upload, d oci.Digest, key string, leftovers bool) error {
	b := new(batch)
	b.lockRepository(r, u.Repository)
	b.promiseBlob(d)
	b.guard(nil, `SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the blob was deleted meanwhile') END
		FROM (SELECT FROM blobs WHERE digest = $1 AND lost_at IS NOT NULL FOR NO KEY UPDATE) locked`, d.Bytes())
	b.guard(nil, `
		WITH u AS (
			DELETE FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND purser_accepted()
				AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, again_at)
			SELECT storage_key, true, @key, now() + @late::interval FROM u WHERE @leftovers)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM u) THEN purser_refuse('another request has continued, finished or cancelled the upload') END`,
		db.Args{"upload": u.ID, "attempt": u.Attempt, "key": key, "late": c.late(), "leftovers": leftovers, "namespace": r.namespace, "repository": r.id,
			"home_namespace": u.Home.Namespace, "home_repository": u.Home.Repository})
	b.exec(`
		INSERT INTO gc_doomed_objects (storage_key, size)
		SELECT storage_key, size FROM blobs WHERE digest = $1 AND purser_accepted()
		ON CONFLICT DO NOTHING`, d.Bytes())
	b.exec("UPDATE blobs SET storage_key = $2, size = $3, lost_at = NULL WHERE digest = $1 AND purser_accepted()",
		d.Bytes(), key, u.Size)
	b.linkBlob(r, d)
	return b.send(ctx, c.db.Pool)
}

// CancelUpload deletes the upload's row and records the upload's objects for deletion from the
// store. Error: BLOB_UPLOAD_UNKNOWN.
func (c *Catalog) CancelUpload(ctx context.Context, path string, name UploadID) error {
	done, err := c.db.Pool.Exec(ctx, `
		WITH u AS (
			DELETE FROM uploads WHERE id = @upload AND repository IN (@path, '')
				AND COALESCE(namespace_id, @namespace) IN (0, (SELECT id FROM live_namespaces WHERE name = split_part(@path::text, '/', 1)))
				AND COALESCE(repository_id, @repository) IN (0, (SELECT id FROM live_repositories WHERE path = @path::text))
			RETURNING *
		), d AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
			SELECT storage_key, true, size, now() + @late::interval FROM u)
		SELECT FROM u`, db.Args{"upload": name.ID, "path": path, "late": c.late(), "namespace": name.Home.Namespace, "repository": name.Home.Repository})
	switch {
	case err != nil:
		return fmt.Errorf("cancelling upload %s: %w", name.ID, err)
	case done.RowsAffected() == 0:
		return uploadUnknown(path)
	}
	return nil
}

// ReapUploads deletes up to n uploads that no request has saved or claimed for the duration
// `age`, up to n uploads whose repository was deleted, and up to n whose only request has died
// before anything was acknowledged. It returns how many it deleted.
func (c *Catalog) ReapUploads(ctx context.Context, age time.Duration, n int) (int64, error) {
	var reaped int64
	err := c.txByClock(ctx, c.db, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, `
		WITH u AS (
			DELETE FROM uploads WHERE id = ANY (ARRAY(
					SELECT id FROM uploads WHERE updated_at < now() - $1::interval
					ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED))
				OR id = ANY (ARRAY(SELECT id FROM uploads WHERE status = 2 LIMIT $2 FOR UPDATE SKIP LOCKED))
				OR id = ANY (ARRAY(SELECT id FROM uploads WHERE promised_until < now() - $4::interval AND size = 0 LIMIT $2 FOR UPDATE SKIP LOCKED))
			RETURNING *
		), d AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
			SELECT storage_key, true, size, now() + $3::interval FROM u)
		SELECT FROM u`, age, n, c.late(), deadUpload)
		reaped = done.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reaping uploads: %w", err)
	}
	return reaped, nil
}

// txByClock runs fn, which deletes things for their age by now(), in a transaction. The transaction
// commits only if the clock was fit for that.
func (c *Catalog) txByClock(ctx context.Context, d *db.DB, fn func(tx pgx.Tx) error) error {
	return d.Tx(ctx, func(tx pgx.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return clock.CheckTx(ctx, tx, c.opt.CheckTime)
	})
}

// TicketMaxAge is how long a process may use a reserved object number (Upload.Ticket) after it
// was reserved.
const TicketMaxAge = 10 * time.Minute

// late returns how long requests may still write to an upload's objects after the upload's row
// was deleted. It is the sum of the age that a ticket may have when a request begins to use
// it, the duration of the longest request, and a minute for differences between clocks.
func (c *Catalog) late() time.Duration { return c.opt.MaxRequest + TicketMaxAge + time.Minute }

// ErrUploadMoved is wrapped by errors that tell a client that another request continued,
// finished or cancelled the upload.
var ErrUploadMoved = errors.New("the upload's row is not as it was")

// uploadUnknown returns the client's error for an upload that doesn't exist. The message
// doesn't name the id of the upload's row, because the upload's URL has another id, which is
// encrypted.
func uploadUnknown(path string) error {
	return oci.Errorf(oci.BlobUploadUnknown, "this upload is not known to repository %s: it was finished or cancelled, or has expired; start another", path)
}

// UploadMoved returns the client's error if another request has continued, finished or
// cancelled its upload. It wraps ErrUploadMoved.
func UploadMoved() error {
	return oci.Errorf(oci.BlobUploadInvalid, "this upload was continued, finished or cancelled by another request: ask for its state and go on from there").
		WithStatus(416).WithCause(ErrUploadMoved)
}

// UploadSecret returns the secret of 32 bytes with which the upload ids in URLs are encrypted.
// All processes on this database share it. The first call creates it.
func (c *Catalog) UploadSecret(ctx context.Context) ([]byte, error) {
	fresh := make([]byte, 32)
	rand.Read(fresh) //nolint:errcheck // it never fails
	b := new(pgx.Batch)
	b.Queue("INSERT INTO settings (name, value) VALUES ('uploads_secret', $1) ON CONFLICT (name) DO NOTHING", hex.EncodeToString(fresh))
	var text string
	b.Queue("SELECT value FROM settings WHERE name = 'uploads_secret'").QueryRow(func(row pgx.Row) error { return row.Scan(&text) })
	if err := c.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("reading the secret of uploads' URLs: %w", err)
	}
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != len(fresh) {
		return nil, fmt.Errorf("the secret of uploads' URLs (settings, uploads_secret) is damaged: it is not %d bytes in hexadecimal; delete the row, and uploads in progress begin again", len(fresh))
	}
	return secret, nil
}
