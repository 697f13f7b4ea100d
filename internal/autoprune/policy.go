package autoprune

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Method is how a policy selects tags.
type Method string

// The methods. CreationDate and NumberOfTags are Quay's.
const (
	// CreationDate selects tags whose last push is longer ago than an age.
	CreationDate Method = "creation_date"
	// NumberOfTags selects all tags but a number of the newest.
	NumberOfTags Method = "number_of_tags"
	// LastPulled selects tags whose last use and last push are both longer ago than an age.
	LastPulled Method = "last_pulled"
	// MaxBytes selects all tags but the most recently used that fit into a number of bytes.
	MaxBytes Method = "max_bytes"
	// UntaggedManifests selects no tags. It says how long manifests stay that nothing references.
	UntaggedManifests Method = "untagged"
)

// counts returns whether policies of the method count the tags that the other policies leave.
func (m Method) counts() bool { return m == NumberOfTags || m == MaxBytes }

// MaxNumTags is the largest number of a [NumberOfTags] policy.
const MaxNumTags = 1_000_000_000

// Policy is a rule that selects tags of a repository to delete. The zero value selects
// nothing; a policy from [ParsePolicy] is valid. Compare policies with [Policy.Equal].
// Several goroutines may use a Policy.
type Policy struct {
	method  Method
	age     Age      // CreationDate, LastPulled, UntaggedManifests
	number  int      // NumberOfTags
	count   counting // NumberOfTags
	bytes   int64    // MaxBytes
	pattern oci.TagPattern
	exclude bool // the pattern names the tags that aren't selected
	orphans bool // orphans are deleted, see RemovesOrphans
	where   selectors
	guard   safeguards
	keep    []keepRule
	// bound restricts a policy that frees bytes (see free.go); nil: no restriction. No text has it.
	bound *freeBound
}

// Method returns how the policy selects, "" for the zero value.
func (p Policy) Method() Method { return p.method }

// Value returns the policy's age, number or size, which Quay's API calls its value: an int for a
// [NumberOfTags] policy, the age or size as text for other methods, nil for the zero value.
func (p Policy) Value() any {
	switch p.method {
	case NumberOfTags:
		return p.number
	case CreationDate, LastPulled, UntaggedManifests:
		return p.age.String()
	case MaxBytes:
		return formatSize(p.bytes)
	}
	return nil
}

// Pattern returns the policy's pattern. `matches` says whether the policy selects from the
// tags that match the pattern (true) or from those that don't (false). The zero pattern
// matches every tag.
func (p Policy) Pattern() (pattern oci.TagPattern, matches bool) { return p.pattern, !p.exclude }

// RemovesOrphans returns whether the policy deletes orphans: attached tags, such as
// signatures, whose image isn't in their repository. A policy of any method may delete
// orphans: those that are at least a day old and that its pattern selects. A policy that
// doesn't remove orphans judges them like other tags.
func (p Policy) RemovesOrphans() bool { return p.orphans }

// Warnings returns texts that say how the policy may select other tags than its author intends, as
// far as the policy alone tells. [Pruner.Judge] judges it by the tags that there are.
func (p Policy) Warnings() []string {
	var texts []string
	for _, w := range p.typed() {
		texts = append(texts, w.Text)
	}
	return texts
}

// Considers returns whether the policy's pattern selects the tag's name. It checks neither
// the policy's other selectors nor whether the tag is attached to an image.
func (p Policy) Considers(tag string) bool {
	return p.pattern.IsZero() || p.pattern.Match(tag) != p.exclude
}

// Equal returns whether both policies have the same method, pattern, number, bytes, removal of
// orphans, selectors, safeguards and keep rules, and ages of the same length (2w equals 14d).
func (p Policy) Equal(other Policy) bool {
	return p.method == other.method &&
		p.age.Duration() == other.age.Duration() &&
		p.number == other.number &&
		p.count.form() == other.count.form() &&
		p.bytes == other.bytes &&
		p.pattern.String() == other.pattern.String() &&
		p.exclude == other.exclude &&
		p.orphans == other.orphans &&
		p.where.equal(other.where) &&
		p.guard.equal(other.guard) &&
		slices.EqualFunc(p.keep, other.keep, keepRule.equal)
}

// sameRule returns whether both policies select the same tags, whatever keeps some of them or makes
// the policy wait: the method, its value, the pattern, the removal of orphans and the selectors.
func (p Policy) sameRule(other Policy) bool {
	p.guard, other.guard, p.keep, other.keep = safeguards{}, safeguards{}, nil, nil
	return p.Equal(other)
}

// String describes the policy for people, such as
// creation_date olderThan 2w, tags that match "pr-.*".
func (p Policy) String() string {
	var text string
	switch p.method {
	case NumberOfTags:
		text = strings.TrimSpace(fmt.Sprintf("%s numTags %d %s", p.method, p.number, p.count.form()))
	case CreationDate, LastPulled, UntaggedManifests:
		text = fmt.Sprintf("%s olderThan %s", p.method, p.age)
	case MaxBytes:
		text = fmt.Sprintf("%s maxBytes %s", p.method, formatSize(p.bytes))
	default:
		return "no policy"
	}
	if p.orphans {
		text += ", removeOrphans"
	}
	switch {
	case p.pattern.IsZero():
	case p.exclude:
		text = fmt.Sprintf("%s, tags that don't match %s", text, quoted(p.pattern))
	default:
		text = fmt.Sprintf("%s, tags that match %s", text, quoted(p.pattern))
	}
	if where := p.Selectors().String(); where != "" {
		text += ", " + where
	}
	if guard := p.Safeguards().String(); guard != "" {
		text += ", " + guard
	}
	for i, k := range p.keep {
		text += []string{", but keep ", ", "}[min(i, 1)] + k.form().String()
	}
	return text
}

// policyJSON is the JSON form of a policy, in the API and in the database.
type policyJSON struct {
	Method    Method `json:"method"`
	OlderThan string `json:"olderThan,omitempty"`
	NumTags   int    `json:"numTags,omitempty"`
	MaxBytes  string `json:"maxBytes,omitempty"`
	CountingForm
	TagPattern        string `json:"tagPattern,omitempty"`
	TagPatternMatches *bool  `json:"tagPatternMatches,omitempty"`
	RemoveOrphans     bool   `json:"removeOrphans,omitempty"`
	SelectorForm
	SafeguardForm
	Keep []KeepForm `json:"keep,omitempty"`
}

// MarshalJSON writes the policy in the one form that the API returns: with olderThan, numTags
// or maxBytes, never value; with tagPatternMatches if there is a tagPattern; with removeOrphans if
// it is true; with the selectors, safeguards and keep if there are any. [ParsePolicy] can read
// the result. The zero value is an error.
func (p Policy) MarshalJSON() ([]byte, error) {
	form, err := p.form()
	if err != nil {
		return nil, err
	}
	return json.Marshal(form)
}

func (p Policy) form() (policyJSON, error) {
	if p.method == "" {
		return policyJSON{}, errors.New("autoprune: the zero policy has no JSON form")
	}
	form := policyJSON{
		Method: p.method, OlderThan: p.age.String(), NumTags: p.number, MaxBytes: formatSize(p.bytes), CountingForm: p.Counting(), TagPattern: p.pattern.String(), RemoveOrphans: p.orphans,
		SelectorForm: p.Selectors(), SafeguardForm: p.Safeguards(), Keep: p.Keep(),
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
