package oci

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxTagPattern is the longest pattern of tags in characters, a surrounding
	// ^(?:…)$ not counted.
	MaxTagPattern = 256
	// maxProgram is how many instructions a pattern may compile to. Up to this
	// size Go's regexp matches with its backtracker, which visits each pair of
	// instruction and byte once: well under a millisecond for the longest tag.
	// Repetitions make a short pattern large, and a pattern is matched with each
	// tag of a namespace.
	maxProgram = 500

	wholeOpen, wholeClose = "^(?:", ")$"
)

// TagPattern selects tags by name: a regular expression in RE2's syntax, which takes
// linear time. It is searched for in the name, as Quay does; ^ and $ bind it to the
// beginning and the end. The zero value is no pattern and matches nothing; every other
// one came from [ParseTagPattern] or [ParseWholeTagPattern]. Patterns may be used by
// several goroutines.
type TagPattern struct {
	text string
	re   *regexp.Regexp
}

// ParseTagPattern compiles a pattern, without the space around it, which no tag has.
// The error says what to change.
func ParseTagPattern(text string) (TagPattern, error) {
	if !utf8.ValidString(text) {
		return TagPattern{}, errors.New("it isn't valid UTF-8")
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return TagPattern{}, errors.New("it is empty, which every tag matches; leave it out to select every tag")
	}
	if n := utf8.RuneCountInString(unwrap(text)); n > MaxTagPattern {
		return TagPattern{}, fmt.Errorf("it has %d characters and at most %d are allowed", n, MaxTagPattern)
	}
	for _, c := range text {
		if unicode.IsControl(c) {
			return TagPattern{}, fmt.Errorf("it has the control character %U, which no tag has", c)
		}
	}
	if err := checkSize(text); err != nil {
		return TagPattern{}, err
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return TagPattern{}, patternError(err)
	}
	return TagPattern{text: text, re: re}, nil
}

// unwrap returns the pattern without the ^(?:…)$ around it.
func unwrap(text string) string {
	if inner, ok := strings.CutPrefix(text, wholeOpen); ok {
		if inner, ok = strings.CutSuffix(inner, wholeClose); ok {
			return inner
		}
	}
	return text
}

// ParseWholeTagPattern compiles a pattern that the first release has stored, when a
// pattern had to match the whole name. The result selects the same tags, and its text
// is ^(?:…)$ with the pattern in it.
func ParseWholeTagPattern(text string) (TagPattern, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return TagPattern{}, patternError(err)
	}
	if strings.Contains(text, `\Q`) { // it would take the bracket in
		text = parsed.String()
	}
	return ParseTagPattern(wholeOpen + text + wholeClose)
}

// EveryTag returns a pattern that every tag matches and that is told as text, for a rule
// that protects tags and can't be read.
func EveryTag(text string) TagPattern { return TagPattern{text: text, re: everyTag} }

var everyTag = regexp.MustCompile("")

// WholeText returns a pattern that selects the same tags where it has to match the
// whole name, as in the first release: its processes may still run during an upgrade.
func (p TagPattern) WholeText() string {
	if p.re == nil {
		return ""
	}
	parsed, err := syntax.Parse(p.text, syntax.Perl)
	if err != nil { // it was parsed before
		return p.text
	}
	return `.*(?:` + parsed.String() + `).*`
}

func patternError(err error) error {
	return fmt.Errorf("it isn't a regular expression (RE2 syntax): %w", err)
}

// checkSize refuses an expression whose program is too large.
func checkSize(expression string) error {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return patternError(err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return patternError(err)
	}
	if n := len(program.Inst); n > maxProgram {
		return fmt.Errorf("it compiles to %d steps and at most %d are allowed; use fewer or smaller repetitions", n, maxProgram)
	}
	return nil
}

// Match tells whether the pattern is found in the tag's name.
func (p TagPattern) Match(tag string) bool { return p.re != nil && p.re.MatchString(tag) }

// String returns the pattern as it was written, without surrounding space, and "" for
// the zero value.
func (p TagPattern) String() string { return p.text }

// IsZero tells whether p is the zero value.
func (p TagPattern) IsZero() bool { return p.re == nil }
