package autoprune

import (
	"fmt"
	"iter"
	"time"
)

// maxGroups is how many groups the keep rules with groupBy or versions that apply to a
// repository may have in total. A group takes about 200 bytes while tags are judged.
var maxGroups = 100_000

// keeper is a keep rule prepared for a repository.
type keeper struct {
	keepRule
	// cutoff is now minus the age of usedWithin. unknown says why the last use of tags isn't
	// known; the rule then keeps every tag that its policy considers.
	cutoff  time.Time
	unknown string
	// overflow says that there are too many groups. The rule then keeps every tag that
	// belongs to a group.
	overflow bool
	// tags and versions have the newest tags or versions of each group. They are needed only
	// while the tags are surveyed.
	tags     map[string]*newest
	versions map[string]*newestVersions
	// oldestTag and oldestVersion are the oldest of the newest N tags or versions of those
	// groups that have at least N: what is older isn't kept. Of other groups everything is.
	oldestTag     map[string]rank
	oldestVersion map[string]*version
}

func newKeepers(policy Policy, now time.Time, pulls PullRecord) []keeper {
	keepers := make([]keeper, len(policy.keep))
	for i, rule := range policy.keep {
		k := &keepers[i]
		k.keepRule = rule
		switch rule.kind {
		case keepUsed:
			k.cutoff = now.Add(-rule.used.Duration())
			k.unknown = pulls.problem(rule.used, k.cutoff)
		case keepNewest:
			k.tags, k.oldestTag = make(map[string]*newest), make(map[string]rank)
		case keepVersions:
			k.versions, k.oldestVersion = make(map[string]*newestVersions), make(map[string]*version)
		case keepPattern:
		}
	}
	return keepers
}

// counts returns whether the rule keeps a number of tags or of versions.
func (k *keeper) counts() bool { return k.newest > 0 }

// group returns the group of a tag for a rule that counts tags. ok is false if the tag
// belongs to none.
func (k *keeper) group(tag string) (key string, ok bool) {
	if k.groupBy.IsZero() {
		return "", true
	}
	return k.groupBy.Group(tag)
}

// version returns the version in a tag's name, and its group. ok is false if the rule keeps
// no such tag.
func (k *keeper) version(tag string) (v version, key string, ok bool) {
	v, ok = parseVersion(tag)
	if !ok || v.prerelease != (k.keepRule.versions == NewestPrereleases) {
		return v, "", false
	}
	if k.keepRule.versions == NewestPatches {
		return v, v.numbers[0] + "." + v.numbers[1] + "-" + v.variant, true
	}
	return v, v.variant, true
}

// grouped returns whether the rule has any number of groups.
func (k *keeper) grouped() bool { return k.kind == keepVersions || !k.groupBy.IsZero() }

// see counts a tag, and returns the number of groups that this adds.
func (k *keeper) see(t *Tag) (added int) {
	if k.overflow {
		return 0
	}
	if k.kind == keepNewest {
		key, ok := k.group(t.Name)
		if !ok {
			return 0
		}
		group := k.tags[key]
		if group == nil {
			group = &newest{limit: k.newest}
			k.tags[key] = group
			if k.grouped() {
				added = 1
			}
		}
		group.add(rank{created: t.Created, name: t.Name})
		return added
	}
	v, key, ok := k.version(t.Name)
	if !ok {
		return 0
	}
	group := k.versions[key]
	if group == nil {
		group, added = &newestVersions{limit: k.newest}, 1
		k.versions[key] = group
	}
	group.add(&v)
	return added
}

// settle is called when all tags were counted.
func (k *keeper) settle() {
	for key, group := range k.tags {
		if r, full := group.oldest(); full {
			k.oldestTag[key] = r
		}
	}
	for key, group := range k.versions {
		if v := group.oldest(); v != nil {
			k.oldestVersion[key] = v
		}
	}
	k.tags, k.versions = nil, nil
}

// keeps returns whether the rule keeps a tag that its policy considers, and the code of the
// reason. `orphan` says that the tag is an orphan and the policy removes orphans.
func (k *keeper) keeps(t *Tag, orphan bool) (Code, bool) {
	if orphan && k.counts() {
		return "", false
	}
	switch k.kind {
	case keepNewest:
		key, ok := k.group(t.Name)
		if !ok {
			return "", false
		}
		oldest, full := k.oldestTag[key]
		return KeptNewest, !full || rank{created: t.Created, name: t.Name}.compare(oldest) >= 0
	case keepVersions:
		v, key, ok := k.version(t.Name)
		if !ok {
			return "", false
		}
		oldest := k.oldestVersion[key]
		return KeptVersion, oldest == nil || v.compare(oldest) >= 0
	case keepPattern:
		return KeptPattern, k.pattern.Match(t.Name)
	case keepUsed:
		switch {
		case !t.Created.Before(k.cutoff), k.unknown == "" && !t.used().Before(k.cutoff):
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
	known := false
	for i := range v.rules {
		r := &v.rules[i]
		if !r.countsKept || t.Exempt.Has(i) || r.policy.orphans && t.orphan() || !r.considers(t) {
			continue
		}
		if !known && v.protected(t.Name) {
			return
		}
		known = true
		for place := range r.keepers {
			if k := &r.keepers[place]; k.counts() {
				v.groups += k.see(t)
			}
		}
	}
	if v.groups <= maxGroups || v.overflow {
		return
	}
	v.overflow = true
	for k := range v.keepers() {
		if k.grouped() {
			k.overflow, k.tags, k.versions = true, nil, nil
		}
	}
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
			if code, ok := r.keepers[place].keeps(t, r.policy.orphans && t.orphan()); ok {
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
		return fmt.Sprintf("kept, because it isn't known whether it was used within %s: %s", k.used, k.unknown)
	case code == KeptUsed && t.used().After(t.Created):
		return fmt.Sprintf("kept: last used at %s, within %s", stamp(t.used()), k.used)
	case code == KeptUsed:
		return fmt.Sprintf("kept: pushed at %s, within %s", stamp(t.Created), k.used)
	case k.overflow:
		return "kept, because there are too many groups to compare the tags in each"
	}
	return "kept: " + k.form().String()
}

// keptNotices returns what the keep rules of policy i can't judge. They then keep more tags.
func (v *Verdict) keptNotices(i int) (texts []string) {
	for _, k := range v.rules[i].keepers {
		if k.unknown != "" {
			texts = append(texts, fmt.Sprintf("its keep rule usedWithin %s keeps every tag: %s", k.used, k.unknown))
		}
		if k.overflow {
			texts = append(texts, fmt.Sprintf("its keep rule \"%s\" keeps the tags of all groups: there are more than %d groups", k.form(), maxGroups))
		}
	}
	return texts
}
