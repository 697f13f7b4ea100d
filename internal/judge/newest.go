package judge

import (
	"container/heap"
	"strings"
	"time"
)

// rank is a tag's position in the order by which a number_of_tags policy finds the newest
// tags: by the time of the last push, and among equal times by name, where the greater name
// counts as newer.
type rank struct {
	created time.Time
	name    string
}

func (r rank) compare(other rank) int {
	if c := r.created.Compare(other.created); c != 0 {
		return c
	}
	return strings.Compare(r.name, other.name)
}

// newest finds the `limit` newest of the ranks that are added to it, and the oldest of
// these `limit` ranks. It never holds more than `limit` ranks.
type newest struct {
	limit int
	ranks ranks
}

func (n *newest) add(r rank) {
	switch {
	case len(n.ranks) < n.limit:
		heap.Push(&n.ranks, r)
	case r.compare(n.ranks[0]) > 0:
		n.ranks[0] = r
		heap.Fix(&n.ranks, 0)
	}
}

// oldest returns the oldest of the newest `limit` tags. ok is false if fewer than `limit`
// tags were added.
func (n *newest) oldest() (r rank, ok bool) {
	if len(n.ranks) == 0 || len(n.ranks) < n.limit {
		return rank{}, false
	}
	return n.ranks[0], true
}

// ranks is a heap with the oldest at the top.
type ranks []rank

func (r ranks) Len() int           { return len(r) }
func (r ranks) Less(i, j int) bool { return r[i].compare(r[j]) < 0 }
func (r ranks) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *ranks) Push(x any)        { *r = append(*r, x.(rank)) }
func (r *ranks) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}
