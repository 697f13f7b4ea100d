package autoprune

import (
	"fmt"
	"strings"
)

// maxGroups is how many groups the policies by number with groups, and the keep rules with groups
// or versions, that apply to a repository may have in total. A group takes about 200 bytes while
// tags are judged.
var maxGroups = 100_000

// newestGroups finds the newest tags of each group. A policy by number and a keep rule with newest
// have one.
type newestGroups struct {
	counting
	limit int
	// emptyGroup says that tags in whose names the parentheses of groupBy capture nothing are a
	// group, too. Otherwise they are in no group.
	emptyGroup bool
	// groups has what was counted. It is needed only while the tags are surveyed.
	groups map[groupKey]*groupCount
	// oldest has the oldest of the newest `limit` tags of those groups that have at least so
	// many: what is older isn't among the newest. Of other groups everything is.
	oldest map[groupKey]rank
	// overflow says that there are too many groups. No tag is then known to be older than the
	// newest of its group.
	overflow bool
	// surplus says that some group has more tags than stay.
	surplus bool
}

// groupKey identifies a group.
type groupKey struct {
	name string // what groupBy captures
}

// groupCount is a group while tags are surveyed.
type groupCount struct {
	newest
	seen int // number of tags, counted or not
}

func newNewestGroups(c counting, limit int, emptyGroup bool) *newestGroups {
	return &newestGroups{
		counting: c, limit: limit, emptyGroup: emptyGroup, groups: make(map[groupKey]*groupCount), oldest: make(map[groupKey]rank),
	}
}

// key returns the tag's group. ok is false if it belongs to none.
func (n *newestGroups) key(t *Tag) (key groupKey, ok bool) {
	if n.groupBy.IsZero() {
		return groupKey{}, true
	}
	key.name, ok = n.groupBy.Group(t.Name)
	return key, ok && (n.emptyGroup || strings.Trim(key.name, "\x00") != "")
}

// see takes note of a tag, and counts it if `counted` is set. It returns the number of groups that
// this adds.
func (n *newestGroups) see(t *Tag, counted bool) (added int) {
	if n.overflow {
		return 0
	}
	key, ok := n.key(t)
	if !ok {
		return 0
	}
	group := n.groups[key]
	if group == nil {
		group = &groupCount{newest: newest{limit: n.limit}}
		n.groups[key] = group
	}
	group.seen++
	if !counted {
		return 0
	}
	if len(group.ranks) == 0 && n.grouped() {
		added = 1
	}
	group.add(rank{created: t.Created, name: t.Name})
	return added
}

// overflows is called when there are too many groups.
func (n *newestGroups) overflows() {
	if n != nil && n.grouped() {
		n.overflow, n.groups = true, nil
	}
}

// settle is called when all tags were seen.
func (n *newestGroups) settle() {
	for key, group := range n.groups {
		if r, full := group.oldest(); full {
			n.oldest[key] = r
			n.surplus = n.surplus || group.seen > n.limit
		}
	}
	n.groups = nil
}

// judge says whether the tag stays as one of the newest: the code is AmongNewest, BeyondNewest, or
// why it can't be said.
func (n *newestGroups) judge(t *Tag) Code {
	key, ok := n.key(t)
	switch oldest, full := n.oldest[key]; {
	case !ok:
		return NoGroup
	case n.overflow:
		return TooManyGroups
	case full && rank{created: t.Created, name: t.Name}.compare(oldest) < 0:
		return BeyondNewest
	}
	return AmongNewest
}

// ofGroup names the tag's group, for reasons; "" if all tags are one group.
func (n *newestGroups) ofGroup(t *Tag) string {
	key, ok := n.key(t)
	if !ok || n.groupBy.IsZero() {
		return ""
	}
	return fmt.Sprintf(" of the group %q", strings.ReplaceAll(strings.TrimSuffix(key.name, "\x00"), "\x00", ", "))
}

// notice says what the groups of a policy can't judge; "" if there is nothing to say.
func (n *newestGroups) notice() string {
	if n == nil || !n.overflow {
		return ""
	}
	return fmt.Sprintf("it selects nothing: there are more than %d groups", maxGroups)
}

// limitGroups gives up counting in groups when there are too many.
func (v *Verdict) limitGroups() {
	if v.groups <= maxGroups || v.overflow {
		return
	}
	v.overflow = true
	for i := range v.rules {
		v.rules[i].newest.overflows()
	}
	for k := range v.keepers() {
		k.overflows()
	}
}
