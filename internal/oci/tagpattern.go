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
	// MaxTagPattern is the largest length of a tag pattern, in characters, not counting
	// ^(?:…)$ around it.
	MaxTagPattern = 256
	// maxProgram is how many instructions a pattern may compile to. Up to this size Go's
	// regexp uses its backtracker, which visits each pair of instruction and byte once, so
	// matching the longest tag takes well under a millisecond. The limit is necessary because
	// a short pattern with repetitions can become large, and a pattern is matched against
	// every tag of a namespace.
	maxProgram = 500

	wholeOpen, wholeClose = "^(?:", ")$"
)

// TagPattern selects tags by name with a regular expression in RE2's syntax, which takes
// linear time. As in Quay, the expression may match any part of the name; ^ and $ anchor it.
// The zero value matches no tag; other values come from [ParseTagPattern] or
// [EveryTag]. Several goroutines may use a pattern.
type TagPattern struct {
	text string
	re   *regexp.Regexp
}

// ParseTagPattern checks and compiles a pattern. It removes spaces around it, which no tag
// contains. The error says what to change.
func ParseTagPattern(text string) (TagPattern, error) {
	if !utf8.ValidString(text) {
		return TagPattern{}, errors.New("it isn't valid UTF-8")
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return TagPattern{}, errors.New("it is empty, which every tag matches; to select every tag, use .*")
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

// unwrap removes ^(?: and )$ from the beginning and end of the pattern, if both are there.
func unwrap(text string) string {
	if inner, ok := strings.CutPrefix(text, wholeOpen); ok {
		if inner, ok = strings.CutSuffix(inner, wholeClose); ok {
			return inner
		}
	}
	return text
}

// EveryTag returns a pattern that matches every tag and whose method String returns `text`. It
// replaces the pattern `text` of a protection rule if this version can't read the pattern, so
// that the rule protects all tags.
func EveryTag(text string) TagPattern { return TagPattern{text: text, re: everyTag} }

var everyTag = regexp.MustCompile("")

func patternError(err error) error {
	return fmt.Errorf("it isn't a regular expression (RE2 syntax): %w", err)
}

// checkSize returns an error if an expression compiles to more than maxProgram instructions.
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

// Match returns whether the pattern matches the tag's name or a part of it.
func (p TagPattern) Match(tag string) bool { return p.re != nil && p.re.MatchString(tag) }

// Groups returns how many pairs of parentheses in the pattern capture.
func (p TagPattern) Groups() int {
	if p.re == nil {
		return 0
	}
	return p.re.NumSubexp()
}

// Group returns what the pattern's parentheses capture in the tag's name, in their order,
// each followed by a 0 byte, which no name contains. Parentheses that take no part in the
// match capture the empty text. ok is false if the pattern doesn't match.
func (p TagPattern) Group(tag string) (key string, ok bool) {
	if p.re == nil {
		return "", false
	}
	found := p.re.FindStringSubmatch(tag)
	if found == nil {
		return "", false
	}
	return strings.Join(append(found[1:], ""), "\x00"), true
}

// String returns the pattern as its author wrote it, without spaces around it; "" for the zero
// value.
func (p TagPattern) String() string { return p.text }

// MarshalText returns the pattern as it was written.
func (p TagPattern) MarshalText() ([]byte, error) { return []byte(p.text), nil }

// UnmarshalText reads a pattern as MarshalText writes it. The zero pattern is "".
func (p *TagPattern) UnmarshalText(text []byte) (err error) {
	if *p = (TagPattern{}); len(text) > 0 {
		*p, err = ParseTagPattern(string(text))
	}
	return err
}

// IsZero says whether p is the zero value.
func (p TagPattern) IsZero() bool { return p.re == nil }
