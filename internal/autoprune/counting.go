package autoprune

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// BranchPattern is a groupBy for names that consist of a branch, a dash, and a commit's id of 7 to
// 40 digits (as git writes it, also with a g before it), a date or a time: main-3f2a9c1,
// main-20260301. Short numbers aren't taken for a part of their own, because release-15 is as
// likely a branch as the 15th image of the branch release.
const BranchPattern = `^(.+)-(?:g?[0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})$`

// The JSON fields that say what is counted, besides groupBy.
const fieldImages = "countImages"

// counting says what a number_of_tags policy, or a keep rule with newest, counts. The zero value
// counts all tags together.
type counting struct {
	groupBy oci.TagPattern // zero: all tags are one group
	images  bool           // tags that name the same manifest count as one
}

// CountingForm says what a number_of_tags policy counts, in the policy's JSON.
type CountingForm struct {
	CountImages bool   `json:"countImages,omitempty" doc:"For number_of_tags: numTags counts images, so that tags of the same manifest count as one"`
	GroupBy     string `json:"groupBy,omitempty" maxLength:"256" doc:"For number_of_tags: regular expression (RE2) with parentheses. What they capture in a tag's name is the tag's group, and numTags counts in each group. A tag in no group stays" example:"^(.+)-[0-9a-f]{7,40}$"`
}

// Counting returns what the policy counts in the form of its JSON.
func (p Policy) Counting() CountingForm { return p.count.form() }

func (c counting) form() CountingForm {
	return CountingForm{GroupBy: c.groupBy.String(), CountImages: c.images}
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
	return strings.Join(texts, " ")
}

// grouped returns whether there may be more than one group.
func (c counting) grouped() bool { return !c.groupBy.IsZero() }

// readCounting reads the fields of CountingForm, which only a policy by number may have.
func readCounting(fields map[string]json.RawMessage, m Method) (c counting, err error) {
	if c.groupBy, err = readGroupBy(fields[fieldGroupBy]); err != nil {
		return c, err
	}
	if c.images, err = readFlag(fieldImages, fields[fieldImages], false); err != nil {
		return c, err
	}
	switch {
	case m == NumberOfTags:
	case c.grouped():
		return c, notCounted(fieldGroupBy, m)
	case c.images:
		return c, notCounted(fieldImages, m)
	}
	return c, nil
}

func notCounted(field string, m Method) error {
	return fieldErrorf(field, "%s has none; it goes with %s, and with newest in a keep rule", m, NumberOfTags)
}
