package autoprune

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
	NotAllJudged    WarningCode = "not_all_judged"    // there was no time to look at all tags
)

// maxExamples is how many examples a warning has.
const maxExamples = 5

// Warning says what a policy surely wasn't meant to do.
type Warning struct {
	Code     WarningCode `json:"code" doc:"What it is about" example:"selects_latest"`
	Text     string      `json:"text" doc:"The same as a sentence, without a full stop"`
	Number   int64       `json:"number,omitempty" doc:"How many tags, or for reaches namespaces, it is about"`
	Examples []string    `json:"examples,omitempty" doc:"The first of them: tags as repository:tag, or names of namespaces"`

	pattern oci.TagPattern // of Unanchored, as typed returns it
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

// Everything, among the confirmed codes of a policy, says that nobody asks for confirmations of
// it: it was saved by a client that knows none, such as one of Quay's.
const Everything WarningCode = "*"

// Unconfirmed returns those of the warnings whose codes aren't among the confirmed ones.
func Unconfirmed(list []Warning, confirmed []WarningCode) (left []Warning) {
	if slices.Contains(confirmed, Everything) {
		return nil
	}
	for _, w := range list {
		if !slices.Contains(confirmed, w.Code) {
			left = append(left, w)
		}
	}
	return left
}

// typed returns the warnings that the policy alone tells, whatever tags there are.
func (p Policy) typed() (list []Warning) {
	short := func(what string, age Age) {
		if age.Duration() > 0 && age.Duration() < time.Hour {
			list = append(list, Warning{Code: ShortAge, Text: what + age.String() + " is " + inWords(age)})
		}
	}
	short("", p.age)
	for _, k := range p.keep {
		short("a keep rule's usedWithin "+"", k.used)
	}
	for _, c := range p.countings() {
		if text := c.groupBy.Unanchored(); text != "" {
			list = append(list, Warning{Code: Unanchored, Text: fieldGroupBy + " " + text, pattern: c.groupBy})
		}
	}
	if p.pattern.IsZero() {
		return list
	}
	switch {
	case p.exclude && p.pattern.EveryName():
		return append(list, Warning{Code: NoTag, Text: quoted(p.pattern) + " is found in every name, so the policy selects no tag"})
	case p.exclude: // what the pattern is found in besides what was meant stays
		return list
	}
	for _, text := range p.pattern.Warnings() {
		code := Unanchored
		switch {
		case p.pattern.EveryName() && strings.Contains(text, "every name"):
			code = EveryTag
		case strings.Contains(text, "dot between digits"):
			code = LooseDot
		}
		list = append(list, Warning{Code: code, Text: text, pattern: p.pattern})
	}
	return list
}

// inWords writes a short age with the name of its unit, since an m is taken for months.
func inWords(age Age) string {
	d := age.Duration()
	if d%time.Minute != 0 {
		return count(int64(d/time.Second), "second")
	}
	if d == time.Minute {
		return "a minute, and not a month"
	}
	return fmt.Sprintf("%d minutes, and not months: write %dd for those", int64(d/time.Minute), 30*int64(d/time.Minute))
}

// Consent is what a client that saves or deletes a policy says to warnings.
type Consent struct {
	Warnings []Warning // that there are, for the audit log
	// Confirmed are the codes that were confirmed. Nil: the client asks nobody, and Everything is.
	Confirmed []WarningCode
}

// codes returns the codes as a policy stores them.
func (c Consent) codes() []WarningCode {
	if c.Confirmed == nil {
		return []WarningCode{Everything}
	}
	return c.Confirmed
}

// replaces returns the codes that a policy stores when it is saved again; nil: those that it has. They
// stay if the policy is the same and nobody was asked.
func (c Consent) replaces(same bool) []WarningCode {
	if same && c.Confirmed == nil {
		return nil
	}
	return c.codes()
}

// detail adds the warnings to the detail of an entry of the audit log.
func (c Consent) detail(detail map[string]any) map[string]any {
	if len(c.Warnings) > 0 {
		detail["warnings"] = c.Warnings
	}
	return detail
}
