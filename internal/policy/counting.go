package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// BranchPattern is a groupBy for names that consist of a branch, a dash, and a commit's id of 7 to
// 40 digits (as git writes it, also with a g before it), a date or a time: main-3f2a9c1,
// main-20260301. Short numbers aren't taken for a part of their own, because release-15 is as
// likely a branch as the 15th image of the branch release.
const BranchPattern = `^(.+)-(?:g?[0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})$`

// Counting says what a number_of_tags policy, or a keep rule with newest, counts. The zero value
// counts all tags together.
type Counting struct {
	// CountImages says that tags that name the same manifest count as one.
	CountImages bool `json:"countImages,omitempty" doc:"For number_of_tags: numTags counts images, so that tags of the same manifest count as one" flag:"count-images" usage:"let --num-tags count images: tags of the same manifest count as one"`
	// GroupBy is zero if all tags are one group.
	GroupBy oci.TagPattern `json:"groupBy,omitzero" maxLength:"256" doc:"For number_of_tags: regular expression (RE2) with parentheses. What they capture in a tag's name is the tag's group, and numTags counts in each group. A tag in no group stays" example:"^(.+)-[0-9a-f]{7,40}$" flag:"group-by" arg:"REGEXP" usage:"let --num-tags count in each group: what the parentheses of this REGEXP capture in a name. A tag in no group stays" label:"Newest in each group by" hint:"What the parentheses capture in the name, such as the branch. A tag in no group stays. Empty: no groups."`
	// PerPlatform says that there is a group for each platform; a tag whose image is for several
	// platforms is in the group of each.
	PerPlatform bool `json:"perPlatform,omitempty" doc:"For number_of_tags: numTags counts for each platform. A tag of several platforms stays if it is among the newest of one of them, and always if its platforms are not all known" flag:"per-platform" usage:"let --num-tags count for each platform; a tag stays if it is among the newest of any of its platforms, or if these aren't all known"`
}

// String describes what is counted, such as: images of each group by "^(.+)-". It is "" if all tags
// are counted together.
func (c Counting) String() string {
	var texts []string
	if c.CountImages {
		texts = append(texts, "images")
	}
	if !c.GroupBy.IsZero() {
		texts = append(texts, fmt.Sprintf("of each group by %s", Quoted(c.GroupBy)))
	}
	if c.PerPlatform {
		texts = append(texts, "of each platform")
	}
	return strings.Join(texts, " ")
}

// Grouped returns whether there may be more than one group.
func (c Counting) Grouped() bool { return !c.GroupBy.IsZero() || c.PerPlatform }

// countings returns what the policy and its keep rules count.
func (p *Policy) countings() []Counting {
	list := []Counting{p.Counting}
	for _, k := range p.Keep {
		list = append(list, k.Counting())
	}
	return list
}

// ReadsPlatforms returns whether the policy needs to know the platforms of tags, to count for each.
func (p *Policy) ReadsPlatforms() bool {
	return slices.ContainsFunc(p.countings(), func(c Counting) bool { return c.PerPlatform })
}

// check returns an error unless the policy counts tags, or no member says how.
func (c Counting) check(m Method) error {
	var member string
	switch {
	case m == NumberOfTags:
		return nil
	case !c.GroupBy.IsZero():
		member = "groupBy"
	case c.CountImages:
		member = "countImages"
	case c.PerPlatform:
		member = "perPlatform"
	default:
		return nil
	}
	return fieldErrorf(member, "%s has none; it goes with %s, and with newest in a keep rule", m, NumberOfTags)
}

// checkGroupBy returns an error unless the pattern has parentheses.
func checkGroupBy(pattern oci.TagPattern) error {
	if !pattern.IsZero() && pattern.Groups() == 0 {
		return fieldErrorf("groupBy", `it needs parentheses around the part of the name that is the group, as in ^(v[0-9]+)\.`)
	}
	return nil
}
