package snapshot

import (
	"context"
	"maps"
	"slices"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
)

// heldManifests returns the function that tells Evaluate which images are held; nil if no holds
// are in force.
func (r *TagReader) heldManifests(ctx context.Context) func([]int64) ([]int64, error) {
	if !r.s.Holds {
		return nil
	}
	return func(manifests []int64) ([]int64, error) {
		found, err := hold.Of(ctx, r.s.Tx, r.s.target.NamespaceID, r.s.target.ID, manifests)
		return slices.Collect(maps.Keys(found)), err
	}
}

// fillHolds sets Tag.Held of those tags on the page that a verdict would delete. It does
// nothing before the evaluation, or if no holds are in force.
func (r *TagReader) fillHolds(ctx context.Context, page []Tag) error {
	if r.Verdicts == nil || !r.s.Holds || r.complete && r.asked {
		return nil
	}
	var asked []*Tag
	for i := range page {
		if err := r.pace(ctx, i); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Verdicts, func(v *judge.Verdict) bool { return v.Decide(page[i].Judged).Delete }) {
			asked = append(asked, &page[i])
		}
	}
	r.asked = r.complete
	by, err := HoldersOf(ctx, r.s.Tx, r.s.target, asked)
	for i, c := range asked {
		if len(by) > 0 && len(by[i]) > 0 {
			c.Judged.Held, c.Holders = by[i][0].String(), by[i]
		}
	}
	return err
}

// HoldersOf returns who holds each of the tags: its manifest, or the image that the tag belongs
// to. The result is nil if none is held.
func HoldersOf(ctx context.Context, q db.Querier, t catalog.Repository, tags []*Tag) ([][]hold.Holder, error) {
	if len(tags) == 0 {
		return nil, nil
	}
	manifests := make(map[int64]bool, len(tags))
	var names []string
	for _, c := range tags {
		manifests[c.Manifest] = true
		if c.Judged.Image > 0 {
			manifests[c.Judged.Image] = true
		}
		if _, named := judge.AttachedTo(c.Name); named {
			names = append(names, c.Name)
		}
	}
	of, err := hold.Of(ctx, q, t.NamespaceID, t.ID, slices.Sorted(maps.Keys(manifests)))
	if err != nil {
		return nil, err
	}
	var named map[string][]hold.Holder
	if len(names) > 0 {
		if named, err = hold.OfNames(ctx, q, t.NamespaceID, t.ID, names); err != nil {
			return nil, err
		}
	}
	if len(of)+len(named) == 0 {
		return nil, nil
	}
	by := make([][]hold.Holder, len(tags))
	for i, c := range tags {
		if by[i] = of[c.Manifest]; len(by[i]) == 0 {
			by[i] = named[c.Name]
		}
		if len(by[i]) == 0 && c.Judged.Image > 0 {
			by[i] = of[c.Judged.Image]
		}
	}
	return by, nil
}
