package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// lookTimeout is how long VerifyBlob waits for the store while a client waits for the answer.
// If the store takes longer, VerifyBlob reports the object as whole.
const lookTimeout = 5 * time.Second

// VerifyBlob checks in the store the object of blob b, whose row the caller has read, and
// returns whether the object exists in full size. If it doesn't, VerifyBlob marks the blob as
// lost: all replicas then tell clients that the blob doesn't exist in any repository, and the
// next push gives the blob a new object.
//
// VerifyBlob marks the blob only if, after the check, the blob's row still names the object
// that was checked. Storage keys are never used twice, so the row has named this object all
// the time. A store reports an object as missing only after it has checked that it is the
// store that belongs to this database; if it isn't, the error is blob.ErrWrongStore. If the
// store fails in another way, VerifyBlob reports the object as whole.
func (c *Catalog) VerifyBlob(ctx context.Context, path string, b Blob) (whole bool, err error) {
	if c.opt.Look == nil {
		return true, nil
	}
	look, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	wrong, err := c.opt.Look(look, b.StorageKey, b.Size)
	switch {
	case errors.Is(err, blob.ErrWrongStore):
		return false, err
	case err != nil:
		c.log.DebugContext(ctx, "looking for a blob's object failed", "digest", b.Digest, "object", b.StorageKey, "error", err)
		return true, nil
	case wrong == "":
		return true, nil
	}
	return false, c.loseBlob(ctx, path, b, wrong)
}

// loseBlob marks a blob as lost. It goes on if the client whose request found the loss
// disconnects.
func (c *Catalog) loseBlob(ctx context.Context, path string, b Blob, wrong string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	marked, err := c.MarkLost(ctx, []StoredBlob{{Digest: b.Digest, Key: b.StorageKey}})
	c.cache.dropAll(path) // triggers notify the caches of the other repositories
	if err == nil && marked[b.Digest] {
		c.log.ErrorContext(ctx, "the blob store has lost a blob: clients are told that it doesn't exist, until it is pushed again",
			"digest", b.Digest, "repository", path, "object", b.StorageKey, "size", b.Size, "problem", wrong)
	}
	return err
}

// verifyKnown calls VerifyBlob for an existing blob that a client pushes again.
func (c *Catalog) verifyKnown(ctx context.Context, path string, d oci.Digest) error {
	if c.opt.Look == nil {
		return nil
	}
	o, there, err := c.StoredBlob(ctx, d)
	if err != nil || !there || o.Lost {
		return err
	}
	_, err = c.VerifyBlob(ctx, path, Blob{Digest: d, Size: o.Size, StorageKey: o.Key})
	return err
}

// StoredBlob is a blob's row.
type StoredBlob struct {
	Digest oci.Digest
	Key    string // of its object
	Size   int64  // bytes
	Lost   bool   // the store is known to have lost its object
}

// StoredBlob reads a blob's row from the database. The bool is false if the blob doesn't exist.
func (c *Catalog) StoredBlob(ctx context.Context, d oci.Digest) (StoredBlob, bool, error) {
	o := StoredBlob{Digest: d}
	err := c.db.Pool.QueryRow(ctx, "SELECT storage_key, size, lost_at IS NOT NULL FROM blobs WHERE digest = $1", d.Bytes()).
		Scan(&o.Key, &o.Size, &o.Lost)
	switch {
	case isNoRows(err):
		return o, false, nil
	case err != nil:
		return o, false, fmt.Errorf("looking for blob %s: %w", d, err)
	}
	return o, true, nil
}

// MarkLost marks the blobs in `list` as lost. It skips a blob whose row no longer names the
// StoredBlob's Key, and a blob that is marked already. The registry tells clients that a lost
// blob doesn't exist, until somebody pushes it again. MarkLost returns the blobs that it has
// marked.
func (c *Catalog) MarkLost(ctx context.Context, list []StoredBlob) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, true)
}

// MarkFound removes the mark of MarkLost from the blobs in `list`. It skips a blob whose row
// no longer names the StoredBlob's Key, and a blob that isn't marked. It returns the blobs
// whose mark it has removed.
func (c *Catalog) MarkFound(ctx context.Context, list []StoredBlob) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, false)
}

// mark sets the column lost_at of the blobs in `list` or, if `lost` is false, clears it. It
// changes only rows that still name the storage key in `list`: a blob that was pushed again
// after the check of the store has another object, which wasn't checked. mark locks the blobs'
// rows in the order of their digests, and waits for a push that has locked one of these rows;
// it locks nothing else. It uses the background pool, so that the caches of all processes,
// including this one, are notified.
func (c *Catalog) mark(ctx context.Context, list []StoredBlob, lost bool) (map[oci.Digest]bool, error) {
	digests, keys := make([][]byte, len(list)), make([]string, len(list))
	for i, o := range list {
		digests[i], keys[i] = o.Digest.Bytes(), o.Key
	}
	var changed [][]byte
	err := c.opt.Background.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '10s'"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			WITH locked AS MATERIALIZED (
				SELECT b.digest FROM (
					SELECT * FROM unnest($1::bytea[], $2::text[]) AS o (digest, key) ORDER BY digest) o
				CROSS JOIN LATERAL (
					SELECT digest FROM blobs
					WHERE digest = o.digest AND storage_key = o.key AND (lost_at IS NULL) = $3
					FOR NO KEY UPDATE) b
			)
			UPDATE blobs SET lost_at = CASE WHEN $3 THEN now() END WHERE digest = ANY (ARRAY(SELECT digest FROM locked))
			RETURNING digest`, digests, keys, lost)
		if err != nil {
			return err
		}
		changed, err = pgx.CollectRows(rows, pgx.RowTo[[]byte])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("marking %d blobs: %w", len(list), err)
	}
	marked := make(map[oci.Digest]bool, len(changed))
	for _, b := range changed {
		d, err := oci.DigestFromBytes(b)
		if err != nil {
			return nil, err
		}
		marked[d] = true
	}
	return marked, nil
}

// LongestWrite returns how old an object must be so that no request can still be writing it.
// If no row names a younger object, a request may have written it after a newer request took
// over the upload; the older request then deletes the object itself.
func (c *Catalog) LongestWrite() time.Duration { return c.late() }
