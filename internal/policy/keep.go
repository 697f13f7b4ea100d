package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	// MaxKeeps is how many keep rules a policy may have.
	MaxKeeps = 16
	// MaxNewestVersions is the largest number of versions that a keep rule may keep of each
	// of its groups.
	MaxNewestVersions = 1000
)

// Versions is which tags a keep rule keeps that reads the names of tags as versions.
type Versions string

// The kinds of [Versions].
const (
	Releases          Versions = "releases"           // every release
	NewestPatches     Versions = "newest_patches"     // the newest releases of each minor version
	NewestPrereleases Versions = "newest_prereleases" // the newest prereleases
)

// KeepKind is how a keep rule chooses the tags that it keeps.
type KeepKind int

// The kinds of keep rules.
const (
	KeepNewest KeepKind = iota + 1
	KeepUsed
	KeepPattern
	KeepVersions
)

// KeepRule is a keep rule of a policy: it says which of the tags that the policy considers no policy
// may delete. It has exactly one of Newest without Versions, UsedWithin, TagPattern and Versions.
type KeepRule struct {
	Newest      int            `json:"newest,omitempty" minimum:"1" maximum:"1000000000" doc:"Keep this many of the newest tags, or of the newest versions (1000 at most)" example:"10"`
	CountImages bool           `json:"countImages,omitempty" doc:"With newest: count images, so that tags of the same manifest count as one"`
	PerPlatform bool           `json:"perPlatform,omitempty" doc:"With newest: count for each platform. A tag of which not all images have a platform that is known is kept"`
	GroupBy     oci.TagPattern `json:"groupBy,omitzero" maxLength:"256" doc:"With newest: regular expression (RE2) with parentheses. What they capture in a tag's name is the tag's group, and newest counts in each group" example:"^(v[0-9]+)\\."`
	UsedWithin  Age            `json:"usedWithin,omitzero" doc:"Keep tags that were pushed or used within this age" example:"30d"`
	TagPattern  oci.TagPattern `json:"tagPattern,omitzero" maxLength:"256" doc:"Keep tags in whose names this regular expression (RE2) is found"`
	Versions    Versions       `json:"versions,omitempty" enum:"releases,newest_patches,newest_prereleases" doc:"Keep tags by the versions in their names: every release, the newest releases of each minor version, or the newest prereleases"`
}

// Kind returns how the rule chooses tags.
func (k KeepRule) Kind() KeepKind {
	switch {
	case k.UsedWithin != Age{}:
		return KeepUsed
	case !k.TagPattern.IsZero():
		return KeepPattern
	case k.Versions != "":
		return KeepVersions
	}
	return KeepNewest
}

// Counting says what the rule counts, if it has Newest.
func (k KeepRule) Counting() Counting {
	return Counting{GroupBy: k.GroupBy, CountImages: k.CountImages, PerPlatform: k.PerPlatform}
}

// KeepsMore returns whether the policy may keep tags from other policies that another one, which selects the
// same tags, doesn't keep. Ages of the same length are equal.
func (p *Policy) KeepsMore(than *Policy) bool {
	return !Policy{Keep: p.Keep}.Equal(Policy{Keep: than.Keep}) || p.Floor() > than.Floor()
}

// KeepAs lets the policy keep tags from other policies as another one does.
func (p *Policy) KeepAs(other *Policy) { p.Keep, p.NeverBelow = other.Keep, other.NeverBelow }

// MayKeep returns whether a stored policy that can't be read may keep tags from other policies. Even a
// member that this version doesn't know may be a newer version's way to keep tags.
func MayKeep(stored []byte) bool {
	without := policyFields
	without.fields = slices.DeleteFunc(slices.Clone(without.fields), func(name string) bool { return name == "neverBelow" || name == "keep" })
	_, err := readFields(stored, without)
	return err != nil
}

// canonicalKeep returns the rules with their ages in seconds.
func canonicalKeep(rules []KeepRule) []KeepRule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].UsedWithin = rules[i].UsedWithin.inSeconds()
	}
	return rules
}

// String describes the tags that the rule keeps, such as: the newest 10.
func (k KeepRule) String() string {
	switch k.Kind() {
	case KeepUsed:
		return "tags used within " + k.UsedWithin.String()
	case KeepPattern:
		return fmt.Sprintf("tags that match %s", Quoted(k.TagPattern))
	case KeepVersions:
		switch k.Versions {
		case NewestPatches:
			return fmt.Sprintf("the newest %d releases of each minor version", k.Newest)
		case NewestPrereleases:
			return fmt.Sprintf("the newest %d prereleases", k.Newest)
		case Releases:
		}
		return "every release"
	case KeepNewest:
	}
	return strings.TrimSpace(fmt.Sprintf("the newest %d %s", k.Newest, k.Counting()))
}

// Keeps returns whether the policy keeps tags from other policies.
func (p *Policy) Keeps() bool { return len(p.Keep) > 0 || p.Floor() > 0 }

// KeepsUsed returns whether a keep rule of the policy needs to know when tags were last
// used.
func (p *Policy) KeepsUsed() bool {
	return slices.ContainsFunc(p.Keep, func(k KeepRule) bool { return k.Kind() == KeepUsed })
}

// ByLastUse returns whether the policy chooses the tags that it deletes by their last use.
func (p *Policy) ByLastUse() bool { return p.Method == LastPulled || p.Method == MaxBytes }

// ReadsUses says whether the policy needs to know when tags were last used.
func (p *Policy) ReadsUses() bool { return p.ByLastUse() || p.KeepsUsed() }

// ReadsUse returns whether the policy needs to know when a tag was last used that was pushed
// at the given time, because its method is last_pulled or max_bytes, or because of a keep rule. It
// doesn't check whether the policy considers the tag.
func (p *Policy) ReadsUse(pushed, now time.Time) bool {
	old := func(age Age) bool { return pushed.Before(now.Add(-age.Duration())) }
	return p.Method == MaxBytes || p.Method == LastPulled && old(p.OlderThan) ||
		slices.ContainsFunc(p.Keep, func(k KeepRule) bool { return k.Kind() == KeepUsed && old(k.UsedWithin) })
}

// readKeeps reads the value of the member keep.
func readKeeps(raw json.RawMessage) ([]KeepRule, error) {
	if raw[0] != '[' {
		return nil, fieldErrorf("keep", "it must be an array of keep rules, not %s", typeName(raw))
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, malformed(err)
	}
	if len(list) > MaxKeeps {
		return nil, fieldErrorf("keep", "it has %d rules and at most %d are allowed", len(list), MaxKeeps)
	}
	var rules []KeepRule
	for i, one := range list {
		k, err := readKeep(one)
		if err != nil {
			return nil, within(fmt.Sprintf("keep[%d]", i), err)
		}
		rules = append(rules, k)
	}
	return rules, nil
}

// keepFields are the members of a keep rule, and keepKinds the four of which it has exactly one. The
// member newest may also accompany versions.
var (
	keepFields = object{of: "a keep rule", fields: namesOf(keepMembers)}
	keepKinds  = []string{"newest", "usedWithin", "tagPattern", "versions"}
)

func readKeep(raw json.RawMessage) (k KeepRule, err error) {
	fields, err := readFields(raw, keepFields)
	if err != nil {
		return k, err
	}
	given := slices.DeleteFunc(slices.Clone(keepKinds), func(name string) bool {
		return fields[name] == nil || name == "newest" && fields["versions"] != nil
	})
	switch {
	case len(given) == 0:
		return k, fieldErrorf("", "it says nothing; a keep rule has one of newest, usedWithin, tagPattern and versions")
	case len(given) > 1:
		return k, fieldErrorf(given[1], "%s is given, too; make them two rules, of which each keeps tags", given[0])
	}
	for _, name := range []string{"groupBy", "countImages", "perPlatform"} {
		if fields[name] != nil && given[0] != "newest" {
			return k, fieldErrorf(name, "it goes only with newest")
		}
	}
	if err := readMembers(&k, keepMembers, fields, keepKinds...); err != nil {
		return k, err
	}
	if err := checkGroupBy(k.GroupBy); err != nil {
		return k, err
	}
	return k, k.checkVersions(fields["newest"] != nil)
}

// checkVersions checks the number of a rule that keeps versions. Left out, it is one.
func (k *KeepRule) checkVersions(numbered bool) error {
	switch k.Versions {
	case "":
	case Releases:
		if numbered {
			return fieldErrorf("newest", "%s keeps every release, so it has no number", Releases)
		}
	case NewestPatches, NewestPrereleases:
		if !numbered {
			k.Newest = 1
		}
		if k.Newest > MaxNewestVersions {
			return fieldErrorf("newest", "%d is too large; at most %d is allowed", k.Newest, MaxNewestVersions)
		}
	}
	return nil
}
