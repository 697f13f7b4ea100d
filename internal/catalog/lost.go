package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

// lookTimeout bounds a look at an object whose client waits. A store that takes
// longer says nothing about the object.
const lookTimeout = 5 * time.Second

// VerifyBlob looks at the object of a blob, which was read from its row before, and
// returns whether the store has it whole. If it is missing or has another size, the
// blob is marked as lost: clients hear that there is no such blob, in all
// repositories and from all replicas, and the next push of it takes the place of
// what was lost.
//
// The object is looked at first, then the row, which must still give the blob this
// object: a key never comes back, so the blob owned it when the object was looked
// at. That the store is the registry's own, the store sees to: else it would not
// say that something is missing. A store that fails says nothing, and the blob is
// taken to be whole. Error: blob.ErrWrongStore.
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

// loseBlob marks a blob as lost, also when the client that made it known is gone.
func (c *Catalog) loseBlob(ctx context.Context, path string, b Blob, wrong string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	marked, err := c.MarkLost(ctx, []Owner{{Kind: OwnerBlob, Digest: b.Digest, Key: b.StorageKey}})
	c.cache.dropAll(path) // the other repositories hear of it from the database
	if err == nil && marked[b.Digest] {
		c.log.ErrorContext(ctx, "the blob store has lost a blob: clients hear that it doesn't exist until it is pushed again",
			"digest", b.Digest, "repository", path, "object", b.StorageKey, "size", b.Size, "problem", wrong)
	}
	return err
}

// verifyKnown is VerifyBlob for a blob that somebody pushes again, by digest.
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
