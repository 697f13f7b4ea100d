// Package policy says what a retention policy is: the members of its JSON with their meaning, how they
// are read, and the words that describe it. It knows no tags and no database: package autoprune
// applies policies.
//
// A member is written once, as a field of [Policy] or of a struct within it. Its name, its
// documentation and what may be written come from the field's type and tags: the API's documentation,
// the flags of commands, the fields of the web page and the checks of [Parse] use them.
package policy

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Takes returns the member that says how old, how many or how large for the method: olderThan, numTags or
// maxBytes; "" for an unknown method.
func (m Method) Takes() string {
	switch m {
	case NumberOfTags:
		return "numTags"
	case MaxBytes:
		return "maxBytes"
	case CreationDate, LastPulled, UntaggedManifests:
		return "olderThan"
	}
	return ""
}

// Counts returns whether policies of the method count the tags that the other policies leave.
func (m Method) Counts() bool { return m == NumberOfTags || m == MaxBytes }

// MaxNumTags is the largest number of a [NumberOfTags] policy.
const MaxNumTags = 1_000_000_000

// Policy is a rule that selects tags of a repository to delete. The zero value selects
// nothing; a policy from [Parse] is valid. Compare policies with [Policy.Equal].
// Several goroutines may use a Policy.
type Policy struct {
	Method    Method `json:"method" enum:"creation_date,number_of_tags,last_pulled,max_bytes,untagged" doc:"How tags are selected" flag:"method" arg:"METHOD" usage:"METHOD: creation_date, number_of_tags, last_pulled, max_bytes or untagged (default: what the other flags ask for)"`
	OlderThan Age    `json:"olderThan,omitzero" doc:"For creation_date, last_pulled and untagged: digits and one of s, m, h, d, w, y" example:"2w" flag:"older-than" arg:"AGE" usage:"tags pushed longer than AGE ago, such as 2w; with last_pulled, not used for so long" label:"Older than" hint:"A number and s, m, h, d, w or y." placeholder:"90d"`
	NumTags   int    `json:"numTags,omitempty" minimum:"1" doc:"For number_of_tags: how many of the newest tags stay" example:"100" flag:"num-tags" arg:"N" usage:"all tags but the newest N" label:"Newest tags that stay" hint:"In each repository."`
	MaxBytes  Size   `json:"maxBytes,omitzero" doc:"For max_bytes: how much the most recently used tags of a repository, which stay, may store" example:"50GiB" flag:"max-bytes" arg:"SIZE" usage:"the least recently used tags, until what remains of each repository stores at most this SIZE, such as 50GiB" label:"May store at most" hint:"In each repository: a number and kB, MB, GB, TB, KiB, MiB, GiB or TiB." placeholder:"10 GiB"`
	Counting
	TagPattern oci.TagPattern `json:"tagPattern,omitzero" maxLength:"256" doc:"Regular expression (RE2) that is searched for in a tag's name: anchor it with ^ and $. Absent: all tags" flag:"pattern" arg:"REGEXP" usage:"only tags in whose names this REGEXP is found; anchor it, as in '^v[0-9]+$'" label:"Pattern" hint:"A regular expression (RE2), found anywhere in the name unless it has ^ and $. Empty: all tags." placeholder:"^pr-"`
	// TagPatternMatches isn't nil if there is a pattern.
	TagPatternMatches *bool `json:"tagPatternMatches,omitempty" doc:"False: select the tags that don't match the pattern. Default true"`
	// RemoveOrphans says whether the policy deletes orphans: attached tags, such as
	// signatures, whose image isn't in their repository. A policy of any method may delete
	// orphans: those that are at least a day old and that its pattern selects. A policy that
	// doesn't remove orphans judges them like other tags.
	RemoveOrphans bool `json:"removeOrphans,omitempty" doc:"True: also delete attached tags, such as signatures, that the pattern selects, that are a day old, and whose image isn't in the repository. Default false: such tags are treated as any other" flag:"remove-orphans" usage:"also attached tags, such as signatures, that are a day old and whose image isn't in their repository"`
	Selectors
	Safeguards
	Keep []KeepRule `json:"keep,omitempty" maxItems:"16" doc:"Keep rules: the tags that stay, whatever policies of the repository select them. Only tags that tagPattern selects"`
}

// Value returns the policy's age, number or size, which Quay's API calls its value: an int for a
// [NumberOfTags] policy, the age or size as text for other methods, nil for the zero value.
func (p Policy) Value() any {
	switch p.Method.Takes() {
	case "numTags":
		return p.NumTags
	case "maxBytes":
		return p.MaxBytes.String()
	case "olderThan":
		return p.OlderThan.String()
	}
	return nil
}

// Excludes returns whether the pattern names the tags that the policy doesn't look at.
func (p *Policy) Excludes() bool { return p.TagPatternMatches != nil && !*p.TagPatternMatches }

// Considers returns whether the policy's pattern selects the tag's name. It checks neither
// the policy's other selectors nor whether the tag is attached to an image. The zero pattern
// selects every tag.
func (p *Policy) Considers(tag string) bool {
	return p.TagPattern.IsZero() || p.TagPattern.Match(tag) != p.Excludes()
}

// Equal returns whether both policies have the same members, with ages of the same length (2w equals
// 14d).
func (p Policy) Equal(other Policy) bool { return p.canonical() == other.canonical() }

// canonical returns a text that equal policies have in common.
func (p Policy) canonical() string {
	for _, age := range []*Age{&p.OlderThan, &p.Grace, &p.KeepUntagged} {
		*age = age.inSeconds()
	}
	p.Keep = canonicalKeep(p.Keep)
	text, err := json.Marshal(members(p))
	if err != nil {
		panic(fmt.Sprintf("policy: the members of a policy can't be written: %v", err)) // they are texts, numbers, and lists of these
	}
	return string(text)
}

// SameRule returns whether both policies select the same tags, whatever keeps some of them or makes
// the policy wait: the method, its value, the pattern, the removal of orphans and the selectors.
func (p Policy) SameRule(other Policy) bool {
	p.Safeguards, other.Safeguards, p.Keep, other.Keep = Safeguards{}, Safeguards{}, nil, nil
	return p.Equal(other)
}

// String describes the policy for people, such as
// creation_date olderThan 2w, tags that match "pr-.*".
func (p Policy) String() string {
	if p.Method == "" {
		return "no policy"
	}
	text := strings.TrimSpace(fmt.Sprintf("%s %s %v %s", p.Method, p.Method.Takes(), p.Value(), p.Counting))
	if p.RemoveOrphans {
		text += ", removeOrphans"
	}
	switch {
	case p.TagPattern.IsZero():
	case p.Excludes():
		text = fmt.Sprintf("%s, tags that don't match %s", text, Quoted(p.TagPattern))
	default:
		text = fmt.Sprintf("%s, tags that match %s", text, Quoted(p.TagPattern))
	}
	if where := p.Selectors.String(); where != "" {
		text += ", " + where
	}
	if guard := p.Safeguards.String(); guard != "" {
		text += ", " + guard
	}
	for i, k := range p.Keep {
		text += []string{", but keep ", ", "}[min(i, 1)] + k.String()
	}
	return text
}

// members is a policy without its methods, for encoding/json.
type members Policy

// MarshalJSON writes the policy in the one form that the API returns: with olderThan, numTags
// or maxBytes, never value; with tagPatternMatches if there is a tagPattern; and otherwise with the
// members that say something. [Parse] can read the result. The zero value is an error.
func (p Policy) MarshalJSON() ([]byte, error) {
	if p.Method == "" {
		return nil, errors.New("policy: the zero policy has no JSON form")
	}
	return json.Marshal(members(p))
}

// UnmarshalJSON reads what [Parse] accepts.
func (p *Policy) UnmarshalJSON(data []byte) error {
	parsed, err := Parse(data)
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
