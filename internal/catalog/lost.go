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

// lookTimeout bounds the check of an object while a client waits. If the store takes
// longer, the check has no result.
const lookTimeout = 5 * time.Second

// VerifyBlob checks the object of a blob whose row was read before, and returns whether the
// store has the object in full size. If the object is missing or has another size,
// VerifyBlob marks the blob as lost: all replicas then report it as unknown in all
// repositories, and the next push replaces its object.
//
// It looks at the object first and then at the row, which must still name this object: a
// key is never reused, so the blob owned the object when VerifyBlob looked at it. The store
// itself makes sure that it is the registry's own before it reports an object as missing.
// If the store fails, the blob is taken to be whole. Error: blob.ErrWrongStore.
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

// verifyKnown calls VerifyBlob for a known blob that a client pushes again.
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

// StoredBlob returns a blob's current row, false if it is gone.
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

// MarkLost marks those blobs of the list as lost that still have the object of their
// StoredBlob and aren't marked already. Clients are told that these blobs don't exist,
// until somebody pushes them again. It returns the blobs that it marked.
func (c *Catalog) MarkLost(ctx context.Context, list []StoredBlob) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, true)
}

// MarkFound removes the mark of MarkLost from those blobs of the list that still have the
// object of their StoredBlob. It returns those blobs.
func (c *Catalog) MarkFound(ctx context.Context, list []StoredBlob) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, false)
}

// mark sets lost_at, or clears it, where that changes anything. It compares the object's
// key, so that a blob which was pushed again after the check isn't judged by its former
// object. It locks the rows in the order of their digests, and nothing else, and waits for
// a push that has locked one. It uses the background pool, so that the caches of all
// processes, including this one, are notified.
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

// LongestWrite returns the time after which nobody writes to an object any more. A younger
// object may belong to a request that lost its upload and will delete the object.
func (c *Catalog) LongestWrite() time.Duration { return c.late() }
