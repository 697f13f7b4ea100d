package policy

import (
	"encoding/json"
	"slices"
)

// untaggedFields are the members that an untagged policy may have. It deletes no tags; it says in
// olderThan what other policies say in keepUntagged.
var untaggedFields = []string{
	"method", "olderThan", "value", "repositories", "mediaTypes", "artifactTypes", "largerThan", "smallerThan", "annotations", "labels", "platforms", "mode",
}

// noEffect are the values that a member may have in every policy, because they mean the same as if it
// were left out.
var noEffect = []string{"null", "[]"}

// checkUntagged refuses members that an untagged policy doesn't have, so that nobody takes one that
// does nothing for a safeguard.
func checkUntagged(fields map[string]json.RawMessage) error {
	for _, name := range policyFields.fields {
		raw, given := fields[name]
		switch {
		case !given || slices.Contains(untaggedFields, name) || slices.Contains(noEffect, string(raw)):
		case name == "tagPatternMatches" && string(raw) == "true":
		case slices.Contains([]string{"removeOrphans", "countImages", "perPlatform"}, name) && string(raw) == "false":
		case name == "keepUntagged":
			return fieldErrorf(name, "a policy of the method %s says it in olderThan", UntaggedManifests)
		case name == "tagPattern":
			return fieldErrorf(name, "an untagged manifest has no name to match; use mediaTypes, annotations or labels")
		default:
			return fieldErrorf(name, "%s deletes no tags, so it has none", UntaggedManifests)
		}
	}
	return nil
}

// Retains returns for how long the policy keeps manifests that nothing references; zero if it
// doesn't.
func (p *Policy) Retains() Age {
	if p.Method == UntaggedManifests {
		return p.OlderThan
	}
	return p.KeepUntagged
}
