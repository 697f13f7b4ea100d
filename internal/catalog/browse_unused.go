package catalog

import (
	"context"
	"slices"
	"time"
)

const (
	// unusedScan is how many tags a page looks at for those that are unused.
	unusedScan = 10_000
	// unusedStep is for how many of them it asks at a time when they were used.
	unusedStep = 1000
)

// UnusedTags selects the tags that were neither pushed nor used for a while.
type UnusedTags struct {
	Since time.Time // what was pushed or used then or later is left out
	// LastUses says when tags were last used; those that aren't in its answer never
	// were. Required.
	LastUses func(ctx context.Context, repository int64, names []string) (map[string]time.Time, error)
}

// unused are those of the tags that the query selects, in their order.
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

// unusedTags finds a page of unused tags in the order of an index. When they were
// used is known elsewhere, so it goes through the tags in steps, which get longer
// while unused ones are rare, and ends after unusedScan of them with what it has.
func (c *Catalog) unusedTags(ctx context.Context, r repository, q TagQuery) (page []foundTag, next *TagPlace, err error) {
	q.After = q.skipYoung()
	step := q.Limit + 1
	for looked := 0; looked < unusedScan && len(page) < q.Limit; {
		found, err := c.finder(q)(ctx, r, q, step)
		if err != nil {
			return nil, nil, err
		}
		if q.Order == TagsByPush && !q.Descending { // all behind the first young one are young
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

// skipYoung is where to begin: behind the young ones where these come first.
func (q TagQuery) skipYoung() *TagPlace {
	first := &TagPlace{Rank: q.Unused.Since.UnixMicro()}
	if q.Order != TagsByPush || !q.Descending || q.After != nil && q.After.Rank < first.Rank {
		return q.After
	}
	return first
}
