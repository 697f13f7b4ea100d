package autoprune

import (
	"context"
	"maps"
	"slices"

	"github.com/purser-registry/purser/internal/catalog"
)

// unused finds the manifests of a repository that nothing would keep any more after
// tags are gone: not a tag, nor an index that is kept, nor, for referrers, their
// subject. Garbage collection takes these.
type unused struct {
	s     *catalog.PruneSnapshot
	stays map[int64]bool // manifests of tags, and whether one of their tags stays
}

func newUnused(s *catalog.PruneSnapshot) *unused {
	return &unused{s: s, stays: make(map[int64]bool)}
}

// tag adds a tag of the repository. All of them are to be added.
func (u *unused) tag(manifest int64, goes bool) {
	u.stays[manifest] = u.stays[manifest] || !goes
}

// manifests are those that nothing would keep, in order.
func (u *unused) manifests(ctx context.Context) ([]int64, error) {
	free := make(map[int64]bool) // what may go; in the end, what goes
	var level []int64
	for id, stays := range u.stays {
		if !stays {
			free[id] = true
			level = append(level, id)
		}
	}
	kept := make(map[int64][]int64) // by what would keep it, among those that may go
	for len(level) > 0 {
		links, err := u.each(ctx, level, u.s.Children, u.s.Referrers)
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
	links, err := u.each(ctx, slices.Collect(maps.Keys(free)), u.s.Parents, u.s.Subjects)
	if err != nil {
		return nil, err
	}
	var held []int64
	for _, l := range links {
		if !free[l.Keeper] {
			held = append(held, l.Kept)
		}
	}
	for len(held) > 0 { // what is kept keeps what hangs on it
		id := held[len(held)-1]
		held = held[:len(held)-1]
		if free[id] {
			delete(free, id)
			held = append(held, kept[id]...)
		}
	}
	return slices.Sorted(maps.Keys(free)), nil
}

// each asks for links in parts.
func (u *unused) each(ctx context.Context, manifests []int64, asks ...func(context.Context, []int64) ([]catalog.ManifestLink, error)) ([]catalog.ManifestLink, error) {
	var all []catalog.ManifestLink
	for part := range slices.Chunk(manifests, 10_000) {
		for _, ask := range asks {
			links, err := ask(ctx, part)
			if err != nil {
				return nil, err
			}
			all = append(all, links...)
		}
	}
	return all, nil
}
