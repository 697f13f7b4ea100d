package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// retentionRule is a rule of Harbor: it says which tags of some repositories stay. All others of these
// repositories go, unless another rule keeps them.
type retentionRule struct {
	Disabled bool
	Action   string
	Template string
	Params   map[string]json.Number
	Tags     []retentionSelector            `json:"tag_selectors"`
	Scope    map[string][]retentionSelector `json:"scope_selectors"`
}

type retentionSelector struct{ Kind, Decoration, Pattern string }

// String describes the rule.
func (r retentionRule) String() string {
	text := "the retention rule " + r.Template
	if n := r.Params[r.Template]; n != "" {
		text += " " + n.String()
	}
	for _, s := range r.Tags {
		text += ", tags " + s.Decoration + " " + s.Pattern
	}
	for _, s := range r.Scope["repository"] {
		text += ", repositories " + s.Decoration + " " + s.Pattern
	}
	return text
}

// retention plans policies for the rules. For all rules of the same repositories there is one policy that
// deletes tags older than a day except those that its keep rules keep. A rule for some tags has a policy of
// its own, which has its keep rule and deletes nothing: what a policy keeps, no other deletes. If a rule can't be
// said in Purser there is no policy at all, since the others would delete what this rule keeps.
func (p *Plan) retention(rules []retentionRule) {
	scopes := make(map[string][]retentionRule)
	var order []string
	for _, r := range rules {
		if r.Disabled {
			continue
		}
		scope, err := json.Marshal(r.Scope["repository"])
		if err != nil {
			p.leave("%s: %v", r, err)
			continue
		}
		if scopes[string(scope)] == nil {
			order = append(order, string(scope))
		}
		scopes[string(scope)] = append(scopes[string(scope)], r)
	}
	var planned []planned
	for _, scope := range order {
		// With rules of other repositories, which may be some of the same, each rule must be a keep rule.
		policies, err := p.scope(scopes[scope], len(order) == 1)
		if err != nil {
			p.leave("%v", err)
			p.leave("all retention rules: without this one, their policies would delete what it keeps")
			return
		}
		planned = append(planned, policies...)
	}
	for _, one := range planned {
		p.policy("", one.from, one.members)
	}
}

// planned is a policy for rules of Harbor.
type planned struct {
	from    string
	members map[string]any
}

// scope returns the policies for the rules of the same repositories. If they are `alone`, there are no other
// rules.
func (p *Plan) scope(rules []retentionRule, alone bool) ([]planned, error) {
	repositories, err := p.repositories(rules[0].Scope["repository"])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rules[0], err)
	}
	youngest, all := int64(1), false // days for which tags stay; whether all tags stay
	var texts []string
	var keep []map[string]any
	var policies []planned
	for _, r := range rules {
		k, err := r.keeps()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r, err)
		}
		switch {
		case k.selects == nil && k.days > 0 && alone:
			youngest = max(youngest, k.days)
		case k.selects == nil:
			keep = append(keep, k.rule)
			all = all || r.Template == "always"
		default:
			policies = append(policies, keeper(r.String(), k.selects, k.rule))
		}
		texts = append(texts, r.String())
	}
	first := planned{"what is kept by none of: " + strings.Join(texts, "; "), map[string]any{"method": "creation_date", "olderThan": fmt.Sprintf("%dd", youngest)}}
	if keep != nil {
		first.members["keep"] = keep
	}
	if all {
		first = keeper(strings.Join(texts, "; "), map[string]any{}, keep...)
	}
	policies = append([]planned{first}, policies...)
	for _, one := range policies {
		if repositories != nil {
			one.members["repositories"] = repositories
		}
	}
	return policies, nil
}

// keeper returns a policy that deletes nothing, and lets other policies not delete what it keeps.
func keeper(from string, members map[string]any, keep ...map[string]any) planned {
	members["method"], members["olderThan"], members["keep"] = "creation_date", "100y", keep
	return planned{from, members}
}

// kept is what a rule keeps.
type kept struct {
	days    int64          // it keeps what was pushed in this time; 0: only the keep rule says what
	rule    map[string]any // a keep rule
	selects map[string]any // the members that select the tags at which it looks; nil: all
}

// keeps says in Purser's words what the rule keeps.
func (r retentionRule) keeps() (k kept, err error) {
	if r.Action != "retain" {
		return k, errors.New("it does something else than to retain")
	}
	if k.selects, err = r.selects(); err != nil {
		return k, err
	}
	n, _ := r.Params[r.Template].Int64() //nolint:errcheck // 0 is refused below
	if r.Template != "always" && (n < 1 || n > 30_000) {
		return k, errors.New("its number isn't from 1 to 30,000")
	}
	used := map[string]any{"usedWithin": fmt.Sprintf("%dd", n)}
	switch r.Template {
	case "always":
		k.rule = map[string]any{"tagPattern": ".*"}
	case "latestPushedK":
		k.rule = map[string]any{"newest": n, "countImages": true}
	case "nDaysSinceLastPush", "lastXDays":
		k.days, k.rule = n, used // a keep rule knows pushes and uses together, and so keeps more
	case "nDaysSinceLastPull":
		k.rule = used
	default:
		return k, errors.New("it counts by last use, and no keep rule does")
	}
	return k, nil
}

// selects returns the members of a policy that select the rule's tags, nil for all.
func (r retentionRule) selects() (map[string]any, error) {
	if len(r.Tags) != 1 || r.Tags[0].Kind != "doublestar" {
		return nil, errors.New("it doesn't select tags by one pattern")
	}
	s := r.Tags[0]
	switch {
	case s.Decoration == "matches" && (s.Pattern == "**" || s.Pattern == "*"):
		return nil, nil
	case s.Decoration != "matches" && s.Decoration != "excludes":
		return nil, fmt.Errorf("its selector %q isn't known", s.Decoration)
	}
	pattern, err := tagPattern(s.Pattern)
	if err != nil {
		return nil, err
	}
	return map[string]any{"tagPattern": pattern, "tagPatternMatches": s.Decoration == "matches"}, nil
}

// repositories returns the patterns of a policy for a selector of repositories, nil for all.
func (p *Plan) repositories(selectors []retentionSelector) ([]string, error) {
	if len(selectors) != 1 || selectors[0].Kind != "doublestar" {
		return nil, errors.New("it doesn't select repositories by one pattern")
	}
	s := selectors[0]
	switch {
	case s.Decoration != "repoMatches":
		return nil, errors.New("policies have no patterns of repositories in which they don't apply")
	case s.Pattern == "**":
		return nil, nil
	case strings.ContainsAny(s.Pattern, `?[]\`):
		return nil, fmt.Errorf("the pattern %s has more than * and {}", s.Pattern)
	}
	var patterns []string
	for _, alternative := range alternatives(s.Pattern) {
		if strings.ContainsAny(alternative, "{}") {
			return nil, fmt.Errorf("the braces of the pattern %s are too many", s.Pattern)
		}
		patterns = append(patterns, p.Namespace+"/"+alternative)
	}
	return patterns, nil
}

// braces is the first pair of braces in a pattern.
var braces = regexp.MustCompile(`^([^{}]*)\{([^{}]*)\}(.*)$`)

// alternatives returns the patterns for which a pattern with one pair of braces, as in {app,web}-*, stands.
func alternatives(pattern string) (list []string) {
	m := braces.FindStringSubmatch(pattern)
	if m == nil {
		return []string{pattern}
	}
	for one := range strings.SplitSeq(m[2], ",") {
		list = append(list, m[1]+one+m[3])
	}
	return list
}

// tagPattern returns the regular expression for a pattern of tags' names, in which * stands for any characters, ?
// for one, and {a,b} for a or b.
func tagPattern(pattern string) (string, error) {
	if strings.ContainsAny(pattern, `[]\`) {
		return "", fmt.Errorf("the pattern %s has more than *, ? and {}", pattern)
	}
	var b strings.Builder
	depth := 0
	for _, c := range pattern {
		switch {
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteString(".")
		case c == '{':
			depth++
			b.WriteString("(?:")
		case c == '}' && depth > 0:
			depth--
			b.WriteString(")")
		case c == ',' && depth > 0:
			b.WriteString("|")
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	if depth > 0 {
		return "", fmt.Errorf("a brace of the pattern %s isn't closed", pattern)
	}
	return "^(?:" + strings.ReplaceAll(b.String(), ".*.*", ".*") + ")$", nil
}
