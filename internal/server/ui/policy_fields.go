package ui

import (
	"slices"
	"strings"
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
	t := editorFields[name]
	t.Name, t.Value, t.Wrong = name, f.Text[name], f.Wrong == name
	return t
}

// Fields returns the inputs of members.
func (f policyForm) Fields(names ...string) []textField {
	list := make([]textField, 0, len(names))
	for _, name := range names {
		list = append(list, f.Field(name))
	}
	return list
}

// editorFields are the labels of the members that have a text input.
var editorFields = map[string]textField{
	"olderThan":         {Label: "Older than", Example: "90d", Hint: "A number and s, m, h, d, w or y."},
	"numTags":           {Label: "Newest tags that stay", Example: "100", Number: true, Hint: "In each repository."},
	"groupBy":           {Label: "Newest in each group by", Example: `^(.+)-[0-9a-f]{7,40}$`, Hint: "What the parentheses capture in the name, such as the branch. A tag in no group stays. Empty: no groups."},
	"maxBytes":          {Label: "May store at most", Example: "10 GiB", Hint: "In each repository: a number and kB, MB, GB, TB, KiB, MiB, GiB or TiB."},
	"tagPattern":        {Label: "Pattern", Example: "^pr-", Hint: "A regular expression (RE2), found anywhere in the name unless it has ^ and $. Empty: all tags."},
	"repositories":      {Label: "Only in repositories", Example: "acme/web/**", Hint: "* is any text without a slash, ** any text. Commas between them."},
	"mediaTypes":        {Label: "Media types", Example: "application/vnd.oci.image.*"},
	"artifactTypes":     {Label: "Artifact types", Example: "application/vnd.cncf.helm.*"},
	"platforms":         {Label: "Platforms", Example: "linux/arm64"},
	"largerThan":        {Label: "Larger than", Example: "1 GiB"},
	"smallerThan":       {Label: "Smaller than", Example: "100 MiB"},
	"grace":             {Label: "Grace period", Example: "7d", Hint: "How long it waits after each change, with a notice of what it would delete. 0s: not at all."},
	"maxDeleted":        {Label: "Ask above so many tags in a run", Example: "1000", Number: true},
	"maxDeletedPercent": {Label: "Ask above this percentage", Example: "20", Number: true, Hint: "Of the tags that it looks at."},
	"neverBelow":        {Label: "Always leave so many of the newest", Example: "5", Number: true, Hint: "In each repository, whatever policy selects them."},
	"requireReporter":   {Label: "Only while these report", Example: "prod-eu", Hint: "Reporters of what is deployed. While one of them isn't live, it deletes nothing. Commas between them."},
	"keepUntagged":      {Label: "Keep manifests without tags for", Example: "14d", Hint: "Empty: as long as garbage collection does."},
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
	if _, ok := editorFields[name]; ok {
		return name
	}
	return ""
}
