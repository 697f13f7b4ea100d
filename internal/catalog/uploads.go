package catalog

import (
	"context"
	"errors"
	"fmt"
	"math"
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
		b.Exec("DELETE FROM uploads WHERE id = ANY ($1) AND attempt = 0 AND repository = ''", o.Drop)
	}
	if o.MostOfClient > 0 && o.Client != "" { // 1886745445 and 1886745446 are key spaces of advisory locks
		b.Exec("SELECT pg_advisory_xact_lock(1886745445, hashtext($1))", o.Client)
	}
	share := limit.Share(o.Account)
	robots, afterRobots := "", "" // their names are in this range
	if share != o.Account && o.MostOfRobots > 0 {
		robots, afterRobots = share, strings.TrimSuffix(share, "+")+","
	}
	if (o.MostOfAccount > 0 || robots != "") && o.Account != "" {
		b.Exec("SELECT pg_advisory_xact_lock(1886745446, hashtext($1))", share)
	}
	var made, ofClient, ofAccount, ofRobots, ofAll int
	b.Row([]any{&made, &ofClient, &ofAccount, &ofRobots, &ofAll}, `
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
	if err := b.Send(ctx, c.db.Pool); err != nil {
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
	err = b.Send(ctx, c.db.Pool)
	if errors.Is(err, uploadLost) {
		return UploadClaim{}, UploadMoved()
	}
	if err != nil {
		if refused := c.quotas.Refusal(ctx, u.Repository, err); oci.IsClientError(refused) {
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
	err := b.Send(ctx, c.db.Pool)
	switch {
	case errors.Is(err, uploadLost):
		return u, UploadMoved()
	case err != nil:
		if refused := c.quotas.Refusal(ctx, u.Repository, err); oci.IsClientError(refused) {
			return u, refused
		}
		return u, fmt.Errorf("saving upload %s: %w", u.ID, err)
	}
	return saved, nil
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
	err := clock.Tx(ctx, c.db, c.opt.CheckTime, func(tx pgx.Tx) error {
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
