package autoprune_test

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// oracleCounting says what a policy by number, or a keep rule with newest, counts.
type oracleCounting struct {
	GroupBy     *string
	CountImages bool
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
func (c oracleCounting) grouped() bool { return c.GroupBy != nil }

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
		if _, ok := r.groupOf(t); !ok {
			f.ungrouped = true
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
func (c oracleCounting) inGroup(group string, tags []oracleTag) (list []oracleTag) {
	for _, t := range tags {
		if other, ok := c.groupOf(t); ok && other == group {
			list = append(list, t)
		}
	}
	return list
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
			group, _ := r.groupOf(t)
			found[group] = true
		}
		groups += len(found)
	}
	for _, r := range rules {
		for _, k := range r.Keep {
			found := map[string]bool{}
			for _, t := range tags {
				if group, _, ok := k.group(t.name); ok && k.grouped() && r.counts(in, t, fates[t.name]) {
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
	return text
}
