package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db"
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
	StartedAt  time.Time
}

// MaxTail is how many bytes of an upload are kept in its row instead of the
// store: small blobs become objects only when they are complete.
const MaxTail = 64 << 10

// StartUpload makes the row of a new upload, whose objects' names will begin
// with base.
func (c *Catalog) StartUpload(ctx context.Context, path, base string, a oci.Algorithm) (Upload, error) {
	id := uuid.New()
	u := Upload{ID: id, Repository: path, Algorithm: a, StorageKey: base}
	_, err := c.db.Pool.Exec(ctx,
		"INSERT INTO uploads (id, repository, storage_key, algorithm) VALUES ($1, $2, $3, $4)",
		id, path, u.StorageKey, a.String())
	if err != nil {
		return u, fmt.Errorf("starting an upload to %s: %w", path, err)
	}
	return u, nil
}

const uploadColumns = `id, repository, storage_key, algorithm, hash_state, size, store_state, tail, attempt, created_at`

func scanUpload(row interface{ Scan(...any) error }, more ...any) (Upload, error) {
	var u Upload
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
		"SELECT "+uploadColumns+" FROM uploads WHERE id = $1 AND repository = $2", id, path))
	switch {
	case isNoRows(err):
		return u, uploadUnknown(path, id)
	case err != nil:
		return u, fmt.Errorf("looking for upload %s: %w", id, err)
	}
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
		WHERE id = $1 AND attempt = $2
		RETURNING attempt, numbers - $3`, u.ID, u.Attempt, n).Scan(&attempt, &next)
	if isNoRows(err) {
		return 0, 0, uploadMoved(u)
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
		return 0, uploadMoved(u)
	}
	if err != nil {
		return 0, fmt.Errorf("numbering parts of upload %s: %w", u.ID, err)
	}
	return first, nil
}

// SaveUpload acknowledges what the holder of the claim has written, and ends
// the claim. u has the attempt that was claimed.
func (c *Catalog) SaveUpload(ctx context.Context, u Upload) error {
	done, err := c.db.Pool.Exec(ctx, `
		UPDATE uploads SET attempt = attempt + 1, algorithm = $3, hash_state = $4, size = $5, store_state = $6,
			tail = $7, updated_at = now()
		WHERE id = $1 AND attempt = $2`,
		u.ID, u.Attempt, u.Algorithm.String(), u.HashState, u.Size, u.StoreState, u.Tail)
	switch {
	case err != nil:
		return fmt.Errorf("saving upload %s: %w", u.ID, err)
	case done.RowsAffected() == 0:
		return uploadMoved(u)
	}
	return nil
}

// CommitUpload turns the upload into a blob of its repository, in one
// transaction and one round trip: the row of the upload goes, the blob's and
// its link come. Where the blob exists already this upload's objects are
// doomed and the blob is promised for the review delay. leftovers says that
// objects other than key may exist.
//
// The blob is locked after its insertion and before the link: an insertion
// that conflicts doesn't wait for one who is about to delete the blob.
func (c *Catalog) CommitUpload(ctx context.Context, u Upload, d oci.Digest, key string, leftovers bool) error {
	var kept bool
	err := c.withRepository(ctx, u.Repository, func(r repository) error {
		b := new(batch)
		b.exec(lockRepository, r.namespace, r.id, u.Repository)
		b.row([]any{&kept}, `
			WITH u AS (
				DELETE FROM uploads WHERE id = $1 AND attempt = $2 RETURNING storage_key
			), required AS (
				SELECT purser_require(EXISTS (SELECT FROM u), '`+stateUploadLost+`') AS ok
			), b AS (
				INSERT INTO blobs (digest, size, storage_key)
				SELECT $3, $4, $5 FROM u, required
				ON CONFLICT (digest) DO NOTHING
				RETURNING digest
			), d AS (
				INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, size, again_at)
				SELECT u.storage_key, true, (SELECT $5::text FROM b), CASE WHEN EXISTS (SELECT FROM b) THEN 0 ELSE $4 END,
					now() + $7::interval
				FROM u
				WHERE $6 OR NOT EXISTS (SELECT FROM b)
			)
			SELECT EXISTS (SELECT FROM b)`,
			u.ID, u.Attempt, d.Bytes(), u.Size, key, leftovers, c.opt.MaxRequest)
		// Deleted while this waited for it: run again and insert it anew.
		b.exec(lockBlob, d.Bytes(), db.CodeSerializationFailure)
		b.exec(linkBlob, r.namespace, r.id, d.Bytes())
		b.exec(promiseBlob, d.Bytes())
		return b.send(ctx, c.db.Pool)
	})
	switch {
	case err == nil:
		return nil
	case db.Code(err) == stateUploadLost:
		return uploadMoved(u)
	}
	return fmt.Errorf("committing upload %s as %s: %w", u.ID, d, err)
}

// CancelUpload gives the upload up; its objects are doomed. Error:
// BLOB_UPLOAD_UNKNOWN.
func (c *Catalog) CancelUpload(ctx context.Context, path string, id uuid.UUID) error {
	done, err := c.db.Pool.Exec(ctx, `
		WITH u AS (DELETE FROM uploads WHERE id = $1 AND repository = $2 RETURNING *),
		`+doomUploads, id, path, c.opt.MaxRequest)
	switch {
	case err != nil:
		return fmt.Errorf("cancelling upload %s: %w", id, err)
	case done.RowsAffected() == 0:
		return uploadUnknown(path, id)
	}
	return nil
}

// doomUploads dooms what the uploads in u may have stored; $3 is the longest
// request. An upload that never had a number has no object.
const doomUploads = `
	d AS (INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
		SELECT storage_key, true, size, now() + $3::interval FROM u WHERE numbers > 0)
	SELECT FROM u`

// ReapUploads gives up to n uploads up that nobody has touched for age, and
// returns how many.
func (c *Catalog) ReapUploads(ctx context.Context, age time.Duration, n int) (int64, error) {
	done, err := c.db.Pool.Exec(ctx, `
		WITH u AS (
			DELETE FROM uploads WHERE id IN (
				SELECT id FROM uploads WHERE updated_at < now() - $1::interval
				ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED)
			RETURNING *),
		`+doomUploads, age, n, c.opt.MaxRequest)
	if err != nil {
		return 0, fmt.Errorf("reaping uploads: %w", err)
	}
	return done.RowsAffected(), nil
}

func uploadUnknown(path string, id uuid.UUID) error {
	return oci.Errorf(oci.BlobUploadUnknown, "upload %s is not known to repository %s: it was finished, cancelled or given up; start another", id, path)
}

// uploadMoved is for a request that lost the upload to another.
func uploadMoved(u Upload) error {
	return oci.Errorf(oci.BlobUploadInvalid, "upload %s was continued, finished or cancelled by another request: ask for its state and go on from there", u.ID).
		WithStatus(416)
}
