package warnings

import (
	"fmt"
	"slices"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// warnings returns what was found, in words.
func (j *judging) warnings() (list []policy.Warning) {
	if j.policy != nil {
		list = j.ofPolicy()
	}
	add := func(code policy.WarningCode, e examples, format string, args ...any) {
		if e.n > 0 {
			list = append(list, policy.Warning{Code: code, Text: fmt.Sprintf(format, args...), Number: e.n, Examples: e.first})
		}
	}
	if j.target.Scope() == policy.DefaultScope && j.change.Policy != nil && !j.change.Setting {
		most := ""
		if j.reached.n == maxReached {
			most = "at least "
		}
		add(policy.Reaches, j.reached, "it applies in %s%s", most, policy.Number(j.reached.n, "namespace"))
	}
	add(policy.Uncovers, j.uncovered, "%s, policies would delete %s that they leave now", j.uncoveredBy(), policy.Number(j.uncovered.n, "tag"))
	if j.partial {
		list = append(list, policy.Warning{Code: policy.NotAllJudged, Text: fmt.Sprintf("there was no time to judge it by all tags: %s in %s were looked at",
			policy.Number(j.tags, "tag"), policy.Number(j.repositories, "repository"))})
	}
	return list
}

// uncoveredBy says how the change lets policies delete more.
func (j *judging) uncoveredBy() string {
	on := j.change.Defaults
	switch {
	case on != nil && *on:
		return "with the registry's default policies"
	case on != nil:
		return "without the registry's default policies"
	case j.change.Policy != nil && j.policy != nil && j.policy.Mode == j.oldMode():
		return "without what the policy kept until now"
	}
	return "without the policy"
}

// oldMode returns the mode that the policy has before the change; "" is on, also if there is none.
func (j *judging) oldMode() policy.Mode {
	if j.old == nil {
		return ""
	}
	return j.old.Policy.Mode
}

// ofPolicy returns the warnings about the policy as it shall be.
func (j *judging) ofPolicy() (list []policy.Warning) {
	add := func(code policy.WarningCode, e examples, format string, args ...any) {
		if e.n > 0 {
			list = append(list, policy.Warning{Code: code, Text: fmt.Sprintf(format, args...), Number: e.n, Examples: e.first})
		}
	}
	for _, w := range j.policy.Typed() {
		// If all tags were judged, the warning Unanchored is given only if the pattern is found within
		// names of tags, with these names as examples; ShellPattern replaces it.
		if w.Code != policy.Unanchored || j.considered == 0 || j.partial {
			list = append(list, w)
			continue
		}
		found := j.within(w.Pattern)
		if w.Number, w.Examples = found.n, found.first; found.n > 0 && (j.shell.n == 0 || w.Pattern != j.policy.TagPattern) {
			list = append(list, w)
		}
	}
	if pattern := j.policy.TagPattern; j.shell.n > 0 {
		add(policy.ShellPattern, j.shell, "%s is a regular expression, in which a star repeats the character before it; if %s was meant, it also selects %s",
			policy.Quoted(pattern), policy.Quoted(j.glob), policy.Number(j.shell.n, "tag"))
	}
	verb := "would delete"
	if !j.policy.Method.Counts() {
		verb = "deletes, once they are old enough,"
	}
	add(policy.SelectsLatest, j.latest, "it %s %s with the name latest", verb, policy.Number(j.latest.n, "tag"))
	are := "are releases"
	if j.releases.n == 1 {
		are = "is a release"
	}
	add(policy.SelectsReleases, j.releases, "it %s %s that %s", verb, policy.Number(j.releases.n, "tag"), are)
	if j.selected*2 > j.tags {
		list = append(list, policy.Warning{Code: policy.SelectsMost, Number: j.selected, Text: fmt.Sprintf("it would delete %d of %s now, more than half", j.selected, policy.Number(j.tags, "tag"))})
	}
	for i, k := range j.policy.Keep {
		if j.considered > 0 && !j.keeps[i] && !j.partial {
			list = append(list, policy.Warning{Code: policy.KeepsNothing, Text: fmt.Sprintf("its keep rule %q keeps none of %s that it looks at", k.String(), policy.Number(j.considered, "tag"))})
		}
	}
	return append(append(list, j.ofReporters()...), j.ofRepositories()...)
}

// within returns the tags within whose names a pattern without anchors is found.
func (j *judging) within(pattern oci.TagPattern) examples {
	i := slices.IndexFunc(j.inside, func(p insidePattern) bool { return p.TagPattern == pattern })
	if i < 0 {
		return examples{}
	}
	return j.inside[i].found
}

// ofRepositories returns the warnings about patterns of repositories.
func (j *judging) ofRepositories() (list []policy.Warning) {
	if j.partial || j.target.Scope() == policy.DefaultScope && j.reached.n == 0 {
		return nil
	}
	for i, pattern := range j.policy.Repositories {
		if j.matches[i] {
			continue
		}
		text := fmt.Sprintf("%s matches no repository", pattern)
		if !slices.Contains(j.matches, true) {
			text += ", so the policy deletes nothing"
			if j.target.Scope() == policy.NamespaceScope && j.old == nil {
				text += ", and the registry's default policies don't apply in the namespace any more"
			}
		}
		list = append(list, policy.Warning{Code: policy.NoRepository, Text: text})
	}
	return list
}
