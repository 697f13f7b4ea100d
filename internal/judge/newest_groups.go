package judge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/policy"
)

// newestGroups finds the newest tags or images of each group. A policy by number and a keep rule with newest
// have one.
type newestGroups struct {
	policy.Counting
	limit int
	// emptyGroup says that tags in whose names the parentheses of groupBy capture nothing are a
	// group, too. Otherwise they are in no group.
	emptyGroup bool
	// groups has what was counted. It is needed only while the tags are surveyed.
	groups map[groupKey]*groupCount
	// oldest has, for each group of at least `limit` tags, the rank of the last tag among its newest
	// `limit`: older tags of the group aren't among the newest. In a smaller group all tags are.
	oldest map[groupKey]rank
	// overflow says that there are too many groups. No tag is then known to be older than the
	// newest of its group.
	overflow bool
	// stay has, if images are counted, the images of each group that are among the newest, because
	// of a tag that isn't older than `oldest`.
	stay map[groupImage]struct{}
	// unknown is how many tags are in no group because their platforms aren't known, or because
	// they have none.
	unknown int64
	// surplus says that some group may have more tags or images than stay. uncounted says that a
	// tag was seen that isn't in the number of any group.
	surplus, uncounted bool
}

// groupImage is an image in a group.
type groupImage struct {
	group groupKey
	image int64 // its manifest
}

// groupKey identifies a group.
type groupKey struct {
	name     string // what groupBy captures
	platform string
}

// groupCount is a group while tags are surveyed.
type groupCount struct {
	newest
	seen    int // number of tags, counted or not
	counted bool
	images  map[int64]*imageRanks // by manifest, if images are counted
}

// imageRanks says how new an image is.
type imageRanks struct {
	looked  rank // of the newest tag at which the policy or the rule looks
	counted rank // of the newest one that is counted; zero: none is
}

func (g *groupCount) seeImage(manifest int64, r rank, counted bool) {
	image := g.images[manifest]
	if image == nil {
		image = new(imageRanks)
		g.images[manifest] = image
	}
	if r.compare(image.looked) > 0 {
		image.looked = r
	}
	if counted && r.compare(image.counted) > 0 {
		image.counted = r
	}
}

func newNewestGroups(c policy.Counting, limit int, emptyGroup bool) *newestGroups {
	return &newestGroups{
		Counting: c, limit: limit, emptyGroup: emptyGroup, groups: make(map[groupKey]*groupCount), oldest: make(map[groupKey]rank),
		stay: make(map[groupImage]struct{}),
	}
}

// name returns what groupBy captures in the tag's name. ok is false if the tag is in no group.
func (n *newestGroups) name(t *Tag) (name string, ok bool) {
	if n.GroupBy.IsZero() {
		return "", true
	}
	name, ok = n.GroupBy.Group(t.Name)
	return name, ok && (n.emptyGroup || strings.Trim(name, "\x00") != "")
}

// noPlatform is the platform of groups that aren't of a platform.
var noPlatform = []string{""}

// groupsOf returns what groupBy captures in the tag's name, and the platforms in whose groups the tag
// is. The code says why it is in no group; "" if it is in one.
func (n *newestGroups) groupsOf(t *Tag) (name string, platforms []string, code Code) {
	name, ok := n.name(t)
	switch {
	case !ok:
		return "", nil, NoGroup
	case !n.PerPlatform:
		return name, noPlatform, ""
	case t.Platforms == "":
		return "", nil, NoPlatform
	}
	return name, strings.Split(t.Platforms, platformSeparator), ""
}

// see takes note of a tag, and counts it if `counted` is set. It returns the number of groups that
// this adds. Tags that aren't counted matter if images are: an image is as new as the newest of all
// its tags.
func (n *newestGroups) see(t *Tag, counted bool) (added int) {
	if n.overflow {
		return 0
	}
	name, platforms, code := n.groupsOf(t)
	if code == NoPlatform {
		n.unknown++
	}
	for _, platform := range platforms {
		added += n.seeIn(groupKey{name, platform}, t, counted)
	}
	return added
}

// seeIn is see for one group.
func (n *newestGroups) seeIn(key groupKey, t *Tag, counted bool) (added int) {
	group := n.groups[key]
	if group == nil && !counted && !n.CountImages {
		n.uncounted = true // the tag takes no memory, since the limit of groups doesn't bound it
		return 0
	}
	if group == nil {
		group = &groupCount{newest: newest{limit: n.limit}}
		if n.CountImages {
			group.images = make(map[int64]*imageRanks)
		}
		n.groups[key] = group
	}
	r := rank{created: t.Created, name: t.Name}
	group.seen++
	switch {
	case n.CountImages:
		group.seeImage(t.Manifest, r, counted)
	case counted:
		group.add(r)
	}
	if counted && !group.counted && n.Grouped() {
		added = 1
	}
	group.counted = group.counted || counted
	return added
}

// overflows is called when there are too many groups.
func (n *newestGroups) overflows() {
	if n != nil && n.Grouped() {
		n.overflow, n.groups = true, nil
	}
}

// settle is called when all tags were seen.
func (n *newestGroups) settle() {
	for key, group := range n.groups {
		for _, image := range group.images {
			if !image.counted.created.IsZero() {
				group.add(image.counted)
			}
		}
		r, full := group.oldest()
		if !full {
			continue
		}
		n.oldest[key] = r
		n.surplus = n.surplus || group.seen > n.limit || n.uncounted
		for manifest, image := range group.images {
			if image.looked.compare(r) >= 0 {
				n.stay[groupImage{key, manifest}] = struct{}{}
			}
		}
	}
	n.groups = nil
}

// judge says whether the tag stays as one of the newest: the code is AmongNewest, BeyondNewest, or
// why it can't be said.
func (n *newestGroups) judge(t *Tag) Code {
	name, platforms, code := n.groupsOf(t)
	switch {
	case code != "":
		return code
	case n.overflow:
		return TooManyGroups
	case slices.ContainsFunc(platforms, func(platform string) bool { return n.among(groupKey{name, platform}, t) }):
		return AmongNewest
	}
	return BeyondNewest
}

// among returns whether the tag, or its image if images are counted, is among the newest of a group.
func (n *newestGroups) among(key groupKey, t *Tag) bool {
	oldest, full := n.oldest[key]
	if !full || (rank{created: t.Created, name: t.Name}).compare(oldest) >= 0 {
		return true
	}
	_, stays := n.stay[groupImage{key, t.Manifest}]
	return stays
}

// which returns the part of a reason that says what is counted and names the tag's group. It is ""
// if all tags are counted together.
func (n *newestGroups) which(t *Tag) (text string) {
	if n.CountImages {
		text = " images"
	}
	if name, ok := n.name(t); ok && !n.GroupBy.IsZero() {
		text += fmt.Sprintf(" of the group %q", strings.ReplaceAll(strings.TrimSuffix(name, "\x00"), "\x00", ", "))
	}
	if n.PerPlatform {
		text += " for " + strings.ReplaceAll(t.Platforms, platformSeparator, " or ")
	}
	return text
}

// notice says what the groups of a policy can't judge; "" if there is nothing to say.
func (n *newestGroups) notice(maxGroups int) string {
	switch {
	case n == nil:
		return ""
	case n.overflow:
		return fmt.Sprintf("it selects nothing: there are more than %d groups", maxGroups)
	case n.unknown > 0:
		return fmt.Sprintf("it selects none of %d tags, of whose images not all have a platform that is known", n.unknown)
	}
	return ""
}

// limitGroups gives up counting in groups when there are too many.
func (v *Verdict) limitGroups() {
	if v.groups <= v.maxGroups || v.overflow {
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
