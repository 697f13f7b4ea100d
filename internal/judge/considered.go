package judge

import "github.com/purser-registry/purser/internal/policy"

// ConsideredBy returns whether the pattern and the selectors of a policy select the tag. `place` is the
// policy's index in Rules.Policies. ConsideredBy doesn't check whether the tag is attached to an
// image.
func (t *Tag) ConsideredBy(p *policy.Policy, place int) bool {
	return (!p.ReadsAttributes() || t.Matched.Has(place)) && t.NamedBy(p, place)
}

// InDoubtBy returns whether the policy's pattern and selectors might select the tag, but not all
// that they look at is known.
func (t *Tag) InDoubtBy(p *policy.Policy, place int) bool {
	return p.ReadsAttributes() && !t.Matched.Has(place) && !t.Unmatched.Has(place) && t.NamedBy(p, place)
}

// NamedBy returns whether the policy's pattern, and those of its selectors that
// don't look at attributes, select the tag.
func (t *Tag) NamedBy(p *policy.Policy, place int) bool {
	if t.NamesKnown {
		return t.Names.Has(place) && t.SelectedBy(p)
	}
	return p.Considers(t.Name) && t.SelectedBy(p)
}

// SelectedBy is like NamedBy, without the pattern.
func (t *Tag) SelectedBy(p *policy.Policy) bool {
	return p.MatchManifest(t.MediaType, t.ArtifactType, t.Size)
}
