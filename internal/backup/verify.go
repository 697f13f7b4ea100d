package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
)

// VerifyOptions says what to verify.
type VerifyOptions struct {
	Target   Target    // required
	Manifest *Manifest // of the backup, from Find; required
	// Deep makes Verify read each copied object and compare it with its digest.
	Deep bool
	// Store, if it isn't nil, is a store in which a backup without objects looks for them.
	Store    blob.Store
	Parallel int            // objects that are looked at at the same time; default 4, or one for each core
	Progress func(Progress) // may be nil

	// copied, if it isn't nil, says of an object that it needn't be looked at.
	copied func(context.Context, object) (bool, error)
}

// Verification is what Verify has found.
type Verification struct {
	Rows    int64 `json:"rows"`
	Objects int64 `json:"objects"`
	Deep    bool  `json:"deep"` // the bytes of the objects were read
	// Missing counts the objects that can't be restored: the target (or, for a backup by
	// reference, the store) doesn't have them with their size, or with Deep their digest. It
	// includes those that were missing already when the backup was made.
	Missing      int64    `json:"missing"`
	FirstMissing []string `json:"first_missing,omitempty"` // up to 100 keys
}

// Verify reads all files of a backup, and looks for its objects. It returns ErrDamaged if a
// file is missing or has other bytes.
func Verify(ctx context.Context, o VerifyOptions) (Verification, error) {
	told := newTeller(o.Progress)
	if err := verifyFiles(ctx, o.Target, o.Manifest, told); err != nil {
		return Verification{Rows: o.Manifest.Rows(), Objects: o.Manifest.Blobs.Count}, err
	}
	return verifyObjects(ctx, o, told)
}

// verifyObjects looks for the objects of a backup.
func verifyObjects(ctx context.Context, o VerifyOptions, told *teller) (v Verification, err error) {
	v = Verification{Rows: o.Manifest.Rows(), Objects: o.Manifest.Blobs.Count, Deep: o.Deep && o.Manifest.Blobs.Which == Copy}
	missing := func(ob object) {
		if v.Missing++; len(v.FirstMissing) < 100 {
			v.FirstMissing = append(v.FirstMissing, ob.key)
		}
	}
	switch {
	case o.Manifest.Blobs.Which == Copy && o.Deep:
		told.step("reading blobs")
		err = o.each(ctx, told, missing, func(ctx context.Context, ob object) error {
			if o.copied != nil {
				if done, err := o.copied(ctx, ob); err != nil || done {
					return err
				}
			}
			return readObject(ctx, o.Target, ob)
		})
	case o.Manifest.Blobs.Which == Copy:
		told.step("looking for blobs")
		_, err = absent(ctx, o.Target, o.Manifest, missing)
	case o.Store != nil:
		told.step("looking for blobs in the store")
		err = o.each(ctx, told, missing, func(ctx context.Context, ob object) error {
			wrong, err := blob.Look(ctx, o.Store, ob.key, ob.size)
			if err == nil && wrong != "" {
				err = errUnusable
			}
			return err
		})
	}
	return v, err
}

// each calls `look` for each object, and `missing` for those that it finds missing or damaged.
func (o VerifyOptions) each(ctx context.Context, told *teller, missing func(object), look func(context.Context, object) error) error {
	told.total(o.Manifest.Blobs.Count)
	list := openObjects(ctx, o.Target, o.Manifest)
	defer list.r.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(o.Parallel, 4, runtime.GOMAXPROCS(0)))
	for ctx.Err() == nil {
		some, err := list.group()
		if err != nil || len(some) == 0 {
			return errors.Join(err, group.Wait())
		}
		for _, ob := range some {
			group.Go(func() error {
				err := look(ctx, ob)
				if errors.Is(err, errUnusable) || errors.Is(err, blob.ErrNotFound) {
					told.change(func(*Progress) { missing(ob) })
					err = nil
				}
				told.object(ob.size)
				return err
			})
		}
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// verifyFiles reads all files that the manifest names, and compares their hashes.
func verifyFiles(ctx context.Context, t Target, m *Manifest, told *teller) error {
	told.step("verifying the backup")
	for f := range m.files() {
		r := newChunkReader(ctx, t, m.dir(), []File{f})
		n, err := io.Copy(io.Discard, r)
		r.Close()
		if err != nil {
			return fmt.Errorf("verifying backup %s: %w", m.ID, err)
		}
		told.rows(0, n)
	}
	return nil
}
