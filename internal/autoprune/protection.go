package autoprune

import "fmt"

// protected returns whether a protection rule matches the tag.
func (v *Verdict) protected(tag string) bool { return v.protectionOf(tag) != nil }

func (v *Verdict) protectionOf(tag string) *Protection {
	for i := range v.protection {
		if v.protection[i].Pattern.Match(tag) {
			return &v.protection[i]
		}
	}
	return nil
}

// protectedBy describes the protection rule that matches the tag.
func (v *Verdict) protectedBy(tag string) string {
	switch p := v.protectionOf(tag); {
	case p == nil:
		return "by a rule"
	case p.Problem != "":
		return fmt.Sprintf("by rule %s, which holds for every tag: %s", p.ID, p.Problem)
	default:
		return fmt.Sprintf("it matches %s", quoted(p.Pattern))
	}
}
