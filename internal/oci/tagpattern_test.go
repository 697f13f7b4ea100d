package oci_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// The test expects that a pattern may match any part of a name unless it is anchored, as in
// Quay, from which users bring their policies, and that spaces around it are ignored.
func TestTagPatternIsSearchedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"^v*", []string{"v1", "main", ""}, nil},
		{"^v", []string{"v", "v1"}, []string{"dev", "main"}},
		{"v1", []string{"v1", "v10", "xv1"}, []string{"V1", ""}},
		{"rc$", []string{"v1-rc", "rc"}, []string{"rc1"}},
		{"a|b", []string{"a", "b", "ab", "xay"}, []string{"c"}},
		{"^(?:a|b)$", []string{"a", "b"}, []string{"ab", "ac"}},
		{"^a|b$", []string{"ax", "xb"}, []string{"xa", "bx"}},
		{" \t^v1$\n", []string{"v1"}, []string{"v10"}},
		{"(?i)main", []string{"Main", "mainx"}, []string{"mai"}},
		{`\Qa.b`, []string{"a.b", "xa.b)"}, []string{"axb"}},
	} {
		p, err := oci.ParseTagPattern(c.pattern)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		if p.String() != strings.TrimSpace(c.pattern) {
			t.Errorf("%q is told as %q", c.pattern, p)
		}
		for _, tag := range c.yes {
			if !p.Match(tag) {
				t.Errorf("%q doesn't match %q", p, tag)
			}
		}
		for _, tag := range c.no {
			if p.Match(tag) {
				t.Errorf("%q matches %q", p, tag)
			}
		}
	}
	if _, err := oci.ParseTagPattern(" \t "); err == nil {
		t.Error("space alone is a pattern")
	}
}

func TestTagPatternWarnings(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"^v":                       "",
		"rc$":                      "",
		"^v[0-9]+$":                "",
		"^(?:a|b)$":                "",
		"(^a|^b)":                  "",
		`^v1\.2$`:                  "",
		"^v[0-9]x[0-9]$":           "",
		".*rc.*":                   "",
		`\Av`:                      "",
		"v1":                       "no anchors",
		"pr-.*":                    "no anchors",
		"^a|b":                     "no anchors",
		"a$|b":                     "no anchors",
		"^v*":                      "every name",
		".*":                       "every name",
		"v?":                       "every name",
		"^v1.2$":                   "dot",
		`^v[0-9]+.[0-9]+$`:         "dot",
		`^v\d.\d\.\d$`:             "dot",
		`^v(\d+).(\d+)$`:           "dot",
		"1.2":                      "no anchors dot",
		"^release-.*$":             "",
		"^(?:v[0-9]{1,2}.[0-9]+)$": "dot",
	} {
		p, err := oci.ParseTagPattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		warnings := p.Warnings()
		for _, part := range []string{"no anchors", "every name", "dot"} {
			if got := strings.Contains(strings.Join(warnings, "\n"), part); got != strings.Contains(want, part) {
				t.Errorf("%q: the warnings are %q, want %q", pattern, warnings, want)
			}
		}
	}
}

// FuzzWholeTagPattern converts patterns between the form that may match any part of a name and
// the form that must match the whole name, and expects that both select the same tags.
func FuzzWholeTagPattern(f *testing.F) {
	for _, seed := range [][2]string{{"v.*", "v1"}, {"a|ab", "xab"}, {`\Qa`, "a"}, {`\Qa\Eb`, "xab"}, {"(?i)x$|^y", "X"}, {"(?s-m)a{2,3}?", "aa"}, {`\bq\B`, "q"}, {"(?m)^a$", "a"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, tag string) {
		if strings.ContainsAny(tag, "\r\n") { // no tag has them
			return
		}
		p, err := oci.ParseTagPattern(text)
		if err != nil {
			return
		}
		if strings.TrimSpace(text) == text {
			re := regexp.MustCompile(text)
			re.Longest()
			place := re.FindStringIndex(tag)
			if p.Match(tag) != (place != nil) {
				t.Fatalf("%q is found in %q: %v", text, tag, place)
			}
			if whole, err := oci.ParseWholeTagPattern(text); err == nil {
				if want := place != nil && place[0] == 0 && place[1] == len(tag); whole.Match(tag) != want {
					t.Fatalf("%q, once %q, matches %q: %v, want %v", whole, text, tag, !want, want)
				}
			}
		}
		old, err := oci.ParseWholeTagPattern(p.WholeText())
		if err == nil && old.Match(tag) != p.Match(tag) {
			t.Fatalf("%q in %q: %v, and in the first release, as %q: %v", p, tag, p.Match(tag), p.WholeText(), old.Match(tag))
		}
	})
}
