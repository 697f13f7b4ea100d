package autoprune

import (
	"fmt"

	"github.com/purser-registry/purser/internal/policy"
)

// protected returns whether the tag is immutable, or a protection rule matches it.
func (v *Verdict) protected(t *Tag) bool { return t.Immutable || v.protectionOf(t.Name) != nil }

func (v *Verdict) protectionOf(tag string) *Protection {
	for i := range v.protection {
		if v.protection[i].Pattern.Match(tag) {
			return &v.protection[i]
		}
	}
	return nil
}

// protectedBy describes why the tag is protected.
func (v *Verdict) protectedBy(t *Tag) string {
	switch p := v.protectionOf(t.Name); {
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
