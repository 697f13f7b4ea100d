package autoprune

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unique"

	"github.com/purser-registry/purser/internal/oci"
)

// BranchPattern is a groupBy for names that consist of a branch, a dash, and a commit's id of 7 to
// 40 digits (as git writes it, also with a g before it), a date or a time: main-3f2a9c1,
// main-20260301. Short numbers aren't taken for a part of their own, because release-15 is as
// likely a branch as the 15th image of the branch release.
const BranchPattern = `^(.+)-(?:g?[0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})$`

// The JSON fields that say what is counted, besides groupBy.
const (
	fieldImages      = "countImages"
	fieldPerPlatform = "perPlatform"
)

// counting says what a number_of_tags policy, or a keep rule with newest, counts. The zero value
// counts all tags together.
type counting struct {
	groupBy oci.TagPattern // zero: all tags are one group
	images  bool           // tags that name the same manifest count as one
	// platforms says that there is a group for each platform; a tag whose image is for several
	// platforms is in the group of each.
	platforms bool
}

// CountingForm says what a number_of_tags policy counts, in the policy's JSON.
type CountingForm struct {
	CountImages bool   `json:"countImages,omitempty" doc:"For number_of_tags: numTags counts images, so that tags of the same manifest count as one"`
	GroupBy     string `json:"groupBy,omitempty" maxLength:"256" doc:"For number_of_tags: regular expression (RE2) with parentheses. What they capture in a tag's name is the tag's group, and numTags counts in each group. A tag in no group stays" example:"^(.+)-[0-9a-f]{7,40}$"`
	PerPlatform bool   `json:"perPlatform,omitempty" doc:"For number_of_tags: numTags counts for each platform. A tag of several platforms stays if it is among the newest of one of them, and always if its platforms are not all known"`
}

// Counting returns what the policy counts in the form of its JSON.
func (p Policy) Counting() CountingForm { return p.count.form() }

func (c counting) form() CountingForm {
	return CountingForm{GroupBy: c.groupBy.String(), CountImages: c.images, PerPlatform: c.platforms}
}

// String describes what is counted, such as: images of each group by "^(.+)-". It is "" if all tags
// are counted together.
func (f CountingForm) String() string {
	var texts []string
	if f.CountImages {
		texts = append(texts, "images")
	}
	if f.GroupBy != "" {
		texts = append(texts, fmt.Sprintf("of each group by %s", quoted(f.GroupBy)))
	}
	if f.PerPlatform {
		texts = append(texts, "of each platform")
	}
	return strings.Join(texts, " ")
}

// countings returns what the policy and its keep rules count.
func (p *Policy) countings() []counting {
	list := []counting{p.count}
	for _, k := range p.keep {
		list = append(list, k.counting)
	}
	return list
}

// grouped returns whether there may be more than one group.
func (c counting) grouped() bool { return !c.groupBy.IsZero() || c.platforms }

// readCounting reads the fields of CountingForm, which only a policy by number may have.
func readCounting(fields map[string]json.RawMessage, m Method) (c counting, err error) {
	if c.groupBy, err = readGroupBy(fields[fieldGroupBy]); err != nil {
		return c, err
	}
	if c.images, err = readFlag(fieldImages, fields[fieldImages], false); err != nil {
		return c, err
	}
	if c.platforms, err = readFlag(fieldPerPlatform, fields[fieldPerPlatform], false); err != nil {
		return c, err
	}
	switch {
	case m == NumberOfTags:
	case !c.groupBy.IsZero():
		return c, notCounted(fieldGroupBy, m)
	case c.images:
		return c, notCounted(fieldImages, m)
	case c.platforms:
		return c, notCounted(fieldPerPlatform, m)
	}
	return c, nil
}

func notCounted(field string, m Method) error {
	return fieldErrorf(field, "%s has none; it goes with %s, and with newest in a keep rule", m, NumberOfTags)
}

// readsPlatforms returns whether the policy needs to know the platforms of tags, to count for each.
func (p *Policy) readsPlatforms() bool {
	return p.count.platforms || slices.ContainsFunc(p.keep, func(k keepRule) bool { return k.platforms })
}

// platformSeparator separates the platforms in Tag.Platforms.
const platformSeparator = "\x00"

// Platforms returns the platforms of the images in the form of Tag.Platforms.
func (a Attributes) Platforms() string { return platformsOf(a.Images) }

func platformsOf(images []ImageAttributes) string {
	var platforms []string
	for _, image := range images {
		switch {
		case !image.PlatformKnown || image.Platform == "" || strings.Contains(image.Platform, platformSeparator):
			return ""
		case image.Platform != unknownPlatform:
			platforms = append(platforms, image.Platform)
		}
	}
	slices.Sort(platforms)
	return unique.Make(strings.Join(slices.Compact(platforms), platformSeparator)).Value()
}
