package autoprune

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// The JSON fields of a policy's keep rules.
const (
	fieldKeep     = "keep"
	fieldNewest   = "newest"
	fieldGroupBy  = "groupBy"
	fieldWithin   = "usedWithin"
	fieldVersions = "versions"
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

// keepKind is how a keep rule chooses the tags that it keeps.
type keepKind int

const (
	keepNewest keepKind = iota + 1
	keepUsed
	keepPattern
	keepVersions
)

// keepRule is a keep rule of a policy: it says which of the tags that the policy considers
// no policy may delete. parseKeeps makes keep rules.
type keepRule struct {
	kind     keepKind
	newest   int            // keepNewest; keepVersions, but not Releases
	counting                // keepNewest
	used     Age            // keepUsed
	pattern  oci.TagPattern // keepPattern
	versions Versions       // keepVersions
}

// KeepForm is a keep rule in the JSON of a policy. It has exactly one of Newest without
// Versions, UsedWithin, TagPattern and Versions.
type KeepForm struct {
	Newest      int      `json:"newest,omitempty" minimum:"1" maximum:"1000000000" doc:"Keep this many of the newest tags, or of the newest versions (1000 at most)" example:"10"`
	CountImages bool     `json:"countImages,omitempty" doc:"With newest: count images, so that tags of the same manifest count as one"`
	PerPlatform bool     `json:"perPlatform,omitempty" doc:"With newest: count for each platform. A tag of which not all images have a platform that is known is kept"`
	GroupBy     string   `json:"groupBy,omitempty" maxLength:"256" doc:"With newest: regular expression (RE2) with parentheses. What they capture in a tag's name is the tag's group, and newest counts in each group" example:"^(v[0-9]+)\\."`
	UsedWithin  string   `json:"usedWithin,omitempty" doc:"Keep tags that were pushed or used within this age" example:"30d"`
	TagPattern  string   `json:"tagPattern,omitempty" maxLength:"256" doc:"Keep tags in whose names this regular expression (RE2) is found"`
	Versions    Versions `json:"versions,omitempty" enum:"releases,newest_patches,newest_prereleases" doc:"Keep tags by the versions in their names: every release, the newest releases of each minor version, or the newest prereleases"`
}

// Keep returns the policy's keep rules in the form of its JSON.
func (p Policy) Keep() []KeepForm {
	var forms []KeepForm
	for _, k := range p.keep {
		forms = append(forms, k.form())
	}
	return forms
}

func (k keepRule) form() KeepForm {
	return KeepForm{
		Newest: k.newest, GroupBy: k.groupBy.String(), CountImages: k.images, PerPlatform: k.platforms, UsedWithin: k.used.String(), TagPattern: k.pattern.String(), Versions: k.versions,
	}
}

// equal returns whether both rules keep the same tags. Ages of the same length are equal.
func (k keepRule) equal(other keepRule) bool {
	a, b := k.form(), other.form()
	a.UsedWithin, b.UsedWithin = "", ""
	return a == b && k.used.Duration() == other.used.Duration()
}

// String describes the tags that the rule keeps, such as: the newest 10.
func (k KeepForm) String() string {
	switch {
	case k.UsedWithin != "":
		return "tags used within " + k.UsedWithin
	case k.TagPattern != "":
		return fmt.Sprintf("tags that match %s", quoted(k.TagPattern))
	case k.Versions == Releases:
		return "every release"
	case k.Versions == NewestPatches:
		return fmt.Sprintf("the newest %d releases of each minor version", k.Newest)
	case k.Versions == NewestPrereleases:
		return fmt.Sprintf("the newest %d prereleases", k.Newest)
	}
	return strings.TrimSpace(fmt.Sprintf("the newest %d %s", k.Newest, k.Counting()))
}

// Counting says what the rule counts, if it has Newest.
func (k KeepForm) Counting() CountingForm {
	return CountingForm{GroupBy: k.GroupBy, CountImages: k.CountImages, PerPlatform: k.PerPlatform}
}

// keepsUsed returns whether a keep rule of the policy needs to know when tags were last
// used.
func (p *Policy) keepsUsed() bool {
	return slices.ContainsFunc(p.keep, func(k keepRule) bool { return k.kind == keepUsed })
}

// byLastUse returns whether the policy chooses the tags that it deletes by their last use.
func (p *Policy) byLastUse() bool { return p.method == LastPulled || p.method == MaxBytes }

// readsUses says whether the policy needs to know when tags were last used.
func (p *Policy) readsUses() bool {
	return p.byLastUse() || p.keepsUsed()
}

// readsUse returns whether the policy needs to know when a tag was last used that was pushed
// at the given time, because its method is last_pulled or max_bytes, or because of a keep rule. It
// doesn't check whether the policy considers the tag.
func (p *Policy) readsUse(pushed, now time.Time) bool {
	old := func(age Age) bool { return pushed.Before(now.Add(-age.Duration())) }
	return p.method == MaxBytes || p.method == LastPulled && old(p.age) ||
		slices.ContainsFunc(p.keep, func(k keepRule) bool { return k.kind == keepUsed && old(k.used) })
}

// readKeeps reads the value of the field keep. An absent value and null are no rules.
func readKeeps(raw json.RawMessage) ([]keepRule, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] != '[' {
		return nil, fieldErrorf(fieldKeep, "it must be an array of keep rules, not %s", typeName(raw))
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, malformed(err)
	}
	if len(list) > MaxKeeps {
		return nil, fieldErrorf(fieldKeep, "it has %d rules and at most %d are allowed", len(list), MaxKeeps)
	}
	var rules []keepRule
	for i, one := range list {
		k, err := readKeep(one)
		if err != nil {
			return nil, within(fmt.Sprintf("%s[%d]", fieldKeep, i), err)
		}
		rules = append(rules, k)
	}
	return rules, nil
}

// within returns the error of a part of a policy, with the part's place before the field.
func within(place string, err error) error {
	inner, ok := errors.AsType[*FieldError](err)
	if !ok {
		return err
	}
	if inner.Field != "" {
		place += "." + inner.Field
	}
	return &FieldError{Field: place, Problem: inner.Problem}
}

// keepFields are the fields of a keep rule, and the four of which it has exactly one. The
// field newest may also accompany versions.
var (
	keepFields = members{of: "a keep rule", fields: []string{fieldNewest, fieldGroupBy, fieldImages, fieldPerPlatform, fieldWithin, fieldPattern, fieldVersions}}
	keepKinds  = []string{fieldNewest, fieldWithin, fieldPattern, fieldVersions}
)

func readKeep(raw json.RawMessage) (k keepRule, err error) {
	fields, err := readFields(raw, keepFields)
	if err != nil {
		return k, err
	}
	given := slices.DeleteFunc(slices.Clone(keepKinds), func(name string) bool {
		return fields[name] == nil || name == fieldNewest && fields[fieldVersions] != nil
	})
	switch {
	case len(given) == 0:
		return k, fieldErrorf("", "it says nothing; a keep rule has one of newest, usedWithin, tagPattern and versions")
	case len(given) > 1:
		return k, fieldErrorf(given[1], "%s is given, too; make them two rules, of which each keeps tags", given[0])
	}
	for _, name := range []string{fieldGroupBy, fieldImages, fieldPerPlatform} {
		if fields[name] != nil && given[0] != fieldNewest {
			return k, fieldErrorf(name, "it goes only with newest")
		}
	}
	switch given[0] {
	case fieldNewest:
		k.kind = keepNewest
		if k.newest, err = readWhole(fieldNewest, fields[fieldNewest], MaxNumTags); err == nil {
			k.counting, err = readCounting(fields, NumberOfTags)
		}
	case fieldWithin:
		k.kind = keepUsed
		k.used, err = readAgeOf(fieldWithin, fields[fieldWithin])
	case fieldPattern:
		k.kind = keepPattern
		k.pattern, err = readPattern(fieldPattern, fields[fieldPattern])
		if err == nil && k.pattern.IsZero() {
			err = fieldErrorf(fieldPattern, "it must be a string, not null")
		}
	case fieldVersions:
		k.kind = keepVersions
		k.versions, k.newest, err = readVersions(fields)
	}
	return k, err
}

func readGroupBy(raw json.RawMessage) (oci.TagPattern, error) {
	pattern, err := readPattern(fieldGroupBy, raw)
	if err == nil && !pattern.IsZero() && pattern.Groups() == 0 {
		return pattern, fieldErrorf(fieldGroupBy, `it needs parentheses around the part of the name that is the group, as in ^(v[0-9]+)\.`)
	}
	return pattern, err
}

func readVersions(fields map[string]json.RawMessage) (v Versions, newest int, err error) {
	text, err := readText(fieldVersions, fields[fieldVersions])
	if err != nil {
		return "", 0, err
	}
	raw := fields[fieldNewest]
	switch v = Versions(text); v {
	case Releases:
		if raw != nil {
			return "", 0, fieldErrorf(fieldNewest, "%s keeps every release, so it has no number", Releases)
		}
		return v, 0, nil
	case NewestPatches, NewestPrereleases:
		if raw == nil {
			return v, 1, nil
		}
		newest, err = readWhole(fieldNewest, raw, MaxNewestVersions)
		return v, newest, err
	}
	return "", 0, fieldErrorf(fieldVersions, "%.40q is unknown; it is one of %s, %s and %s", text, Releases, NewestPatches, NewestPrereleases)
}
