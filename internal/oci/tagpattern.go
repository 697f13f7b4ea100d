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
	// MaxTagPattern limits the length of tag patterns, in characters, not counting a
	// surrounding ^(?:…)$.
	MaxTagPattern = 256
	// maxProgram limits how many instructions a pattern may compile to. Up to this size
	// Go's regexp uses its backtracker, which visits each pair of instruction and byte
	// once: well under a millisecond for the longest tag. The limit is necessary
	// because repetitions can make a short pattern large, and a pattern is matched
	// against every tag of a namespace.
	maxProgram = 500

	wholeOpen, wholeClose = "^(?:", ")$"
)

// TagPattern selects tags by name with a regular expression in RE2's syntax, which
// takes linear time. As in Quay, a match anywhere in the name suffices; ^ and $ anchor
// it. The zero value matches nothing; every other value came from [ParseTagPattern] or
// [ParseWholeTagPattern]. A pattern may be used by several goroutines.
type TagPattern struct {
	text string
	re   *regexp.Regexp
}

// ParseTagPattern compiles a pattern. It removes surrounding spaces, which no tag
// contains. The error says what to change.
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

// unwrap removes a surrounding ^(?:…)$ from the pattern.
func unwrap(text string) string {
	if inner, ok := strings.CutPrefix(text, wholeOpen); ok {
		if inner, ok = strings.CutSuffix(inner, wholeClose); ok {
			return inner
		}
	}
	return text
}

// ParseWholeTagPattern compiles a pattern that the first release stored. There a
// pattern had to match the whole name. The result selects the same tags; its text is
// the pattern inside ^(?:…)$.
func ParseWholeTagPattern(text string) (TagPattern, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return TagPattern{}, patternError(err)
	}
	if strings.Contains(text, `\Q`) { // \Q would quote the closing bracket
		text = parsed.String()
	}
	return ParseTagPattern(wholeOpen + text + wholeClose)
}

// EveryTag returns a pattern that matches every tag, with text as its String. It
// replaces the unreadable pattern of a protection rule, so that the rule protects
// everything.
func EveryTag(text string) TagPattern { return TagPattern{text: text, re: everyTag} }

var everyTag = regexp.MustCompile("")

// WholeText returns an equivalent pattern for the first release, where a pattern must
// match the whole name. During an upgrade that release's processes may still run.
func (p TagPattern) WholeText() string {
	if p.re == nil {
		return ""
	}
	parsed, err := syntax.Parse(p.text, syntax.Perl)
	if err != nil { // can't happen: it was parsed before
		return p.text
	}
	return `.*(?:` + parsed.String() + `).*`
}

func patternError(err error) error {
	return fmt.Errorf("it isn't a regular expression (RE2 syntax): %w", err)
}

// checkSize refuses an expression that compiles to more than maxProgram instructions.
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

// Match says whether the pattern matches a part of the tag's name.
func (p TagPattern) Match(tag string) bool { return p.re != nil && p.re.MatchString(tag) }

// String returns the pattern as it was written, without surrounding space, and "" for
// the zero value.
func (p TagPattern) String() string { return p.text }

// IsZero says whether p is the zero value.
func (p TagPattern) IsZero() bool { return p.re == nil }
