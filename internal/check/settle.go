package check

import (
	"context"
	"errors"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// stray handles an object for which the check has seen no owner. It counts young and kept
// objects, and collects the others, which settleStrays looks at again.
func (k *checker) stray(ctx context.Context, o blob.Object) error {
	if o.Modified.After(k.young) {
		k.mu.Lock()
		k.report.Young++
		k.mu.Unlock()
		return nil
	}
	if o.Modified.After(k.kept) {
		k.mu.Lock()
		k.report.Kept++
		k.report.KeptBytes += o.Size
		k.mu.Unlock()
		return nil
	}
	k.mu.Lock()
	k.strays = append(k.strays, o)
	k.mu.Unlock()
	return k.settleStrays(ctx, maxStrays)
}

// settleStrays looks again at the collected objects without an owner, if there are at least
// atLeast of them: first for an owner, then for the object.
func (k *checker) settleStrays(ctx context.Context, atLeast int) error {
	k.mu.Lock()
	list, seen := k.strays, k.report.Objects
	if len(list) == 0 || len(list) < atLeast {
		k.mu.Unlock()
		return nil
	}
	k.strays = nil
	k.mu.Unlock()
	keys := make([]string, len(list))
	for i, o := range list {
		keys[i] = o.Key
	}
	unowned, err := FindUnowned(ctx, k.opt.Catalog.DB(), keys)
	if err != nil {
		return err
	}
	objects, err := k.stillThere(ctx, unowned)
	if err != nil {
		return err
	}
	if err := refuseRepair(ctx, k.opt); err != nil {
		return err
	}
	repair := k.mayRepair(len(objects), seen, Unowned)
	for batch := range slices.Chunk(objects, 1000) {
		if repair {
			if err := recordUnowned(ctx, k.opt.Catalog.DB(), batch, unownedDelay); err != nil {
				return err
			}
		}
		for _, o := range batch {
			k.add(Finding{Problem: Unowned, Key: o.Key, Size: o.Size, Repaired: repair})
		}
	}
	return nil
}

// stillThere returns those of the objects that the store still has, in the order of keys.
func (k *checker) stillThere(ctx context.Context, keys []string) ([]blob.Object, error) {
	objects := make([]blob.Object, len(keys))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * k.opt.Parallel)
	for i, key := range keys {
		group.Go(func() error {
			o, err := k.opt.Store.Stat(ctx, key)
			if errors.Is(err, blob.ErrNotFound) {
				return nil
			}
			objects[i] = o
			return err
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(objects, func(o blob.Object) bool { return o.Key == "" }), err
}

// mark takes a finding about a blob. If a repair changes the blob's lost mark, the finding
// is collected and reported by settleMarks, many at once; otherwise it is reported now.
func (k *checker) mark(ctx context.Context, f Finding) error {
	if !k.opt.Repair || !loses(f) && f.Problem != Recovered {
		k.add(f)
		return nil
	}
	k.mu.Lock()
	k.marks = append(k.marks, f)
	k.mu.Unlock()
	return k.settleMarks(ctx, maxMarks)
}

// loses says whether a repair marks the blob as lost.
func loses(f Finding) bool {
	return f.Problem == Missing || f.Problem == WrongSize || f.Problem == Damaged
}

// settleMarks sets and removes the lost marks of the collected findings, if there are at
// least atLeast of them.
func (k *checker) settleMarks(ctx context.Context, atLeast int) error {
	k.mu.Lock()
	list, seen := k.marks, k.report.Blobs
	if len(list) == 0 || len(list) < atLeast {
		k.mu.Unlock()
		return nil
	}
	k.marks = nil
	k.mu.Unlock()
	if err := refuseRepair(ctx, k.opt); err != nil {
		return err
	}
	lost := slices.DeleteFunc(slices.Clone(list), func(f Finding) bool { return !loses(f) })
	found := slices.DeleteFunc(list, loses)
	if !k.mayRepair(len(lost), seen, Missing, WrongSize, Damaged) {
		k.add(lost...)
		lost = nil
	}
	if err := k.marked(ctx, lost, k.opt.Catalog.MarkLost); err != nil {
		return err
	}
	return k.marked(ctx, found, k.opt.Catalog.MarkFound)
}

// marked calls mark for the blobs and reports those whose row was changed. The others have
// been pushed again, deleted or marked since they were looked at.
func (k *checker) marked(ctx context.Context, list []Finding, mark func(context.Context, []catalog.StoredBlob) (map[oci.Digest]bool, error)) error {
	if len(list) == 0 {
		return nil
	}
	rows := make([]catalog.StoredBlob, len(list))
	for i, f := range list {
		rows[i] = catalog.StoredBlob{Digest: f.Digest, Key: f.Key}
	}
	done, err := mark(ctx, rows)
	if err != nil {
		return err
	}
	for _, f := range list {
		if f.Repaired = done[f.Digest]; f.Repaired {
			k.add(f)
		}
	}
	return nil
}

// unfinished reports multipart uploads without an owner.
func (k *checker) unfinished(ctx context.Context) error {
	var bases []string
	for m, err := range k.opt.Store.Unfinished(ctx, "") {
		if err != nil {
			return err
		}
		if m.Began.After(k.young) || slices.Contains(bases, m.Base) {
			continue
		}
		if bases = append(bases, m.Base); len(bases) == maxMarks {
			if err := k.settleUnfinished(ctx, bases); err != nil {
				return err
			}
			bases = nil
		}
	}
	return k.settleUnfinished(ctx, bases)
}

// settleUnfinished looks for the owners of multipart uploads, then checks whether the store
// still has those without an owner, and reports these.
func (k *checker) settleUnfinished(ctx context.Context, bases []string) error {
	if len(bases) == 0 {
		return nil
	}
	unowned, err := findUnownedUploads(ctx, k.opt.Catalog.DB(), bases)
	if err != nil {
		return err
	}
	var there []string
	for _, base := range unowned {
		for _, err := range k.opt.Store.Unfinished(ctx, base) {
			if err != nil {
				return err
			}
			there = append(there, base)
			break
		}
	}
	if err := refuseRepair(ctx, k.opt); err != nil {
		return err
	}
	// There is no total to compare with, so MaxInt64 turns the plausibility limit off.
	repair := k.mayRepair(len(there), math.MaxInt64)
	if repair {
		if err := recordUnownedUploads(ctx, k.opt.Catalog.DB(), there, unownedDelay); err != nil {
			return err
		}
	}
	for _, base := range there {
		k.add(Finding{Problem: UnownedUpload, Key: base, Repaired: repair})
	}
	return nil
}
