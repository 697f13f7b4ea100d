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
// stands for any text, as in pr-*, ^(pr|mr)-* or ^pr[-_]*. In a regular expression the star repeats the character
// before it, so that pr-* is found in prod. A pattern that has nothing that a shell's pattern lacks
// matches whole names; the anchors of others stay as they are. ok is false if no star repeats a
// single character.
func (p TagPattern) Glob() (glob TagPattern, ok bool) {
	parsed, err := syntax.Parse(p.text, syntax.Perl)
	if p.re == nil || err != nil {
		return TagPattern{}, false
	}
	g := globWriter{dot: "."}
	if inner, plain := withoutAnchors(parsed); plain {
		g.dot = `\.`
		g.WriteByte('^')
		for _, part := range inner {
			g.write(part)
		}
		g.WriteByte('$')
	} else {
		g.write(parsed)
	}
	text := g.String()
	// Any text may follow what isn't anchored.
	if short, cut := strings.CutSuffix(strings.TrimSuffix(text, "$"), ".*"); cut {
		text = short
	}
	re, err := regexp.Compile(text)
	if g.stars == 0 || err != nil {
		return TagPattern{}, false
	}
	return TagPattern{text: text, re: re}, true
}

// withoutAnchors returns the parts of an expression without the anchors at its ends. plain is false if it
// has more than characters, stars after single ones, and dots.
func withoutAnchors(re *syntax.Regexp) (parts []*syntax.Regexp, plain bool) {
	parts = []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	if parts[0].Op == syntax.OpBeginText {
		parts = parts[1:]
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		parts = parts[:n-1]
	}
	for _, part := range parts {
		if part.Op != syntax.OpLiteral && part.Op != syntax.OpAnyCharNotNL && !repeatsOne(part) || part.Flags&syntax.FoldCase != 0 {
			return nil, false
		}
	}
	return parts, true
}

// repeatsOne returns whether an expression is a star after a single character, or after one of several
// separators such as [-_].
func repeatsOne(re *syntax.Regexp) bool {
	if re.Op != syntax.OpStar {
		return false
	}
	sub := re.Sub[0]
	return sub.Op == syntax.OpLiteral && len(sub.Rune) == 1 || separators(sub)
}

// separators returns whether an expression is a class of nothing but the characters that separate words
// in tags.
func separators(re *syntax.Regexp) bool {
	if re.Op != syntax.OpCharClass || len(re.Rune) == 0 {
		return false
	}
	for i := 0; i < len(re.Rune); i += 2 {
		for c := re.Rune[i]; c <= re.Rune[i+1]; c++ {
			if !strings.ContainsRune("-_.", c) {
				return false
			}
		}
	}
	return true
}

// pads returns whether a star repeats a digit before an expression that matches any digits, as in
// 0*[1-9]: nobody writes that in a shell.
func pads(re, next *syntax.Regexp) bool {
	return re.Op == syntax.OpStar && digitAt(re, false) && next.Op != syntax.OpLiteral && digitAt(next, false)
}

// globWriter writes an expression, with a star after a single character as this character and any text.
type globWriter struct {
	strings.Builder
	dot   string // for a dot that nothing repeats
	stars int    // that were after single characters
}

func (g *globWriter) write(re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		g.repeat(re)
	case syntax.OpConcat:
		for i, sub := range re.Sub {
			switch {
			case sub.Op == syntax.OpAlternate:
				g.group("(?:", sub)
			case i+1 < len(re.Sub) && pads(sub, re.Sub[i+1]):
				g.WriteString(sub.String())
			default:
				g.write(sub)
			}
		}
	case syntax.OpAlternate:
		for i, sub := range re.Sub {
			if i > 0 {
				g.WriteByte('|')
			}
			g.write(sub)
		}
	case syntax.OpCapture:
		g.group("(", re.Sub[0])
	case syntax.OpLiteral:
		text := regexp.QuoteMeta(string(re.Rune))
		if re.Flags&syntax.FoldCase != 0 {
			text = "(?i:" + text + ")"
		}
		g.WriteString(text)
	case syntax.OpAnyCharNotNL:
		g.WriteString(g.dot)
	case syntax.OpBeginText:
		g.WriteByte('^')
	case syntax.OpEndText:
		g.WriteByte('$')
	default:
		g.WriteString(re.String())
	}
}

func (g *globWriter) group(open string, re *syntax.Regexp) {
	g.WriteString(open)
	g.write(re)
	g.WriteByte(')')
}

// repeat writes an expression that repeats another one.
func (g *globWriter) repeat(re *syntax.Regexp) {
	sub := re.Sub[0]
	switch {
	case sub.Op == syntax.OpLiteral && len(sub.Rune) == 1, sub.Op == syntax.OpCharClass, sub.Op == syntax.OpAnyCharNotNL, sub.Op == syntax.OpCapture:
		g.write(sub)
	default:
		g.group("(?:", sub)
	}
	lazy := ""
	if re.Flags&syntax.NonGreedy != 0 {
		lazy = "?"
	}
	switch {
	case repeatsOne(re):
		g.WriteString(".*")
		g.stars++
	case re.Op == syntax.OpStar:
		g.WriteString("*" + lazy)
	case re.Op == syntax.OpPlus:
		g.WriteString("+" + lazy)
	case re.Op == syntax.OpQuest:
		g.WriteString("?" + lazy)
	case re.Max < 0:
		fmt.Fprintf(g, "{%d,}%s", re.Min, lazy)
	default:
		fmt.Fprintf(g, "{%d,%d}%s", re.Min, re.Max, lazy)
	}
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
