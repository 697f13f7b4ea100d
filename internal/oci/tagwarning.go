package oci

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Warnings returns texts about tags that the author probably doesn't want to select but that
// the pattern matches, and how to write the pattern instead. A pattern with warnings is valid.
func (p TagPattern) Warnings() []string {
	if p.re == nil {
		return nil
	}
	parsed, err := syntax.Parse(p.text, syntax.Perl)
	if err != nil { // can't happen: it was parsed before
		return nil
	}
	var warnings []string
	switch unanchored := p.Unanchored(); {
	case p.EveryName():
		warnings = append(warnings, fmt.Sprintf("%q is found in every name, so it selects every tag", p.text))
	case unanchored != "":
		warnings = append(warnings, unanchored)
	}
	if dotBetweenDigits(parsed) {
		warnings = append(warnings, fmt.Sprintf(`%q has an unescaped dot between digits, which matches any character; write \. for a dot`, p.text))
	}
	return warnings
}

// Unanchored returns a text that warns of a pattern without anchors; "" if it has one, or has .* at
// both ends.
func (p TagPattern) Unanchored() string {
	if p.re == nil {
		return ""
	}
	parsed, err := syntax.Parse(p.text, syntax.Perl)
	if err != nil || anchored(parsed, syntax.OpBeginText) || anchored(parsed, syntax.OpEndText) || spansName(p.text) {
		return ""
	}
	return fmt.Sprintf("%q has no anchors, so it is found anywhere in a name; write %q to match whole names", p.text, wholeOpen+p.text+wholeClose)
}

// everyFirst are names of each form that a tag's name may have: with each character that it may begin
// with, alone and followed by others.
var everyFirst = func() (names []string) {
	const first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
	for i := range first {
		c := first[i : i+1]
		names = append(names, c, c+"q", c+"7", c+"-_.", c+".Z")
	}
	return names
}()

// EveryName returns whether the pattern is found in every name.
func (p TagPattern) EveryName() bool {
	if p.re == nil {
		return false
	}
	for _, name := range everyFirst {
		if !p.re.MatchString(name) {
			return false
		}
	}
	return true
}

// Whole returns the pattern that matches the names that p matches from beginning to end.
func (p TagPattern) Whole() TagPattern {
	text := wholeOpen + unwrap(p.text) + wholeClose
	re, err := regexp.Compile(text)
	if p.re == nil || err != nil {
		return TagPattern{}
	}
	return TagPattern{text: text, re: re}
}

// Glob returns the pattern that its author has meant if p is a pattern of a shell's, in which a star
// stands for any text, as in pr-*. In a regular expression the star repeats the character before it,
// so that pr-* is found in prod. ok is false if p doesn't look like one.
func (p TagPattern) Glob() (glob TagPattern, ok bool) {
	text := strings.TrimSuffix(strings.TrimPrefix(p.text, "^"), "$")
	var out strings.Builder
	for i, c := range text {
		switch {
		case c == '*' && i > 0 && text[i-1] != '.' && text[i-1] != '*':
			out.WriteString(".*")
			ok = true
		case c == '.' && (i+1 == len(text) || text[i+1] != '*'):
			out.WriteString(`\.`)
		case c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
			out.WriteRune(c)
		default:
			return TagPattern{}, false
		}
	}
	if !ok {
		return TagPattern{}, false
	}
	whole := "^" + out.String() + "$"
	if strings.HasSuffix(out.String(), ".*") {
		whole = "^" + strings.TrimSuffix(out.String(), ".*")
	}
	re, err := regexp.Compile(whole)
	return TagPattern{text: whole, re: re}, err == nil
}

// spansName returns whether the pattern has .* at both ends. By that its author allows any text
// before and after the rest of the pattern, so no warning about a missing anchor is needed.
func spansName(text string) bool {
	return strings.HasPrefix(text, ".*") && strings.HasSuffix(text, ".*")
}

// anchored returns whether every match begins at the beginning of the tag's name, if `at` is
// OpBeginText, or ends at the end of the name, if `at` is OpEndText.
func anchored(re *syntax.Regexp, at syntax.Op) bool {
	switch re.Op {
	case at:
		return true
	case syntax.OpCapture:
		return anchored(re.Sub[0], at)
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if !anchored(sub, at) {
				return false
			}
		}
		return true
	case syntax.OpConcat:
		edge := re.Sub[0]
		if at == syntax.OpEndText {
			edge = re.Sub[len(re.Sub)-1]
		}
		return anchored(edge, at)
	}
	return false
}

// dotBetweenDigits returns whether the pattern has an unescaped dot between digits, as in v1.2
// or [0-9]+.[0-9]+.
func dotBetweenDigits(re *syntax.Regexp) bool {
	for i, sub := range re.Sub {
		if dotBetweenDigits(sub) {
			return true
		}
		if re.Op == syntax.OpConcat && i > 0 && i < len(re.Sub)-1 &&
			(sub.Op == syntax.OpAnyCharNotNL || sub.Op == syntax.OpAnyChar) && digitAt(re.Sub[i-1], true) && digitAt(re.Sub[i+1], false) {
			return true
		}
	}
	return false
}

// digitAt returns whether every match of re ends with a digit or, if `end` is false, begins
// with a digit.
func digitAt(re *syntax.Regexp, end bool) bool {
	switch re.Op {
	case syntax.OpLiteral:
		c := re.Rune[0]
		if end {
			c = re.Rune[len(re.Rune)-1]
		}
		return '0' <= c && c <= '9'
	case syntax.OpCharClass:
		n := len(re.Rune)
		return n > 0 && re.Rune[0] >= '0' && re.Rune[n-1] <= '9'
	case syntax.OpCapture, syntax.OpPlus, syntax.OpStar, syntax.OpQuest, syntax.OpRepeat:
		return digitAt(re.Sub[0], end)
	case syntax.OpConcat:
		if end {
			return digitAt(re.Sub[len(re.Sub)-1], end)
		}
		return digitAt(re.Sub[0], end)
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if digitAt(sub, end) {
				return true
			}
		}
	}
	return false
}
