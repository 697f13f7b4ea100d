package oci_test

import (
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
		"^[^v]":                    "",
		"[^v]$":                    "",
		".":                        "every name",
		"^.*$":                     "every name",
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

// The test expects that a pattern of a shell's is told from a regular expression.
func TestTagPatternGlob(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"^pr-*": "^pr-", "pr-*": "^pr-", "^v*": "^v", "v1.*": "", "^pr-.*": "", "[a-z]*": "", "^v1.2*$": `^v1\.2`,
		"release-*-rc": "^release-.*-rc$", "pr-": "", "(pr)*": "", "a**": "",
		// Alternatives and groups, with the anchors that they have.
		"^(pr|mr)-*": "^(pr|mr)-", "^pr-*|^mr-*": "^pr-.*|^mr-", "pr-*|mr-*$": "pr-.*|mr-", "^(pr-*|mr-*)$": "^(pr-.*|mr-.*)$", "^(?:pr-*)$": "^pr-", "^main$|^pr-*": "^main$|^pr-",
		"^(pr|mr)-[0-9]*": "", "^(pr|mr)-.*": "", "(a|b)*c": "", "^pr-*[0-9]+$": "^pr-.*[0-9]+$", "^(v|r)1.2-*": "^([rv])1.2-", `^v1\.*`: `^v1\.`, `^v\d*`: "", "^pr-*.*": "^pr-.*",
		"^(?:ab)+-*": "^(?:ab)+-", "^(a?|b{2,3}|c{4,}|d+?)-*": "^(a?|b{2,3}|c{4,}|d+?)-", "(?i)^pr-*": "^(?i:PR)(?i:-)", `^\bpr_*x`: `^\bpr_.*x`, "(?:ab)*-*": "(?:ab)*-", "^(?:pr|m)-*x": "^(?:pr|m)-.*x", "^(?:pr){2}-*": "^(?:pr){2,2}-", "^pr-{0,}": "",
		"^build-0*[1-9][0-9]*$": "", "^(v|r)0*[0-9]$": "", "^build-0*$": "^build-0", "v0*1": "^v0.*1$",
	} {
		p, err := oci.ParseTagPattern(pattern)
		if err != nil {
			if want != "" {
				t.Errorf("%q: %v", pattern, err)
			}
			continue
		}
		if glob, ok := p.Glob(); glob.String() != want || ok != (want != "") {
			t.Errorf("%q is taken for %q (%v), want %q", pattern, glob, ok, want)
		}
	}
}

// TestTagPatternGlobFinds: what looks like a shell's pattern finds a name that wasn't meant, and what was
// meant doesn't find it, but finds all that the author means.
func TestTagPatternGlobFinds(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"^pr-*", "^(pr|mr)-*", "^pr-*|^mr-*", "^(pr-*|mr-*)$", "(pr|mr)-*", "^(?i)(pr|mr)-*", "^(?:pr|mr)-*[a-z0-9]*$", "^(pr|mr)[-_]*", "^pr[-_.]*", "pr[-_]*$"} {
		p, err := oci.ParseTagPattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		glob, ok := p.Glob()
		if again, err := oci.ParseTagPattern(glob.String()); !ok || err != nil || again.String() != glob.String() {
			t.Errorf("%q is taken for %q: %v", pattern, glob, err)
		}
		for name, meant := range map[string]bool{"pr-7": true, "pr-x": true, "prod": false} {
			if glob.Match(name) != meant {
				t.Errorf("%q for %q finds %s: %v", glob, pattern, name, !meant)
			}
		}
	}
}
