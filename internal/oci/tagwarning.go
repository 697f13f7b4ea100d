package oci

import (
	"fmt"
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
	switch {
	case p.re.MatchString("\x00"): // matches even NUL, which no tag contains
		warnings = append(warnings, fmt.Sprintf("%q is found in every name, so it selects every tag", p.text))
	case !anchored(parsed, syntax.OpBeginText) && !anchored(parsed, syntax.OpEndText) && !spansName(p.text):
		warnings = append(warnings, fmt.Sprintf("%q has no anchors, so it is found anywhere in a name; write %q to match whole names",
			p.text, wholeOpen+p.text+wholeClose))
	}
	if dotBetweenDigits(parsed) {
		warnings = append(warnings, fmt.Sprintf(`%q has an unescaped dot between digits, which matches any character; write \. for a dot`, p.text))
	}
	return warnings
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
