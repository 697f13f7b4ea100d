package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// Upload is the row of an upload in progress: all that any process needs to
// continue it.
//
// Attempt is the fencing token. Whoever is to write claims the row first, which
// raises it; numbers are given out, state is saved and the blob is committed
// only while the row still has the attempt that was claimed. A writer that
// stalls and wakes after another has claimed the row can change nothing.
type Upload struct {
	ID         uuid.UUID
	Repository string
	StorageKey string        // prefix of every object it makes
	Algorithm  oci.Algorithm // what HashState is of
	HashState  []byte        // encoding.BinaryMarshaler's; nil: nothing is hashed
	Size       int64         // acknowledged bytes
	StoreState []byte        // the blob store's; nil: it has nothing yet
	Tail       []byte        // the acknowledged bytes themselves, while few
	Attempt    int64
	// Ticket is a number that was taken for this process and not used yet, or
	// NoTicket. It is not in the row.
	Ticket    int64
	StartedAt time.Time
}

// NoTicket says that there is no number in advance.
const NoTicket = -1

// MaxTail is how many bytes of an upload are kept in its row instead of the
// store: small blobs become objects only when they are complete.
const MaxTail = 64 << 10

// StartUploads makes the rows of n new uploads, which belong to no repository
// until one saves to them, and takes one number of each for the caller: the
// first object needs no claim. A process makes rows ahead, several in one
// commit, so that the start of an upload costs none; those that it doesn't use
// are reaped as abandoned ones are.
func (c *Catalog) StartUploads(ctx context.Context, n int) ([]Upload, error) {
	list := make([]Upload, n)
	ids, keys := make([]uuid.UUID, n), make([]string, n)
	for i := range list {
		ids[i], keys[i] = uuid.New(), blob.NewBase()
		list[i] = Upload{ID: ids[i], StorageKey: keys[i], Algorithm: oci.SHA256, Ticket: 0, StartedAt: time.Now()}
	}
	_, err := c.db.Pool.Exec(ctx, `
		INSERT INTO uploads (id, repository, storage_key, algorithm, numbers)
		SELECT id, '', storage_key, 'sha256', 1 FROM unnest($1::uuid[], $2::text[]) AS u (id, storage_key)`, ids, keys)
	if err != nil {
		return nil, fmt.Errorf("starting uploads: %w", err)
	}
	return list, nil
}

// DropUploads removes rows that StartUploads made and nobody used.
func (c *Catalog) DropUploads(ctx context.Context, list []Upload) error {
	ids := make([]uuid.UUID, len(list))
	for i, u := range list {
		ids[i] = u.ID
	}
	_, err := c.db.Pool.Exec(ctx, "DELETE FROM uploads WHERE id = ANY ($1) AND attempt = 0 AND repository = ''", ids)
	if err != nil {
		return fmt.Errorf("dropping unused uploads: %w", err)
	}
	return nil
}

const uploadColumns = `id, repository, storage_key, algorithm, hash_state, size, store_state, tail, attempt, created_at`

func scanUpload(row interface{ Scan(...any) error }, more ...any) (Upload, error) {
	u := Upload{Ticket: NoTicket}
	var algorithm string
	dest := []any{&u.ID, &u.Repository, &u.StorageKey, &algorithm, &u.HashState, &u.Size, &u.StoreState, &u.Tail,
		&u.Attempt, &u.StartedAt}
	if err := row.Scan(append(dest, more...)...); err != nil {
		return u, err
	}
	var err error
	u.Algorithm, err = oci.ParseAlgorithm(algorithm)
	return u, err
}

// Upload returns an upload of the repository. Error: BLOB_UPLOAD_UNKNOWN.
func (c *Catalog) Upload(ctx context.Context, path string, id uuid.UUID) (Upload, error) {
	u, err := scanUpload(c.db.Pool.QueryRow(ctx,
		"SELECT "+uploadColumns+" FROM uploads WHERE id = $1 AND repository IN ($2, '') AND status = 1", id, path))
	switch {
	case isNoRows(err):
		return u, uploadUnknown(path)
	case err != nil:
		return u, fmt.Errorf("looking for upload %s: %w", id, err)
	}
	u.Repository = path
	return u, nil
}

// ClaimUpload makes the caller the only one who may write to the upload, as it
// was read, and takes n numbers in advance. It returns the new attempt and the
// lowest number that was not given out before: with n > 0, the first of the
// caller's. Error: BLOB_UPLOAD_INVALID with status 416 when another request has
// claimed or changed the upload since it was read.
func (c *Catalog) ClaimUpload(ctx context.Context, u Upload, n int) (attempt, next int64, err error) {
	err = c.db.Pool.QueryRow(ctx, `
		UPDATE uploads SET attempt = attempt + 1, numbers = numbers + $3, updated_at = now()
		WHERE id = $1 AND attempt = $2 AND status = 1
		RETURNING attempt, numbers - $3`, u.ID, u.Attempt, n).Scan(&attempt, &next)
	if isNoRows(err) {
		return 0, 0, uploadMoved()
	}
	if err != nil {
		return 0, 0, fmt.Errorf("claiming upload %s: %w", u.ID, err)
	}
	return attempt, next, nil
}

// UploadNumbers gives out n more numbers, never given before, to the holder of
// the claim.
func (c *Catalog) UploadNumbers(ctx context.Context, u Upload, n int) (first int64, err error) {
	err = c.db.Pool.QueryRow(ctx, `
		UPDATE uploads SET numbers = numbers + $3, updated_at = now()
		WHERE id = $1 AND attempt = $2
		RETURNING numbers - $3`, u.ID, u.Attempt, n).Scan(&first)
	if isNoRows(err) {
		return 0, uploadMoved()
	}
	if err != nil {
		return 0, fmt.Errorf("numbering parts of upload %s: %w", u.ID, err)
	}
	return first, nil
}

// SaveUpload acknowledges what the caller has taken in, and ends its claim if
// it had one. From then on the upload is cancelled when its repository is
// deleted; one whose first save meets that deletion is reaped as abandoned. It returns the upload as its row is now, with a ticket where the
// upload has no object yet. Error: as ClaimUpload's.
func (c *Catalog) SaveUpload(ctx context.Context, u Upload) (Upload, error) {
	taken := 0
	if u.StoreState == nil && u.Ticket == NoTicket {
		taken = 1
	}
	err := c.db.Pool.QueryRow(ctx, `
		UPDATE uploads SET attempt = attempt + 1, repository = $3, algorithm = $4, hash_state = $5, size = $6,
			store_state = $7, tail = $8, numbers = numbers + $9, updated_at = now(),
			repository_id = (SELECT id FROM live_repositories WHERE path = $3)
		WHERE id = $1 AND attempt = $2 AND status = 1
		RETURNING attempt, CASE WHEN $9 > 0 THEN numbers - 1 ELSE $10 END`,
		u.ID, u.Attempt, u.Repository, u.Algorithm.String(), u.HashState, u.Size, u.StoreState, u.Tail,
		taken, u.Ticket).Scan(&u.Attempt, &u.Ticket)
	switch {
	case isNoRows(err):
		return u, uploadMoved()
	case err != nil:
		return u, fmt.Errorf("saving upload %s: %w", u.ID, err)
	}
	return u, nil
}

// CommitUpload turns the upload into a blob of its repository, in one
// transaction and, for a blob that is new, one statement: the row of the upload
// goes, the blob's and its link come. Where the blob exists already this
// upload's objects are doomed, and the blob is promised for the review delay;
// but one that the store has lost takes the new object.
// leftovers says that objects other than key may exist. Error: as ClaimUpload's.
func (c *Catalog) CommitUpload(ctx context.Context, u Upload, d oci.Digest, key string, leftovers bool) error {
	err := c.withRepository(ctx, u.Repository, nil, func(r repository) error {
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
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, uploadLost):
		return uploadMoved()
	}
	return fmt.Errorf("committing upload %s to %s as %s: %w", u.ID, u.Repository, d, err)
}

// commitNew commits an upload whose blob isn't there yet, and does nothing where the
// blob exists. Its parts run in the order in which they need each other: the repository
// is locked, then the upload; only then is anything inserted, and the upload goes where
// something was. The insert waits for whoever changes the blob at that moment.
func (c *Catalog) commitNew(ctx context.Context, r repository, u Upload, d oci.Digest, key string, leftovers bool) error {
	b := new(batch)
	b.guard(nil, `
		WITH alive AS MATERIALIZED (
			SELECT FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
			WHERE n.id = @namespace AND r.id = @repository AND r.path = @path
			FOR KEY SHARE
		), held AS MATERIALIZED (
			SELECT FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND EXISTS (SELECT FROM alive)
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
			WHEN NOT EXISTS (SELECT FROM alive) THEN purser_refuse('`+string(repositoryGone)+`')
			WHEN NOT EXISTS (SELECT FROM held) THEN purser_refuse('`+string(uploadLost)+`')
			WHEN NOT EXISTS (SELECT FROM b) THEN purser_refuse('`+string(blobExists)+`') END`,
		pgx.NamedArgs{"upload": u.ID, "attempt": u.Attempt, "digest": d.Bytes(), "size": u.Size, "key": key, "leftovers": leftovers,
			"late": c.late(), "namespace": r.namespace, "repository": r.id, "path": u.Repository})
	return b.send(ctx, c.db.Pool)
}

// commitKnown commits an upload whose blob is there already: the promise first,
// then the blob is locked, then linked. If it was deleted while this waited for
// it, the transaction runs again from the start.
func (c *Catalog) commitKnown(ctx context.Context, r repository, u Upload, d oci.Digest) error {
	b := new(batch)
	b.guard(nil, lockRepository, r.namespace, r.id, u.Repository)
	b.exec(promiseBlob, d.Bytes())
	b.guard(nil, `
		SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('`+string(blobGone)+`')
			WHEN count(lost_at) > 0 THEN purser_refuse('`+string(blobLost)+`') END
		FROM (SELECT lost_at FROM blobs WHERE digest = $1 FOR KEY SHARE) locked`, d.Bytes())
	b.guard(nil, `
		WITH u AS (
			DELETE FROM uploads WHERE id = $1 AND attempt = $2 AND status = 1 AND purser_accepted() RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
			SELECT storage_key, true, $3, now() + $4::interval FROM u)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM u) THEN purser_refuse('`+string(uploadLost)+`') END`,
		u.ID, u.Attempt, u.Size, c.late())
	b.exec(linkBlob, r.namespace, r.id, d.Bytes())
	return b.send(ctx, c.db.Pool)
}

// commitLost commits an upload of a blob that the store has lost: the blob takes
// the new object, and every repository that has a link has the blob again. The
// old object is doomed, unless it is foreign: what another registry's files are
// worth isn't for this one to say. Of two uploads that meet here the second finds
// the blob whole, and runs again as commitKnown. The upload is taken last but for the
// lock of the blob, so that a lost one changes nothing.
func (c *Catalog) commitLost(ctx context.Context, r repository, u Upload, d oci.Digest, key string, leftovers bool) error {
	b := new(batch)
	b.guard(nil, lockRepository, r.namespace, r.id, u.Repository)
	b.exec(promiseBlob, d.Bytes())
	b.guard(nil, `SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('`+string(blobGone)+`') END
		FROM (SELECT FROM blobs WHERE digest = $1 AND lost_at IS NOT NULL FOR NO KEY UPDATE) locked`, d.Bytes())
	b.guard(nil, `
		WITH u AS (
			DELETE FROM uploads WHERE id = $1 AND attempt = $2 AND status = 1 AND purser_accepted() RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, again_at)
			SELECT storage_key, true, $3, now() + $4::interval FROM u WHERE $5)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM u) THEN purser_refuse('`+string(uploadLost)+`') END`,
		u.ID, u.Attempt, key, c.late(), leftovers)
	b.exec(`
		INSERT INTO gc_doomed_objects (storage_key, size)
		SELECT storage_key, size FROM blobs WHERE digest = $1 AND position('/' IN storage_key) = 0 AND purser_accepted()
		ON CONFLICT DO NOTHING`, d.Bytes())
	b.exec("UPDATE blobs SET storage_key = $2, size = $3, lost_at = NULL WHERE digest = $1 AND purser_accepted()",
		d.Bytes(), key, u.Size)
	b.exec(linkBlob, r.namespace, r.id, d.Bytes())
	return b.send(ctx, c.db.Pool)
}

// OpenUploads returns those of the uploads that can still be continued.
func (c *Catalog) OpenUploads(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := c.db.Pool.Query(ctx, "SELECT id FROM uploads WHERE id = ANY ($1) AND status = 1", ids)
	if err != nil {
		return nil, fmt.Errorf("looking for open uploads: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("looking for open uploads: %w", err)
	}
	return list, nil
}

// CancelUpload gives the upload up; its objects are doomed. Error:
// BLOB_UPLOAD_UNKNOWN.
func (c *Catalog) CancelUpload(ctx context.Context, path string, id uuid.UUID) error {
	done, err := c.db.Pool.Exec(ctx, `
		WITH u AS (DELETE FROM uploads WHERE id = $1 AND repository IN ($2, '') RETURNING *),
		`+doomUploads, id, path, c.late())
	switch {
	case err != nil:
		return fmt.Errorf("cancelling upload %s: %w", id, err)
	case done.RowsAffected() == 0:
		return uploadUnknown(path)
	}
	return nil
}

// doomUploads dooms what the uploads in u may have stored; $3 is the longest
// request.
const doomUploads = `
	d AS (INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
		SELECT storage_key, true, size, now() + $3::interval FROM u)
	SELECT FROM u`

// ReapUploads gives up to n uploads up that nobody has touched for age, or whose
// repository is gone, and returns how many.
func (c *Catalog) ReapUploads(ctx context.Context, age time.Duration, n int) (int64, error) {
	done, err := c.db.Pool.Exec(ctx, `
		WITH u AS (
			DELETE FROM uploads WHERE id = ANY (ARRAY(
					SELECT id FROM uploads WHERE updated_at < now() - $1::interval
					ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED))
				OR id = ANY (ARRAY(SELECT id FROM uploads WHERE status = 2 LIMIT $2 FOR UPDATE SKIP LOCKED))
			RETURNING *),
		`+doomUploads, age, n, c.late())
	if err != nil {
		return 0, fmt.Errorf("reaping uploads: %w", err)
	}
	return done.RowsAffected(), nil
}

// TicketMaxAge is how long a process may use a ticket after it was taken.
const TicketMaxAge = 10 * time.Minute

// late is after how long nobody writes to an upload's objects any more: the
// longest request, begun with the oldest ticket, and a minute for clocks.
func (c *Catalog) late() time.Duration { return c.opt.MaxRequest + TicketMaxAge + time.Minute }

// ErrUploadMoved is what an error wraps that tells a client that another
// request continued, finished or cancelled the upload.
var ErrUploadMoved = errors.New("the upload's row is not as it was")

// The messages leave out the row's identifier, which isn't the one that clients
// know.
func uploadUnknown(path string) error {
	return oci.Errorf(oci.BlobUploadUnknown, "this upload is not known to repository %s: it was finished, cancelled or given up; start another", path)
}

// uploadMoved is for a request that lost the upload to another.
func uploadMoved() error {
	return oci.Errorf(oci.BlobUploadInvalid, "this upload was continued, finished or cancelled by another request: ask for its state and go on from there").
		WithStatus(416).WithCause(ErrUploadMoved)
}

// UploadSecret returns 32 bytes that every process on this database has, and
// nobody else. The first who asks makes them.
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
