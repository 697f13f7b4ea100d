package catalog

import (
	"context"
	"slices"
	"time"
)

const (
	// unusedScan is how many tags a page reads to find unused ones.
	unusedScan = 10_000
	// unusedStep is for how many of them LastUses is called at a time.
	unusedStep = 1000
)

// UnusedTags selects the tags that were neither pushed nor used since a time.
type UnusedTags struct {
	Since time.Time // tags pushed or used at this time or later are left out
	// LastUses returns when tags were last used; tags that aren't in its result were never
	// used. Required.
	LastUses func(ctx context.Context, repository int64, names []string) (map[string]time.Time, error)
}

// unused returns those of the tags that are unused, in their order.
func (q TagQuery) unused(ctx context.Context, r repository, tags []foundTag) ([]foundTag, error) {
	var old []foundTag
	var names []string
	for _, t := range tags {
		if q.selects(t.name) && t.pushed.Before(q.Unused.Since) {
			old, names = append(old, t), append(names, t.name)
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	uses, err := q.Unused.LastUses(ctx, r.id, names)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(old, func(t foundTag) bool { return !uses[t.name].Before(q.Unused.Since) }), nil
}

// unusedTags finds a page of unused tags in the order of an index. The times of use are
// stored elsewhere. So it reads the tags in steps, which get longer while unused tags are
// rare, and stops after unusedScan tags with what it has found.
func (c *Catalog) unusedTags(ctx context.Context, r repository, q TagQuery) (page []foundTag, next *TagPlace, err error) {
	q.After = q.skipYoung()
	step := q.Limit + 1
	for looked := 0; looked < unusedScan && len(page) < q.Limit; {
		found, err := c.finder(q)(ctx, r, q, step)
		if err != nil {
			return nil, nil, err
		}
		if q.Order == TagsByPush && !q.Descending { // all tags behind the first young one are young
			if i := slices.IndexFunc(found, func(t foundTag) bool { return !t.pushed.Before(q.Unused.Since) }); i >= 0 {
				found = found[:i]
			}
		}
		unused, err := q.unused(ctx, r, found)
		if err != nil {
			return nil, nil, err
		}
		take := make(map[string]bool, len(unused))
		for _, t := range unused {
			take[t.name] = true
		}
		part, last := pick(found, func(t foundTag) bool { return take[t.name] }, 0, q.Limit-len(page), step)
		page = append(page, part...)
		if last == nil {
			return page, nil, nil
		}
		looked += len(found)
		next = q.place(*last)
		q.After, step = next, min(4*step, unusedStep)
	}
	return page, next, nil
}

// skipYoung returns where to begin: behind the young tags, if these come first.
func (q TagQuery) skipYoung() *TagPlace {
	first := &TagPlace{Rank: q.Unused.Since.UnixMicro()}
	if q.Order != TagsByPush || !q.Descending || q.After != nil && q.After.Rank < first.Rank {
		return q.After
	}
	return first
}
