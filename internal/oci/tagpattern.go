package oci

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxTagPattern is the longest pattern of tags in characters.
	MaxTagPattern = 256
	// maxProgram is how many instructions a pattern may compile to. Up to this
	// size Go's regexp matches with its backtracker, which visits each pair of
	// instruction and byte once: well under a millisecond for the longest tag.
	// Repetitions make a short pattern large, and a pattern is matched with each
	// tag of a namespace.
	maxProgram = 500
)

// TagPattern selects tags by name: a regular expression in RE2's syntax, which takes
// linear time, that must match the whole name. The zero value is no pattern and
// matches nothing; every other one came from [ParseTagPattern]. Patterns may be used
// by several goroutines.
type TagPattern struct {
	text string
	re   *regexp.Regexp
}

// ParseTagPattern compiles a pattern. The error says what to change.
func ParseTagPattern(text string) (TagPattern, error) {
	if text == "" {
		return TagPattern{}, errors.New("it is empty, which no tag matches; leave it out to select every tag")
	}
	if !utf8.ValidString(text) {
		return TagPattern{}, errors.New("it isn't valid UTF-8")
	}
	if n := utf8.RuneCountInString(text); n > MaxTagPattern {
		return TagPattern{}, fmt.Errorf("it has %d characters and at most %d are allowed", n, MaxTagPattern)
	}
	for _, c := range text {
		if unicode.IsControl(c) {
			return TagPattern{}, fmt.Errorf("it has the control character %U, which no tag has", c)
		}
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return TagPattern{}, patternError(err)
	}
	// The pattern is written anew from what was parsed, because some patterns
	// mean something else between brackets: \Qa would take the bracket in.
	full := `\A(?:` + parsed.String() + `)\z`
	if err := checkSize(full); err != nil {
		return TagPattern{}, err
	}
	re, err := regexp.Compile(full)
	if err != nil {
		return TagPattern{}, patternError(err)
	}
	return TagPattern{text: text, re: re}, nil
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

// Match tells whether the pattern matches the whole of the tag's name.
func (p TagPattern) Match(tag string) bool { return p.re != nil && p.re.MatchString(tag) }

// String returns the pattern as it was written, "" for the zero value.
func (p TagPattern) String() string { return p.text }

// IsZero tells whether p is the zero value.
func (p TagPattern) IsZero() bool { return p.re == nil }
