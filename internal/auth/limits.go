package auth

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Limits narrow what a robot or a token may do: it may do only what its account's roles and its
// limits both allow.
type Limits struct {
	// Repositories are patterns of paths, see oci.CheckPathPattern. Nil: all repositories.
	Repositories []string `json:"repositories,omitzero"`
	// Actions are the allowed actions. Nil: all actions.
	Actions []Action `json:"actions,omitzero"`
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
	return r.Repository != "" && slices.ContainsFunc(l.Repositories, func(p string) bool { return oci.MatchPath(p, r.Repository) })
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
	return oci.MatchPath(wider, strings.ReplaceAll(p, "*", "\x00"))
}

// maxPatterns is how many patterns a robot or token may have, and maxPatternBytes how long they
// may be together: lists tell them of each.
const maxPatterns, maxPatternBytes = 50, 4 << 10

// Check returns an error that names the first invalid pattern or action.
func (l Limits) Check() error {
	if len(l.Repositories) > maxPatterns {
		return fmt.Errorf("%d patterns of repositories are more than %d", len(l.Repositories), maxPatterns)
	}
	size := 0
	for _, p := range l.Repositories {
		if err := oci.CheckPathPattern(p); err != nil {
			return err
		}
		size += len(p)
	}
	if size > maxPatternBytes {
		return fmt.Errorf("the patterns of repositories have %d bytes together, and at most %d are allowed", size, maxPatternBytes)
	}
	for _, a := range l.Actions {
		if !slices.Contains(Actions(), a) {
			return fmt.Errorf("%q is no action; the actions are %v", a, Actions())
		}
	}
	return nil
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
