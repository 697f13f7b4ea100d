package auth

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Limits narrow what a robot or a token may do: it may do only what its account's roles and its
// limits both allow.
type Limits struct {
	// Repositories are patterns of paths, see checkPattern. Nil: all repositories.
	Repositories []string `json:"repositories,omitempty"`
	// Actions are the allowed actions. Nil: all actions.
	Actions []Action `json:"actions,omitempty"`
}

// Allow says whether the limits allow the action in the resource. Patterns match repositories
// only: a limit with patterns allows nothing that concerns a whole namespace or the registry,
// except for lists.
func (l Limits) Allow(a Action, r Resource) bool {
	if a == "" {
		return true
	}
	if l.Actions != nil && !slices.Contains(l.Actions, a) {
		return false
	}
	if l.Repositories == nil || a == ActionPull && r == Registry {
		return true
	}
	return r.Repository != "" && slices.ContainsFunc(l.Repositories, func(p string) bool { return matchPattern(p, r.Repository) })
}

// Within says whether these limits allow nothing that the limits `of` don't allow. It returns
// true only if that is certain, see covers.
func (l Limits) Within(of Limits) bool {
	if of.Actions != nil && (l.Actions == nil || slices.ContainsFunc(l.Actions, func(a Action) bool { return !slices.Contains(of.Actions, a) })) {
		return false
	}
	if of.Repositories == nil {
		return true
	}
	return l.Repositories != nil && !slices.ContainsFunc(l.Repositories, func(p string) bool {
		return !slices.ContainsFunc(of.Repositories, func(wider string) bool { return covers(wider, p) })
	})
}

// covers says whether a pattern certainly matches every path that another pattern `p` matches. A
// star of `p` stands for any characters but a slash. If `wider` matches `p` with some other
// character in the star's place, then a star of `wider` has matched it, and would match what the
// star stands for too. For a double star in `p` that isn't so: there, covers compares `p` only
// with patterns such as acme/**.
func covers(wider, p string) bool {
	if p == wider {
		return true
	}
	if strings.Contains(p, "**") {
		beginning, ok := strings.CutSuffix(wider, "**")
		return ok && !strings.Contains(beginning, "*") && strings.HasPrefix(p, beginning)
	}
	return matchPattern(wider, strings.ReplaceAll(p, "*", "\x00"))
}

// maxPatterns is how many patterns a robot or token may have. maxWildcards is how many wildcards,
// each a star or a double star, a pattern may have: the time to compare a path with a pattern
// grows with their number.
const maxPatterns, maxWildcards = 50, 5

// Check returns an error that names the first invalid pattern or action.
func (l Limits) Check() error {
	if len(l.Repositories) > maxPatterns {
		return fmt.Errorf("%d patterns of repositories are more than %d", len(l.Repositories), maxPatterns)
	}
	for _, p := range l.Repositories {
		if err := checkPattern(p); err != nil {
			return err
		}
	}
	for _, a := range l.Actions {
		if !slices.Contains(Actions(), a) {
			return fmt.Errorf("%q is no action; the actions are %v", a, Actions())
		}
	}
	return nil
}

var patternForm = regexp.MustCompile(`^[a-z0-9*]([a-z0-9._*/-]*[a-z0-9*])?$`)

// checkPattern checks a pattern of repositories' paths. In a pattern, "*" stands for any
// characters but a slash, and "**" for any characters.
func checkPattern(p string) error {
	switch {
	case len(p) > 255:
		return errors.New("a pattern of repositories has more than 255 characters")
	case strings.Count(strings.ReplaceAll(p, "**", "*"), "*") > maxWildcards:
		return fmt.Errorf("%q has more than %d wildcards", p, maxWildcards)
	case !patternForm.MatchString(p) || strings.Contains(p, "//") || strings.Contains(p, "***"):
		return fmt.Errorf("%q is no pattern of repositories; write a path such as acme/app, acme/* for all just below acme, or acme/** for all below acme", p)
	}
	return nil
}

// matchPattern says whether a path matches a pattern. Its time is bounded by the product of
// their lengths.
func matchPattern(pattern, path string) bool {
	// state[i] says that pattern[:i] matches the part of the path that was read.
	state := make([]bool, len(pattern)+1)
	next := make([]bool, len(pattern)+1)
	open := func(s []bool) { // stars also match nothing
		for i := range pattern {
			if s[i] && pattern[i] == '*' {
				s[i+1] = true
			}
		}
	}
	state[0] = true
	open(state)
	for j := range len(path) {
		clear(next)
		for i := range len(pattern) {
			switch {
			case !state[i]:
			case pattern[i] != '*':
				next[i+1] = next[i+1] || pattern[i] == path[j]
			case path[j] != '/' || isDouble(pattern, i):
				next[i] = true
			}
		}
		open(next)
		state, next = next, state
	}
	return state[len(pattern)]
}

// isDouble says whether the star at pattern[i] is one of two.
func isDouble(pattern string, i int) bool {
	return i > 0 && pattern[i-1] == '*' || i+1 < len(pattern) && pattern[i+1] == '*'
}

// patternsRegexp returns a regular expression of PostgreSQL for the paths that one of the patterns
// matches. It is one for all of them, since PostgreSQL keeps 32 compiled ones at most: of more,
// it would compile each again for each row.
func patternsRegexp(patterns []string) string {
	const double, single = "\x00", "\x01"
	list := make([]string, len(patterns))
	for i, p := range patterns {
		p = strings.ReplaceAll(strings.ReplaceAll(p, "**", double), "*", single)
		p = regexp.QuoteMeta(p)
		list[i] = strings.ReplaceAll(strings.ReplaceAll(p, double, ".*"), single, "[^/]*")
	}
	return "^(?:" + strings.Join(list, "|") + ")$"
}
