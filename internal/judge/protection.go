package judge

import (
	"fmt"

	"github.com/purser-registry/purser/internal/policy"
)

// protected returns whether the tag is immutable, or a protection rule matches it.
func (v *Verdict) protected(t *Tag) bool {
	return t.Immutable || protectionOf(v.protection, t.Name) != nil
}

// protectionOf returns the first rule that matches the name of a tag, nil if none does.
func protectionOf(rules []Protection, tag string) *Protection {
	for i := range rules {
		if rules[i].Pattern.Match(tag) {
			return &rules[i]
		}
	}
	return nil
}

// protectedBy describes why the tag is protected.
func (v *Verdict) protectedBy(t *Tag) string {
	switch p := protectionOf(v.protection, t.Name); {
	case p == nil && t.Immutable:
		return "it is immutable"
	case p == nil:
		return "by a rule"
	case p.Problem != "":
		return fmt.Sprintf("by rule %s, which holds for every tag: %s", p.ID, p.Problem)
	default:
		return fmt.Sprintf("it matches %s", policy.Quoted(p.Pattern))
	}
}
