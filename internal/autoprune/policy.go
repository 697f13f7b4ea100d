package autoprune

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/purser-registry/purser/internal/oci"
)

// Method is how a policy selects tags.
type Method string

// The methods. CreationDate and NumberOfTags are Quay's.
const (
	// CreationDate selects tags that were last pushed longer ago than an age.
	CreationDate Method = "creation_date"
	// NumberOfTags selects all tags but a number of the newest.
	NumberOfTags Method = "number_of_tags"
	// LastPulled selects tags that were neither used nor pushed for the time of an age.
	LastPulled Method = "last_pulled"
)

// MaxNumTags is the largest number of a [NumberOfTags] policy.
const MaxNumTags = 1_000_000_000

// Policy says which tags of a repository are deleted. The zero value selects nothing; every
// other value came from [ParsePolicy] and is valid. Compare policies with [Policy.Equal].
// Policies may be used by several goroutines.
type Policy struct {
	method  Method
	age     Age // CreationDate, LastPulled
	number  int // NumberOfTags
	pattern oci.TagPattern
	exclude bool // the pattern names the tags that aren't selected
	orphans bool // orphans are deleted, see RemovesOrphans
}

// Method returns how the policy selects, "" for the zero value.
func (p Policy) Method() Method { return p.method }

// Value returns what Quay's API calls the policy's value: the number (an int) of a
// [NumberOfTags] policy, the age as text of the others, nil for the zero value.
func (p Policy) Value() any {
	switch p.method {
	case NumberOfTags:
		return p.number
	case CreationDate, LastPulled:
		return p.age.String()
	}
	return nil
}

// Pattern returns the pattern and whether tags that match it are selected, or
// those that don't. The zero pattern means that every tag is.
func (p Policy) Pattern() (pattern oci.TagPattern, matches bool) { return p.pattern, !p.exclude }

// RemovesOrphans returns whether the policy deletes attached tags (signatures and the
// like) whose image isn't in their repository, when they are a day old and its pattern
// selects them, whatever its method. Without it such tags are judged like any other.
func (p Policy) RemovesOrphans() bool { return p.orphans }

// Warnings returns how the policy's pattern may select more than its author intends.
func (p Policy) Warnings() []string { return p.pattern.Warnings() }

// Considers returns whether the policy's pattern selects the tag. Whether the tag is
// attached to an image isn't looked at here.
func (p Policy) Considers(tag string) bool {
	return p.pattern.IsZero() || p.pattern.Match(tag) != p.exclude
}

// Equal returns whether both policies select the same tags by their texts: the same
// method, pattern and number, and ages of the same length (2w equals 14d).
func (p Policy) Equal(other Policy) bool {
	return p.method == other.method &&
		p.age.Duration() == other.age.Duration() &&
		p.number == other.number &&
		p.pattern.String() == other.pattern.String() &&
		p.exclude == other.exclude &&
		p.orphans == other.orphans
}

// String describes the policy for people, such as
// creation_date olderThan 2w, tags that match "pr-.*".
func (p Policy) String() string {
	var text string
	switch p.method {
	case NumberOfTags:
		text = fmt.Sprintf("%s numTags %d", p.method, p.number)
	case CreationDate, LastPulled:
		text = fmt.Sprintf("%s olderThan %s", p.method, p.age)
	default:
		return "no policy"
	}
	if p.orphans {
		text += ", removeOrphans"
	}
	switch {
	case p.pattern.IsZero():
		return text
	case p.exclude:
		return fmt.Sprintf("%s, tags that don't match %q", text, p.pattern)
	}
	return fmt.Sprintf("%s, tags that match %q", text, p.pattern)
}

// policyJSON is how a policy is written. TagPatternSearch is in the stored form alone.
type policyJSON struct {
	Method            Method `json:"method"`
	OlderThan         string `json:"olderThan,omitempty"`
	NumTags           int    `json:"numTags,omitempty"`
	TagPattern        string `json:"tagPattern,omitempty"`
	TagPatternMatches *bool  `json:"tagPatternMatches,omitempty"`
	RemoveOrphans     bool   `json:"removeOrphans,omitempty"`
	TagPatternSearch  bool   `json:"tagPatternSearch,omitempty"`
}

// MarshalJSON writes the policy in one form: olderThan or numTags, never value;
// tagPatternMatches whenever there is a tagPattern; removeOrphans when it is true.
// [ParsePolicy] reads it back. The zero value is an error.
func (p Policy) MarshalJSON() ([]byte, error) {
	form, err := p.form()
	if err != nil {
		return nil, err
	}
	return json.Marshal(form)
}

// marshalStored writes the policy as tables keep it. The first release matched a
// pattern with the whole name and stored no tagPatternSearch: a policy without it keeps
// that meaning (see parseStored). A process of the first release that still runs during
// an upgrade doesn't know tagPatternSearch and deletes nothing by such a policy.
func (p Policy) marshalStored() ([]byte, error) {
	form, err := p.form()
	if err != nil {
		return nil, err
	}
	form.TagPatternSearch = !p.pattern.IsZero()
	return json.Marshal(form)
}

func (p Policy) form() (policyJSON, error) {
	if p.method == "" {
		return policyJSON{}, errors.New("autoprune: the zero policy has no JSON form")
	}
	form := policyJSON{
		Method: p.method, OlderThan: p.age.String(), NumTags: p.number, TagPattern: p.pattern.String(), RemoveOrphans: p.orphans,
	}
	if !p.pattern.IsZero() {
		matches := !p.exclude
		form.TagPatternMatches = &matches
	}
	return form, nil
}

// UnmarshalJSON reads what [ParsePolicy] accepts.
func (p *Policy) UnmarshalJSON(data []byte) error {
	parsed, err := ParsePolicy(data)
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
