package check

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// stray decides about an object for which the check has seen no owner row. If the object is
// so young that it isn't a finding, stray only counts it (report.Young, report.Kept).
// Otherwise it adds the object to k.strays, and settleStrays checks it a second time.
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
	seen := k.report.Objects
	k.mu.Unlock()
	if strings.Contains(o.Key, "/") {
		seen = math.MaxInt64
	}
	return k.settleStrays(ctx, maxStrays, seen)
}

// settleStrays checks the objects in k.strays a second time, if there are at least
// `atLeast` of them: it first looks for an owner of each object and then for the object. It
// reports the objects without an owner that still exist and, if it may repair, records them
// for deletion. `seen` is how many objects the check has looked at, for mayRepair. Of the files of a
// finished import most have no owner, so they aren't counted: their `seen` is math.MaxInt64.
func (k *checker) settleStrays(ctx context.Context, atLeast int, seen int64) error {
	k.mu.Lock()
	list := k.strays
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

// stillThere returns those of the objects with these keys that the store still has, in the
// order of keys. It reports those that can't be looked at any more.
func (k *checker) stillThere(ctx context.Context, keys []string) ([]blob.Object, error) {
	objects := make([]blob.Object, len(keys))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * k.opt.Parallel)
	for i, key := range keys {
		group.Go(func() error {
			o, err := k.opt.Store.Stat(ctx, key)
			switch {
			case errors.Is(err, blob.ErrNotFound):
				return nil
			case blob.Unreadable(err):
				k.add(Finding{Problem: Hidden, Key: key, Detail: err.Error()})
				return nil
			}
			objects[i] = o
			return err
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(objects, func(o blob.Object) bool { return o.Key == "" }), err
}

// mark reports a finding about a blob. If a repair is to change the blob's lost mark
// (lost_at), mark only adds the finding to k.marks; settleMarks then changes the marks of
// many blobs at once and reports their findings.
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

// loses says whether a repair of this finding marks the blob as lost.
func loses(f Finding) bool {
	return f.Problem == Missing || f.Problem == WrongSize || f.Problem == Damaged
}

// settleMarks sets or removes the lost marks of the blobs in k.marks and reports the
// findings about them, if there are at least `atLeast` of them. If mayRepair refuses to
// mark blobs as lost, their findings are reported without a repair.
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

// marked calls the function `mark`, which sets or removes lost marks, for the blobs of the
// findings in `list`. It reports the findings of the blobs whose rows `mark` has changed.
// The other blobs have been pushed again, deleted or marked since the check looked at them.
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

// unfinished reports unfinished multipart uploads that have no owner row.
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

// settleUnfinished looks for the owner rows of multipart uploads, given by their bases (key
// prefixes). It reports the multipart uploads without an owner that the store still has
// and, if it may repair, records them for deletion.
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
	// mayRepair compares the number of findings with half of what the check has looked at.
	// How many multipart uploads that was isn't known, so math.MaxInt64 makes mayRepair
	// skip the comparison.
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
