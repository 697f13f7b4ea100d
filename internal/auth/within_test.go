package auth

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// TestWithin: new limits are compared with those of the client that asks for them. Limits that
// allow anything more must never count as within.
func TestWithin(t *testing.T) {
	t.Parallel()
	limits := func(patterns []string, actions ...Action) Limits { return Limits{patterns, actions} }
	for _, c := range []struct {
		l, of Limits
		want  bool
	}{
		{limits(nil), limits(nil), true},
		{limits([]string{"a/b"}, ActionPull), limits(nil), true},
		{limits(nil), limits(nil, ActionPull), false},
		{limits(nil, ActionPull, ActionPush), limits(nil, ActionPull), false},
		{limits(nil, ActionPull), limits(nil, ActionPush, ActionPull), true},
		{Limits{nil, []Action{}}, limits(nil, ActionPull), true},
		{limits(nil), limits([]string{"a/**"}), false},
		{limits([]string{}), limits([]string{"a/**"}), true},
		{limits([]string{"a/b", "a/c/d"}), limits([]string{"a/**"}), true},
		{limits([]string{"a/b", "b/c"}), limits([]string{"a/**"}), false},
		{limits([]string{"a/*"}), limits([]string{"a/*"}), true},
		{limits([]string{"a/*"}), limits([]string{"a/**"}), true},
		{limits([]string{"a/**"}), limits([]string{"a/*"}), false},
		{limits([]string{"a/**"}), limits([]string{"a/*/*"}), false},
		{limits([]string{"a/x*"}), limits([]string{"a/x*"}), true},
		{limits([]string{"a/x*y"}), limits([]string{"a/x*"}), true},
		{limits([]string{"a/x*"}), limits([]string{"a/x*y"}), false},
		{limits([]string{"a/*/b"}), limits([]string{"a/**"}), true},
		{limits([]string{"a/c/**"}), limits([]string{"a/**"}), true},
		{limits([]string{"ab/**"}), limits([]string{"a/**"}), false},
		{limits([]string{"**"}), limits([]string{"a/**", "b/**"}), false},
		{limits([]string{"a*"}), limits([]string{"a"}), false},
	} {
		if got := c.l.Within(c.of); got != c.want {
			t.Errorf("%v within %v: %v, want %v", c.l, c.of, got, c.want)
		}
	}
}

// TestLimitsAreBounded: the time to compare a path with limits must not grow without bound.
func TestLimitsAreBounded(t *testing.T) {
	t.Parallel()
	many := func(n int) []string { return slices.Repeat([]string{"acme/*"}, n) }
	for _, c := range []struct {
		patterns []string
		ok       bool
	}{
		{many(50), true},
		{many(51), false},
		{[]string{"*a*b*c*d*"}, true},
		{[]string{"**a**b**c**d**"}, true},
		{[]string{"*a*b*c*d*e*"}, false},
		{[]string{"a", "**a*b*c*d*e*"}, false},
		{slices.Repeat([]string{"acme/" + strings.Repeat("x", 75)}, 50), true},
		{slices.Repeat([]string{"acme/" + strings.Repeat("x", 80)}, 50), false},
	} {
		if err := (Limits{Repositories: c.patterns}).Check(); (err == nil) != c.ok {
			t.Errorf("%d patterns, the last %s: %v", len(c.patterns), c.patterns[len(c.patterns)-1], err)
		}
	}
}

// TestPatternsRegexp: the expression that lists use must match the paths that the patterns match.
func TestPatternsRegexp(t *testing.T) {
	t.Parallel()
	some := func(list string, n int) string {
		text := make([]byte, rand.N(n)+1)
		for i := range text {
			text[i] = list[rand.N(len(list))]
		}
		return string(text)
	}
	matched := 0
	for range 20_000 {
		patterns := []string{some("ab*/.", 5), some("ab*/.", 5)}
		if (Limits{Repositories: patterns}).Check() != nil {
			continue
		}
		path := some("ab/.", 6)
		want := oci.MatchPath(patterns[0], path) || oci.MatchPath(patterns[1], path)
		if got := regexp.MustCompile(patternsRegexp(patterns)).MatchString(path); got != want {
			t.Errorf("%q of %q: %v, want %v", path, patterns, got, want)
		}
		if want {
			matched++
		}
	}
	if matched < 100 {
		t.Errorf("only %d paths matched", matched)
	}
}
