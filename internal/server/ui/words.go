package ui

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// phrase is a part of a sentence: text, or the digest of a manifest.
type phrase struct{ Text, Digest, Link string }

var digestForm = regexp.MustCompile(`\b(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})\b`)

// phrases splits a sentence where it names manifests of a repository. Those that are missing get
// no link, and neither do others if the repository is "".
func phrases(repository, sentence string, missing []string) (list []phrase) {
	at := 0
	for _, found := range digestForm.FindAllStringIndex(sentence, -1) {
		digest := sentence[found[0]:found[1]]
		p := phrase{Digest: digest}
		if repository != "" && !slices.Contains(missing, digest) {
			p.Link = link(manifestPath, repository, digest)
		}
		list = append(list, phrase{Text: sentence[at:found[0]]}, p)
		at = found[1]
	}
	return append(list, phrase{Text: sentence[at:]})
}

// textsOf returns digests as text.
func textsOf(digests []oci.Digest) []string {
	list := make([]string, len(digests))
	for i, d := range digests {
		list[i] = d.String()
	}
	return list
}

// policyWords says in sentences what a policy does.
type policyWords struct {
	Does   string   // what it deletes
	Only   []string // the tags at which it looks
	Keeps  []string // its keep rules
	Limits []string // when and how much it deletes
}

func wordsOf(v api.PolicyView) policyWords {
	w := policyWords{Does: "Deletes " + selectionWords(v.Method, v.Value)}
	if v.Method == string(policy.UntaggedManifests) {
		w.Does = "Deletes no tags; manifests without tags stay for " + format.Age(fmt.Sprint(v.Value))
	}
	if v.Method == string(policy.NumberOfTags) {
		w.Does = "Deletes " + countedWords(v)
	}
	if v.TagPattern != nil {
		verb := "match"
		if !v.TagPatternMatches {
			verb = "don't match"
		}
		w.Only = append(w.Only, fmt.Sprintf("whose names %s %s", verb, format.Clip(256, *v.TagPattern)))
	}
	if text := v.Selectors.String(); text != "" {
		w.Only = append(w.Only, format.Clip(1000, text))
	}
	for _, k := range v.Keep {
		w.Keeps = append(w.Keeps, format.Clip(600, keepWords(k)))
	}
	if v.RemoveOrphans {
		w.Limits = append(w.Limits, "also deletes signatures and the like whose image is gone")
	}
	for i, win := range v.Windows {
		w.Limits = append(w.Limits, []string{"only ", "or "}[min(i, 1)]+format.Clip(200, win.String()))
	}
	if v.Grace.Duration() > 0 {
		w.Limits = append(w.Limits, "waits "+format.Age(v.Grace.String())+" after each change")
	}
	if v.MaxDeleted > 0 {
		w.Limits = append(w.Limits, "asks before it deletes more than "+format.Plural(v.MaxDeleted, "tag", "tags")+" in a run")
	}
	if v.MaxDeletedPercent > 0 {
		w.Limits = append(w.Limits, fmt.Sprintf("asks before it deletes more than %d%% of its tags in a run", v.MaxDeletedPercent))
	}
	if least := v.Floor(); least > 0 {
		w.Limits = append(w.Limits, "leaves each repository at least its "+format.Plural(least, "newest tag", "newest tags"))
	}
	if len(v.RequireReporter) > 0 {
		w.Limits = append(w.Limits, "only while these report what is deployed: "+format.Clip(400, strings.Join(v.RequireReporter, ", ")))
	}
	if age := v.KeepUntagged.String(); age != "" {
		w.Limits = append(w.Limits, "keeps manifests without tags for "+format.Age(age))
	}
	return w
}

// countedWords says what a policy by number deletes.
func countedWords(v api.PolicyView) string {
	text := "all but the newest " + format.Plural(v.Value, "tag", "tags")
	if v.CountImages {
		text = "all but the newest " + format.Plural(v.Value, "image", "images")
	}
	if group := v.GroupBy.String(); group != "" {
		text += " of each group by " + format.Clip(256, group)
	}
	if v.PerPlatform {
		text += " of each platform"
	}
	return text + " of a repository"
}

func selectionWords(method string, value any) string {
	switch policy.Method(method) {
	case policy.NumberOfTags: // see countedWords
	case policy.CreationDate:
		return "tags that were pushed more than " + format.Age(fmt.Sprint(value)) + " ago"
	case policy.UntaggedManifests:
		return "no tags"
	case policy.MaxBytes:
		return "the least recently used tags of a repository that stores more than " + fmt.Sprint(value)
	case policy.LastPulled:
		return "tags that were last used more than " + format.Age(fmt.Sprint(value)) + " ago, or never"
	}
	return "nothing: this version can't read it"
}

// keepWords says which tags a keep rule keeps.
func keepWords(k policy.KeepRule) string {
	switch kind := k.Kind(); {
	case kind == policy.KeepUsed:
		return "tags pushed or used in the last " + format.Age(k.UsedWithin.String())
	case kind == policy.KeepPattern:
		return "tags that match " + k.TagPattern.String()
	case k.Versions == policy.NewestPatches && k.Newest <= 1:
		return "the newest release of each minor version"
	case k.Versions == policy.NewestPrereleases && k.Newest <= 1:
		return "the newest prerelease"
	case kind == policy.KeepNewest:
		return strings.TrimSpace("the newest " + format.Number(k.Newest) + " " + k.Counting().String())
	}
	return k.String()
}

// textField is an input of the editor, with its label.
type textField struct {
	Name, Label, Value string
	Hint, Example      string
	Number             bool
	Wrong              bool   // the registry refused its value
	Why                string // why it did
}

// Field returns the input of a member.
func (f policyForm) Field(name string) textField {
	m := policy.MemberOf(name)
	return textField{
		Name: name, Label: m.Label(), Hint: m.Hint(), Example: m.Placeholder(), Number: m.Kind == policy.Whole,
		Value: f.Text[name], Wrong: f.Wrong == name, Why: f.Why,
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
