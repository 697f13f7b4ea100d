package autoprune

import (
	"encoding/json"
	"fmt"

	"github.com/purser-registry/purser/internal/oci"
)

// BranchPattern is a groupBy for names that consist of a branch, a dash, and a commit's id of 7 to
// 40 digits (as git writes it, also with a g before it), a date or a time: main-3f2a9c1,
// main-20260301. Short numbers aren't taken for a part of their own, because release-15 is as
// likely a branch as the 15th image of the branch release.
const BranchPattern = `^(.+)-(?:g?[0-9a-f]{7,40}|[0-9]{4}-[0-9]{2}-[0-9]{2})$`

// counting says what a number_of_tags policy, or a keep rule with newest, counts. The zero value
// counts all tags together.
type counting struct {
	groupBy oci.TagPattern // zero: all tags are one group
}

// CountingForm says what a number_of_tags policy counts, in the policy's JSON.
type CountingForm struct {
	GroupBy string `json:"groupBy,omitempty" maxLength:"256" doc:"For number_of_tags: regular expression (RE2) with parentheses. What they capture in a tag's name is the tag's group, and numTags counts in each group. A tag in no group stays" example:"^(.+)-[0-9a-f]{7,40}$"`
}

// Counting returns what the policy counts in the form of its JSON.
func (p Policy) Counting() CountingForm { return p.count.form() }

func (c counting) form() CountingForm {
	return CountingForm{GroupBy: c.groupBy.String()}
}

// String describes what is counted, such as: of each group by "^(.+)-". It is "" if all tags are
// counted together.
func (f CountingForm) String() string {
	if f.GroupBy == "" {
		return ""
	}
	return fmt.Sprintf("of each group by %s", quoted(f.GroupBy))
}

// grouped returns whether there may be more than one group.
func (c counting) grouped() bool { return !c.groupBy.IsZero() }

// readCounting reads the fields of CountingForm, which only a policy by number may have.
func readCounting(fields map[string]json.RawMessage, m Method) (c counting, err error) {
	if c.groupBy, err = readGroupBy(fields[fieldGroupBy]); err != nil {
		return c, err
	}
	if m != NumberOfTags && c.grouped() {
		return c, notCounted(fieldGroupBy, m)
	}
	return c, nil
}

func notCounted(field string, m Method) error {
	return fieldErrorf(field, "%s has none; it goes with %s, and with newest in a keep rule", m, NumberOfTags)
}
