package judge

import (
	"fmt"

	"github.com/purser-registry/purser/internal/policy"
)

// This file is about tags of which it isn't known whether a policy's selectors labels and
// platforms select them, because the configuration of an image hasn't been read. The policy
// then is in doubt about the tag. A doubt never makes any policy delete a tag that would stay
// if the configuration were known.

const doubtText = "it isn't known whether its labels and platforms select the tag: the configuration of an image hasn't been read"

func (r *rule) considers(t *Tag) bool { return t.ConsideredBy(&r.policy, r.place) }

// inDoubt returns whether the policy is in doubt about the tag.
func (r *rule) inDoubt(t *Tag) bool { return t.InDoubtBy(&r.policy, r.place) }

// countDoubts counts a tag, which isn't attached, for the notices of the policies that are in
// doubt about it.
func (v *Verdict) countDoubts(t *Tag) {
	for i := range v.rules {
		if r := &v.rules[i]; r.policy.Method != policy.UntaggedManifests && r.inDoubt(t) {
			r.doubts++
		}
	}
}

// keptInDoubt returns the index of the first policy with keep rules that is in doubt about the
// tag, which isn't attached; -1 if there is none.
func (v *Verdict) keptInDoubt(t *Tag) int {
	for i := range v.rules {
		if r := &v.rules[i]; len(r.keepers) > 0 && r.inDoubt(t) {
			return i
		}
	}
	return -1
}

// doubtNotice says about how many tags the policy is in doubt; "" for none.
func (r *rule) doubtNotice() string {
	if r.doubts == 0 {
		return ""
	}
	return fmt.Sprintf("it selects none of %d tags, because configurations of their images haven't been read", r.doubts)
}
