package ui

import (
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/policy"
)

// textField is an input of the editor, with its label.
type textField struct {
	Name, Label, Value string
	Hint, Example      string
	Number             bool
	Wrong              bool // the registry refused its value
}

// Field returns the input of a member.
func (f policyForm) Field(name string) textField {
	m := policy.MemberOf(name)
	return textField{
		Name: name, Label: m.Label(), Hint: m.Hint(), Example: m.Placeholder(), Number: m.Kind == policy.Whole,
		Value: f.Text[name], Wrong: f.Wrong == name,
	}
}

// Fields returns the inputs of members.
func (f policyForm) Fields(names ...string) []textField {
	list := make([]textField, 0, len(names))
	for _, name := range names {
		list = append(list, f.Field(name))
	}
	return list
}

// days are the days of a window.
var days = []option{
	{"mon", "Mon"}, {"tue", "Tue"}, {"wed", "Wed"}, {"thu", "Thu"}, {"fri", "Fri"}, {"sat", "Sat"}, {"sun", "Sun"},
}

// Days returns the days of a window, for the template.
func (f policyForm) Days() []option { return days }

// option is an entry of a select.
type option struct{ Value, Text string }

func hasOption(list []option, value string) bool {
	return slices.ContainsFunc(list, func(o option) bool { return o.Value == value })
}

// Methods returns the ways to select tags.
func (f policyForm) Methods() []option {
	return []option{
		{"creation_date", "were pushed long ago"}, {"last_pulled", "were last used long ago"}, {"number_of_tags", "are not among the newest"},
		{"max_bytes", "were least recently used and exceed a size"}, {"untagged", "no tags: only manifests without tags"},
	}
}

// Modes returns the modes.
func (f policyForm) Modes() []option {
	return []option{{"", "On: delete tags"}, {"observe", "Observe: delete nothing, show what it would"}, {"off", "Off"}}
}

// KeepKinds returns the kinds of keep rules.
func (f policyForm) KeepKinds() []option {
	return []option{
		{"", "–"}, {"newest", "the newest N"}, {"newest_images", "tags of the newest N images"}, {"newest_platform", "the newest N of each platform"}, {"usedWithin", "pushed or used within"}, {"tagPattern", "match a pattern"},
		{"releases", "every release"}, {"newest_patches", "newest N releases of each minor version"}, {"newest_prereleases", "newest N prereleases"},
	}
}

// wrongMember returns the member that a refusal of the registry is about, "" if it names none.
func wrongMember(err error) string {
	name, _, _ := strings.Cut(err.Error(), ":")
	if policy.MemberOf(name).Label() != "" {
		return name
	}
	return ""
}
