package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// lookTimeout bounds the check of an object while a client waits. If the store takes longer,
// the check has no result.
const lookTimeout = 5 * time.Second

// VerifyBlob checks the object of a blob whose row was read before, and returns whether the
// store has the object in full size. If the object is missing or has another size,
// VerifyBlob marks the blob as lost: all replicas then report it as unknown in all
// repositories, and the next push replaces its object.
//
// It looks at the object first and then at the row, which must still name this object: a key
// is never reused, so the blob owned the object when VerifyBlob looked at it. The store
// itself makes sure that it is the registry's own before it reports an object as missing. If
// the store fails, the blob is taken to be whole. Error: blob.ErrWrongStore.
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
		c.log.DebugContext(ctx, "a blob's object could not be looked at", "digest", b.Digest, "object", b.StorageKey, "error", err)
		return true, nil
	case wrong == "":
		return true, nil
	}
	return false, c.loseBlob(ctx, path, b, wrong)
}

// loseBlob marks a blob as lost, even if the client whose request found that is gone.
func (c *Catalog) loseBlob(ctx context.Context, path string, b Blob, wrong string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	marked, err := c.MarkLost(ctx, []Owner{{Kind: OwnerBlob, Digest: b.Digest, Key: b.StorageKey}})
	c.cache.dropAll(path) // triggers notify the caches of the other repositories
	if err == nil && marked[b.Digest] {
		c.log.ErrorContext(ctx, "the blob store has lost a blob: clients hear that it doesn't exist until it is pushed again",
			"digest", b.Digest, "repository", path, "object", b.StorageKey, "size", b.Size, "problem", wrong)
	}
	return err
}

// verifyKnown is VerifyBlob for a blob, given by digest, that a client pushes again.
func (c *Catalog) verifyKnown(ctx context.Context, path string, d oci.Digest) error {
	if c.opt.Look == nil {
		return nil
	}
	o, there, err := c.BlobOwner(ctx, d)
	if err != nil || !there || o.Lost {
		return err
	}
	_, err = c.VerifyBlob(ctx, path, Blob{Digest: d, Size: o.Size, StorageKey: o.Key})
	return err
}
