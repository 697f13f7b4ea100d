package judge

import (
	"fmt"
	"iter"
	"time"

	"github.com/purser-registry/purser/internal/policy"
)

// keeper is a keep rule prepared for a repository.
type keeper struct {
	policy.KeepRule
	kind     policy.KeepKind
	counting policy.Counting
	// cutoff is now minus the age of usedWithin. unknown says why the last use of tags isn't
	// known; the rule then keeps every tag that its policy considers.
	cutoff  time.Time
	unknown string
	// overflow says that there are too many groups. The rule then keeps every tag that
	// belongs to a group.
	overflow bool
	// tags has the newest tags of each group.
	tags *newestGroups
	// versions has the newest versions of each group. It is needed only while the tags are
	// surveyed.
	versions map[string]*newestVersions
	// oldestVersion has the oldest of the newest N versions of those groups that have at least N:
	// what is older isn't kept. Of other groups everything is.
	oldestVersion map[string]*version
}

func newKeepers(rules []policy.KeepRule, now time.Time, pulls PullRecord) []keeper {
	keepers := make([]keeper, len(rules))
	for i, rule := range rules {
		k := &keepers[i]
		k.KeepRule, k.kind, k.counting = rule, rule.Kind(), rule.Counting()
		switch k.kind {
		case policy.KeepUsed:
			k.cutoff = now.Add(-rule.UsedWithin.Duration())
			k.unknown = pulls.problem(rule.UsedWithin, k.cutoff)
		case policy.KeepNewest:
			k.tags = newNewestGroups(k.counting, rule.Newest, true)
		case policy.KeepVersions:
			k.versions, k.oldestVersion = make(map[string]*newestVersions), make(map[string]*version)
		case policy.KeepPattern:
		}
	}
	return keepers
}

// counts returns whether the rule keeps a number of tags or of versions.
func (k *keeper) counts() bool { return k.Newest > 0 }

// version returns the version in a tag's name, and its group. ok is false if the rule keeps
// no such tag.
func (k *keeper) version(tag string) (v version, key string, ok bool) {
	v, ok = parseVersion(tag)
	if !ok || v.prerelease != (k.Versions == policy.NewestPrereleases) {
		return v, "", false
	}
	if k.Versions == policy.NewestPatches {
		return v, v.numbers[0] + "." + v.numbers[1] + "-" + v.variant, true
	}
	return v, v.variant, true
}

// overflows is called when there are too many groups.
func (k *keeper) overflows() {
	if k.kind == policy.KeepVersions || k.counting.Grouped() {
		k.overflow, k.versions = true, nil
		k.tags.overflows()
	}
}

// see takes note of a tag, counts it if `counted` is set, and returns the number of groups that
// this adds.
func (k *keeper) see(t *Tag, counted bool) (added int) {
	switch {
	case k.kind == policy.KeepNewest && (counted || k.CountImages):
		return k.tags.see(t, counted)
	case !counted || k.overflow:
		return 0
	}
	v, key, ok := k.version(t.Name)
	if !ok {
		return 0
	}
	group := k.versions[key]
	if group == nil {
		group, added = &newestVersions{limit: k.Newest}, 1
		k.versions[key] = group
	}
	group.add(&v)
	return added
}

// settle is called when all tags were counted.
func (k *keeper) settle() {
	if k.tags != nil {
		k.tags.settle()
	}
	for key, group := range k.versions {
		if v := group.oldest(); v != nil {
			k.oldestVersion[key] = v
		}
	}
	k.versions = nil
}

// keeps returns whether the rule keeps a tag that its policy considers, and the code of the
// reason. `orphan` says that the tag is an orphan and the policy removes orphans.
func (k *keeper) keeps(t *Tag, orphan bool) (Code, bool) {
	if orphan && k.counts() {
		return "", false
	}
	switch k.kind {
	case policy.KeepNewest:
		code := k.tags.judge(t)
		if code == NoPlatform {
			return KeptPlatform, true
		}
		return KeptNewest, code == AmongNewest || code == TooManyGroups
	case policy.KeepVersions:
		v, key, ok := k.version(t.Name)
		if !ok {
			return "", false
		}
		oldest := k.oldestVersion[key]
		return KeptVersion, oldest == nil || v.compare(oldest) >= 0
	case policy.KeepPattern:
		return KeptPattern, k.TagPattern.Match(t.Name)
	case policy.KeepUsed:
		switch {
		case !t.Created.Before(k.cutoff), k.unknown == "" && !t.Used().Before(k.cutoff):
			return KeptUsed, true
		}
		return KeptUnknown, k.unknown != ""
	}
	return "", false
}

// countKept adds the tag to the newest tags and versions of those keep rules whose policy
// considers it. It leaves out protected tags, tags that an undo has exempted from the
// policy, and orphans if the policy removes orphans. So neither a protection rule nor an undo
// makes a policy delete a tag that it would otherwise keep.
func (v *Verdict) countKept(t *Tag) {
	known, protected := false, false
	for i := range v.rules {
		r := &v.rules[i]
		if !r.countsKept || r.policy.RemoveOrphans && t.Orphan() || !r.considers(t) {
			continue
		}
		if !known {
			known, protected = true, v.protected(t)
		}
		for place := range r.keepers {
			if k := &r.keepers[place]; k.counts() {
				v.groups += k.see(t, !protected && !t.Exempt.Has(i))
			}
		}
	}
	v.limitGroups()
}

// keepers yields the keep rules of all policies.
func (v *Verdict) keepers() iter.Seq[*keeper] {
	return func(yield func(*keeper) bool) {
		for i := range v.rules {
			for place := range v.rules[i].keepers {
				if !yield(&v.rules[i].keepers[place]) {
					return
				}
			}
		}
	}
}

// kept returns the first keep rule that keeps the tag, which isn't attached, with the index
// of the rule's policy; nil if none does.
func (v *Verdict) kept(t *Tag) (k *keeper, policy int, code Code) {
	for i := range v.rules {
		r := &v.rules[i]
		if len(r.keepers) == 0 || !r.considers(t) {
			continue
		}
		for place := range r.keepers {
			if code, ok := r.keepers[place].keeps(t, r.policy.RemoveOrphans && t.Orphan()); ok {
				return &r.keepers[place], i, code
			}
		}
	}
	return nil, -1, ""
}

// keptReason says why a keep rule keeps the tag.
func (v *Verdict) keptReason(t *Tag) string {
	k, _, code := v.kept(t)
	switch {
	case k == nil: // can't happen: Decide has found the rule
		return "kept by a rule"
	case code == KeptUnknown:
		return fmt.Sprintf("kept, because it isn't known whether it was used within %s: %s", k.UsedWithin, k.unknown)
	case code == KeptPlatform:
		return "kept: " + platformText
	case code == KeptUsed && t.Used().After(t.Created):
		return fmt.Sprintf("kept: last used at %s, within %s", Stamp(t.Used()), k.UsedWithin)
	case code == KeptUsed:
		return fmt.Sprintf("kept: pushed at %s, within %s", Stamp(t.Created), k.UsedWithin)
	case k.overflow:
		return "kept, because there are too many groups to compare the tags in each"
	}
	return "kept: " + k.String()
}

// keptNotices returns what the keep rules of policy i can't judge. They then keep more tags.
func (v *Verdict) keptNotices(i int) (texts []string) {
	for _, k := range v.rules[i].keepers {
		if k.tags != nil && k.tags.unknown > 0 {
			texts = append(texts, fmt.Sprintf("its keep rule \"%s\" keeps %d tags, of whose images not all have a platform that is known", k.KeepRule, k.tags.unknown))
		}
		if k.unknown != "" {
			texts = append(texts, fmt.Sprintf("its keep rule usedWithin %s keeps every tag: %s", k.UsedWithin, k.unknown))
		}
		if k.overflow {
			texts = append(texts, fmt.Sprintf("its keep rule \"%s\" keeps the tags of all groups: there are more than %d groups", k.KeepRule, v.maxGroups))
		}
	}
	return texts
}

// KeptBy returns whether keep rule `place` of policy i keeps the tag.
func (v *Verdict) KeptBy(i, place int, t *Tag) bool {
	r := &v.rules[i]
	_, kept := r.keepers[place].keeps(t, r.policy.RemoveOrphans && t.Orphan())
	return kept
}
