package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// WarningCode is a short word for what a policy surely wasn't meant to do. Codes are stored with
// policies whose warnings somebody has confirmed, so a code must never change its meaning.
type WarningCode string

// The codes of warnings.
const (
	ShortAge        WarningCode = "short_age"         // an age below an hour
	ShellPattern    WarningCode = "shell_pattern"     // pr-*, which is found in prod
	Unanchored      WarningCode = "unanchored"        // a pattern that is found within names
	EveryTag        WarningCode = "every_tag"         // a pattern that is found in every name
	NoTag           WarningCode = "no_tag"            // tagPatternMatches false, and the pattern is found in every name
	LooseDot        WarningCode = "loose_dot"         // a dot between digits that stands for any character
	SelectsLatest   WarningCode = "selects_latest"    // tags with the name latest
	SelectsReleases WarningCode = "selects_releases"  // tags whose names are releases
	SelectsMost     WarningCode = "selects_most"      // more than half of all tags
	KeepsNothing    WarningCode = "keeps_nothing"     // a keep rule that keeps no tag
	NoRepository    WarningCode = "no_repository"     // a pattern of repositories that matches none
	Reaches         WarningCode = "reaches"           // a default policy: the namespaces in which it applies
	Uncovers        WarningCode = "uncovers"          // tags that would be deleted without the policy, or its keep rules
	UnknownReporter WarningCode = "unknown_reporter"  // a reporter that has never reported in the namespace
	LastUseUnproved WarningCode = "last_use_unproved" // a choice by last use where no reporter lives
	DropsReporter   WarningCode = "drops_reporter"    // reporters that the policy required until now
	DropsSafeguard  WarningCode = "drops_safeguard"   // a cap, or windows, that the policy had until now
	NotAllJudged    WarningCode = "not_all_judged"    // there was no time to look at all tags
)

// MaxExamples is how many examples a warning has.
const MaxExamples = 5

// Warning says what a policy surely wasn't meant to do.
type Warning struct {
	Code     WarningCode `json:"code" doc:"What it is about" example:"selects_latest"`
	Text     string      `json:"text" doc:"The same as a sentence, without a full stop"`
	Number   int64       `json:"number,omitempty" doc:"How many tags, namespaces or reporters it is about"`
	Examples []string    `json:"examples,omitempty" doc:"The first of them: tags as repository:tag, or names of namespaces or reporters"`

	// Pattern is that of Unanchored, as Typed returns it.
	Pattern oci.TagPattern `json:"-"`
}

// Sentence returns the warning's text with its examples.
func (w Warning) Sentence() string {
	if len(w.Examples) == 0 {
		return w.Text
	}
	text := w.Text + ": " + strings.Join(w.Examples, ", ")
	if w.Number > int64(len(w.Examples)) {
		text += ", …"
	}
	return text
}

// Sentences returns the warnings as texts.
func Sentences(list []Warning) []string {
	texts := make([]string, len(list))
	for i, w := range list {
		texts[i] = w.Sentence()
	}
	return texts
}

// Codes returns the codes of warnings, each once.
func Codes(list []Warning) []WarningCode {
	var codes []WarningCode
	for _, w := range list {
		if !slices.Contains(codes, w.Code) {
			codes = append(codes, w.Code)
		}
	}
	return codes
}

// Typed returns the warnings that the policy alone tells, whatever tags there are. Package autoprune
// judges it by the tags that there are.
func (p Policy) Typed() (list []Warning) {
	short := func(what string, age Age) {
		if text := age.Short(); text != "" {
			list = append(list, Warning{Code: ShortAge, Text: what + text})
		}
	}
	short("", p.OlderThan)
	for _, k := range p.Keep {
		short("a keep rule's usedWithin ", k.UsedWithin)
	}
	for _, c := range p.countings() {
		if text := c.GroupBy.Unanchored(); text != "" {
			list = append(list, Warning{Code: Unanchored, Text: "groupBy " + text, Pattern: c.GroupBy})
		}
	}
	if p.TagPattern.IsZero() {
		return list
	}
	switch {
	case p.Excludes() && p.TagPattern.EveryName():
		return append(list, Warning{Code: NoTag, Text: Quoted(p.TagPattern) + " is found in every name, so the policy selects no tag"})
	case p.Excludes(): // what the pattern is found in besides what was meant stays
		return list
	}
	for _, text := range p.TagPattern.Warnings() {
		code := Unanchored
		switch {
		case p.TagPattern.EveryName() && strings.Contains(text, "every name"):
			code = EveryTag
		case strings.Contains(text, "dot between digits"):
			code = LooseDot
		}
		list = append(list, Warning{Code: code, Text: text, Pattern: p.TagPattern})
	}
	return list
}

// Dropped returns the warnings about safeguards that the policy lacks and that the one had which it
// replaces: reporters, of which the `silent` ones aren't live, a cap and windows.
func (p Policy) Dropped(old Policy, silent []string) (list []Warning) {
	var names, live []string
	for _, name := range p.DroppedReporters(old) {
		if slices.Contains(silent, name) {
			names = append(names, name)
		} else {
			live = append(live, name)
		}
	}
	if text := whichSilent(len(names), len(live)); len(names)+len(live) > 0 {
		names = append(names, live...)
		list = append(list, Warning{
			Code: DropsReporter, Number: int64(len(names)), Examples: names[:min(len(names), MaxExamples)],
			Text: "it doesn't require " + Number(int64(len(names)), "reporter") + " any more" + text,
		})
	}
	if old.MaxDeleted+old.MaxDeletedPercent > 0 && p.MaxDeleted+p.MaxDeletedPercent == 0 {
		list = append(list, Warning{Code: DropsSafeguard, Text: "it has no cap any more on how many tags a run deletes by it"})
	}
	if len(old.Windows) > 0 && len(p.Windows) == 0 {
		list = append(list, Warning{Code: DropsSafeguard, Text: "it has no windows any more, so it deletes at any time"})
	}
	return list
}

// DroppedReporters returns the reporters that the old policy requires and this one doesn't.
func (p Policy) DroppedReporters(old Policy) []string {
	return slices.DeleteFunc(slices.Clone(old.RequireReporter), func(name string) bool { return slices.Contains(p.RequireReporter, name) })
}

// whichSilent says which of some reporters aren't live, if the silent ones are named first.
func whichSilent(silent, live int) string {
	switch {
	case silent == 0:
		return ""
	case live == 0 && silent == 1:
		return ", which isn't live"
	case live == 0:
		return ", none of which is live"
	case silent == 1:
		return ", the first of which isn't live"
	}
	return fmt.Sprintf(", the first %d of which aren't live", silent)
}

// Warnings returns the texts of the warnings that the policy alone tells.
func (p Policy) Warnings() []string {
	var texts []string
	for _, w := range p.Typed() {
		texts = append(texts, w.Text)
	}
	return texts
}

// Short says how long an age below an hour is, without a full stop; "" for other ages.
func (a Age) Short() string {
	if a.Duration() <= 0 || a.Duration() >= time.Hour {
		return ""
	}
	return a.String() + " is " + inWords(a)
}

// inWords writes a short age with the name of its unit, since an m is taken for months.
func inWords(age Age) string {
	d := age.Duration()
	if d%time.Minute != 0 {
		return Number(int64(d/time.Second), "second")
	}
	if d == time.Minute {
		return "a minute, and not a month"
	}
	return fmt.Sprintf("%d minutes, and not months: write %dd for those", int64(d/time.Minute), 30*int64(d/time.Minute))
}
