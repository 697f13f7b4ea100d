package snapshot

import (
	"context"
	"maps"
	"slices"
)

// Unused finds the manifests of a repository that garbage collection could delete once some
// tags are deleted. Such a manifest would have no tag, no index that stays, and, if it is a
// referrer, no subject that stays.
type Unused struct {
	s     *Snapshot
	stays map[int64]bool // manifests of tags, and whether any of their tags stays
}

// NewUnused begins to look for unused manifests of the snapshot's repository.
func NewUnused(s *Snapshot) *Unused {
	return &Unused{s: s, stays: make(map[int64]bool)}
}

// Tag records that a tag of the repository points to the manifest. `goes` says that the tag
// is to be deleted. The caller must record all tags of the repository.
func (u *Unused) Tag(manifest int64, goes bool) {
	u.stays[manifest] = u.stays[manifest] || !goes
}

// Manifests returns the ids of the manifests that nothing would reference, in ascending
// order.
func (u *Unused) Manifests(ctx context.Context) ([]int64, error) {
	free := make(map[int64]bool) // candidates; at the end, the result
	var level []int64
	for id, stays := range u.stays {
		if !stays {
			free[id] = true
			level = append(level, id)
		}
	}
	kept := make(map[int64][]int64) // the candidates that a candidate references
	for len(level) > 0 {
		links, err := u.s.Below(ctx, level)
		if err != nil {
			return nil, err
		}
		level = level[:0]
		for _, l := range links {
			kept[l.Keeper] = append(kept[l.Keeper], l.Kept)
			if _, tagged := u.stays[l.Kept]; !free[l.Kept] && !tagged {
				free[l.Kept] = true
				level = append(level, l.Kept)
			}
		}
	}
	held, err := u.keptByTags(ctx, free)
	if err != nil {
		return nil, err
	}
	for len(held) > 0 { // a manifest that stays keeps those that it references
		id := held[len(held)-1]
		held = held[:len(held)-1]
		if free[id] {
			delete(free, id)
			held = append(held, kept[id]...)
		}
	}
	return slices.Sorted(maps.Keys(free)), nil
}

// keptByTags returns the candidates that must stay: a manifest that isn't a candidate, and that a
// tag needs, keeps them. Above the candidates there may also be manifests that no tag needs, such as an index that
// lost its tag; garbage collection deletes these too.
func (u *Unused) keptByTags(ctx context.Context, candidates map[int64]bool) ([]int64, error) {
	kept := make(map[int64][]int64) // by keeper, outside of the candidates
	seen := make(map[int64]bool)
	var needed []int64 // manifests outside of the candidates
	level := slices.Collect(maps.Keys(candidates))
	for len(level) > 0 {
		links, err := u.s.above(ctx, level)
		if err != nil {
			return nil, err
		}
		level = level[:0]
		for _, l := range links {
			if candidates[l.Keeper] {
				continue
			}
			if kept[l.Keeper] = append(kept[l.Keeper], l.Kept); seen[l.Keeper] {
				continue
			}
			if seen[l.Keeper] = true; u.stays[l.Keeper] {
				needed = append(needed, l.Keeper)
			} else {
				level = append(level, l.Keeper)
			}
		}
	}
	var held []int64
	done := make(map[int64]bool)
	for len(needed) > 0 {
		id := needed[len(needed)-1]
		needed = needed[:len(needed)-1]
		if done[id] {
			continue
		}
		done[id] = true
		for _, below := range kept[id] {
			if candidates[below] {
				held = append(held, below)
			} else {
				needed = append(needed, below)
			}
		}
	}
	return held, nil
}
