package autoprune

import "github.com/purser-registry/purser/internal/policy"

// consideredBy returns whether the pattern and the selectors of a policy select the tag. `place` is the
// policy's index in Rules.Policies. consideredBy doesn't check whether the tag is attached to an
// image.
func (t *Tag) consideredBy(p *policy.Policy, place int) bool {
	return (!p.ReadsAttributes() || t.Matched.Has(place)) && t.namedBy(p, place)
}

// inDoubtBy returns whether the policy's pattern and selectors might select the tag, but not all
// that they look at is known.
func (t *Tag) inDoubtBy(p *policy.Policy, place int) bool {
	return p.ReadsAttributes() && !t.Matched.Has(place) && !t.Unmatched.Has(place) && t.namedBy(p, place)
}

// namedBy returns whether the policy's pattern, and those of its selectors that
// don't look at attributes, select the tag.
func (t *Tag) namedBy(p *policy.Policy, place int) bool {
	if t.named {
		return t.names.Has(place) && t.selectedBy(p)
	}
	return p.Considers(t.Name) && t.selectedBy(p)
}

// selectedBy is like namedBy, without the pattern.
func (t *Tag) selectedBy(p *policy.Policy) bool {
	return p.MatchManifest(t.MediaType, t.ArtifactType, t.Size)
}
