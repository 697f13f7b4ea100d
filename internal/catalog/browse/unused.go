package browse

import (
	"context"
	"slices"
	"time"
)

const (
	// unusedScan is the number of tags after which the search for one page of unused tags
	// stops.
	unusedScan = 10_000
	// unusedStep is the maximum number of tags for which LastUses is called at once.
	unusedStep = 1000
)

// UnusedTags selects the tags that were neither pushed nor used at the time Since or later.
type UnusedTags struct {
	Since time.Time // tags pushed or used at this time or later are left out
	// LastUses returns when tags were last used; tags that aren't in its result were never
	// used. Required.
	LastUses func(ctx context.Context, repository int64, names []string) (map[string]time.Time, error)
}

// unused returns those of the tags, in their order, that q selects by name and that were
// neither pushed nor used since q.Unused.Since.
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

// unusedTags returns a page of unused tags in the order of names or of pushes. The times of
// use may be in another database, so no query on tags can filter by them. Therefore unusedTags
// reads tags in steps, calls q.Unused.LastUses for the tags of each step, and reads four times
// as many tags in the next step, up to unusedStep. It stops when the page is full. After
// unusedScan tags it stops too, and returns the unused tags found so far with a next page.
func (b *Browser) unusedTags(ctx context.Context, r repository, q TagQuery) (page []foundTag, next *TagPlace, err error) {
	q.After = q.skipYoung()
	step := q.Limit + 1
	for looked := 0; looked < unusedScan && len(page) < q.Limit; {
		found, err := b.finder(q)(ctx, r, q, step)
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

// skipYoung returns the position after which the query for the page begins. In the order of
// pushes, latest first, the list begins with the tags pushed since q.Unused.Since. None of
// these is unused, so skipYoung returns a position behind them.
func (q TagQuery) skipYoung() *TagPlace {
	first := &TagPlace{Rank: q.Unused.Since.UnixMicro()}
	if q.Order != TagsByPush || !q.Descending || q.After != nil && q.After.Rank < first.Rank {
		return q.After
	}
	return first
}
