package auth

import "testing"

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
