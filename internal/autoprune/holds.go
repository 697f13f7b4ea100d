package autoprune

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
)

// heldManifests returns the function that tells Evaluate which images are held; nil if no holds
// are in force.
func (r *tagReader) heldManifests(ctx context.Context) func([]int64) ([]int64, error) {
	if !r.s.holds {
		return nil
	}
	return func(manifests []int64) ([]int64, error) {
		found, err := hold.Of(ctx, r.s.tx, r.target.NamespaceID, r.target.ID, manifests)
		return slices.Collect(maps.Keys(found)), err
	}
}

// fillHolds sets Tag.Held of those tags on the page that a verdict would delete. It does
// nothing before the evaluation, or if no holds are in force.
func (r *tagReader) fillHolds(ctx context.Context, page []candidate) error {
	if r.verdicts == nil || !r.s.holds || r.complete && r.asked {
		return nil
	}
	var asked []*candidate
	for i := range page {
		if err := r.pace(ctx, i); err != nil {
			return err
		}
		if slices.ContainsFunc(r.verdicts, func(v *judge.Verdict) bool { return v.Decide(page[i].tag).Delete }) {
			asked = append(asked, &page[i])
		}
	}
	r.asked = r.complete
	by, err := holdersOf(ctx, r.s.tx, r.target, asked)
	for i, c := range asked {
		if len(by) > 0 && len(by[i]) > 0 {
			c.tag.Held, c.holders = by[i][0].String(), by[i]
		}
	}
	return err
}

// holdersOf returns who holds each of the tags: its manifest, or the image that the tag belongs
// to. The result is nil if none is held.
func holdersOf(ctx context.Context, q db.Querier, t catalog.Repository, tags []*candidate) ([][]hold.Holder, error) {
	if len(tags) == 0 {
		return nil, nil
	}
	manifests := make(map[int64]bool, len(tags))
	var names []string
	for _, c := range tags {
		manifests[c.Manifest] = true
		if c.tag.Image > 0 {
			manifests[c.tag.Image] = true
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
		if len(by[i]) == 0 && c.tag.Image > 0 {
			by[i] = of[c.tag.Image]
		}
	}
	return by, nil
}

// dropHeld looks for holds in a deletion's transaction, after LockRepository has taken the lock
// of deletions, and returns the tags that nobody holds and those that somebody holds. See the
// protocol in package hold.
func (tx deletionTx) dropHeld(ctx context.Context, t catalog.Repository, list []candidate) (free, held []candidate, err error) {
	asked := make([]*candidate, len(list))
	for i := range list {
		asked[i] = &list[i]
	}
	by, err := holdersOf(ctx, tx.Tx, t, asked)
	if err != nil || by == nil {
		return list, nil, err
	}
	for i, c := range list {
		if len(by[i]) == 0 {
			free = append(free, c)
			continue
		}
		c.holders = by[i]
		held = append(held, c)
	}
	return free, held, nil
}

// countHeld adds tags that stay because they are held to the counts of the time slice.
func (u *timeSlice) countHeld(list ...candidate) {
	for _, c := range list {
		u.held++
		for _, h := range c.holders {
			if u.heldBy == nil {
				u.heldBy = make(map[string]int64)
			}
			if _, known := u.heldBy[h.Reporter]; known || len(u.heldBy) < maxHolders {
				u.heldBy[h.Reporter]++
			}
		}
	}
}

// maxHolders is how many reporters a run names.
const maxHolders = 100

// holders returns the numbers of held tags by reporter as JSON.
func (u *timeSlice) holders() string {
	if len(u.heldBy) == 0 {
		return "{}"
	}
	text, err := json.Marshal(u.heldBy)
	if err != nil {
		return "{}" // a map of texts and numbers is always valid
	}
	return string(text)
}
