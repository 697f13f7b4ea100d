package autoprune_test

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// oracleCounting says what a policy by number, or a keep rule with newest, counts.
type oracleCounting struct {
	GroupBy     *string
	CountImages bool
	PerPlatform bool
}

// oraclePlatforms returns the platforms of a tag; none unless each of its images has one that is known.
func oraclePlatforms(in oracleInput, t oracleTag) (platforms []string) {
	for _, image := range oracleImagesOf(in, in.manifests[t.manifest]) {
		if image.platform == "?" || image.platform == "" {
			return nil
		}
		platforms = append(platforms, image.platform)
	}
	return platforms
}

// groupsOf returns the groups of a tag whose name is in the group `name`: one for each platform.
func (c oracleCounting) groupsOf(in oracleInput, name string, t oracleTag) (groups []string) {
	if !c.PerPlatform {
		return []string{name}
	}
	for _, platform := range oraclePlatforms(in, t) {
		groups = append(groups, name+"\x00for "+platform)
	}
	return groups
}

// groupOf returns the group of a tag in which a policy by number counts it. ok is false if the tag
// is in no group.
func (c oracleCounting) groupOf(t oracleTag) (group string, ok bool) {
	if c.GroupBy == nil {
		return "", true
	}
	m := oracleExpression(*c.GroupBy).FindStringSubmatch(t.name)
	if m == nil || strings.Join(m[1:], "") == "" {
		return "", false
	}
	return strings.Join(m[1:], "\x00"), true
}

// grouped reports whether the policy counts in groups.
func (c oracleCounting) grouped() bool { return c.GroupBy != nil || c.PerPlatform }

// newer returns how many of the counted tags or images are newer than tag t or its image. `counted`
// are the counted tags of its group, and `looked` the tags of its group that are looked at.
func (c oracleCounting) newer(t oracleTag, looked, counted []oracleTag) int {
	if c.CountImages {
		for _, u := range looked {
			if u.manifest == t.manifest && u.newer(t) {
				t = u
			}
		}
	}
	newer := map[string]bool{}
	for _, u := range counted {
		switch {
		case !u.newer(t):
		case !c.CountImages:
			newer[u.name] = true
		case u.manifest != t.manifest:
			newer[u.manifest] = true
		}
	}
	return len(newer)
}

// oracleCounted returns the tags that a policy by number selects from, and among them those that it
// may delete, and those that it counts.
func oracleCounted(in oracleInput, r oracleRule, tags []oracleTag, fates map[string]oracleFate) (looked, mayGo, counted []oracleTag) {
	for _, t := range tags {
		f := fates[t.name]
		if !r.looksAt(in, t) || f.orphan && r.removesOrphans() {
			continue
		}
		name, ok := r.groupOf(t)
		if !ok || len(r.groupsOf(in, name, t)) == 0 {
			f.ungrouped, f.unplatformed = f.ungrouped || !ok, f.unplatformed || ok
			fates[t.name] = f
			continue
		}
		looked = append(looked, t)
		if f.protected || t.exempt[r.index] {
			continue
		}
		mayGo = append(mayGo, t)
		if len(f.selected) == 0 && !f.exempt && !f.unjudged && !f.waits {
			counted = append(counted, t)
		}
	}
	return looked, mayGo, counted
}

// inGroup returns the tags of a group.
func (c oracleCounting) inGroup(in oracleInput, group string, tags []oracleTag) (list []oracleTag) {
	for _, t := range tags {
		if name, ok := c.groupOf(t); ok && slices.Contains(c.groupsOf(in, name, t), group) {
			list = append(list, t)
		}
	}
	return list
}

// keepsNewest returns the kind of a rule with newest and without versions if it keeps tag t, whose
// name is in the group `name`, and "" otherwise.
func (k oracleKeep) keepsNewest(in oracleInput, r oracleRule, tags []oracleTag, fates map[string]oracleFate, t oracleTag, name string) string {
	groups := k.groupsOf(in, name, t)
	if len(groups) == 0 {
		return "platform not known"
	}
	for _, group := range groups {
		var looked, counted []oracleTag
		for _, u := range tags {
			other, _, ok := k.group(u.name)
			if !ok || !slices.Contains(k.groupsOf(in, other, u), group) || !r.looksAt(in, u) || fates[u.name].orphan && r.removesOrphans() {
				continue
			}
			looked = append(looked, u)
			if r.counts(in, u, fates[u.name]) {
				counted = append(counted, u)
			}
		}
		if k.newer(t, looked, counted) >= *k.Newest {
			continue
		}
		switch {
		case k.CountImages:
			return "newest images"
		case k.PerPlatform:
			return "newest of platform"
		case k.GroupBy != nil:
			return "newest of group"
		}
		return "newest"
	}
	return ""
}

// oracleGroups returns how many groups the policies by number that select, and the keep rules of all
// policies, find. It must be called when policies by age have selected their tags.
func oracleGroups(in oracleInput, selecting, rules []oracleRule, tags []oracleTag, fates map[string]oracleFate) (groups int) {
	for _, r := range selecting {
		if r.Method != "number_of_tags" || !r.grouped() {
			continue
		}
		found := map[string]bool{}
		_, _, counted := oracleCounted(in, r, tags, fates)
		for _, t := range counted {
			name, _ := r.groupOf(t)
			for _, group := range r.groupsOf(in, name, t) {
				found[group] = true
			}
		}
		groups += len(found)
	}
	for _, r := range rules {
		for _, k := range r.Keep {
			found := map[string]bool{}
			for _, t := range tags {
				name, _, ok := k.group(t.name)
				if !ok || !k.grouped() || !r.counts(in, t, fates[t.name]) {
					continue
				}
				for _, group := range k.groupsOf(in, name, t) {
					found[group] = true
				}
			}
			groups += len(found)
		}
	}
	return groups
}

// drawOracleCounting draws the members of a policy by number that say what it counts.
func drawOracleCounting(t *rapid.T) (text string) {
	if often(t, 3) {
		text += fmt.Sprintf(`, "groupBy": %q`, draw(t, `^([a-z]+)`, `^(v)?.*?([0-9])$`, `^(x|pr-)`, `^(.*)-`, `^(v)?`))
	}
	if often(t, 3) {
		text += `, "countImages": true`
	}
	if often(t, 3) {
		text += `, "perPlatform": true`
	}
	return text
}
