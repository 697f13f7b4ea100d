package autoprune

import (
	"fmt"
	"slices"

	"github.com/purser-registry/purser/internal/oci"
)

// warnings returns what was found, in words.
func (j *judging) warnings() (list []Warning) {
	if j.policy != nil {
		list = j.ofPolicy()
	}
	add := func(code WarningCode, e examples, format string, args ...any) {
		if e.n > 0 {
			list = append(list, Warning{Code: code, Text: fmt.Sprintf(format, args...), Number: e.n, Examples: e.first})
		}
	}
	if j.target.Scope() == DefaultScope && j.change.Policy != nil && !j.change.Setting {
		most := ""
		if j.reached.n == maxReached {
			most = "at least "
		}
		add(Reaches, j.reached, "it applies in %s%s", most, count(j.reached.n, "namespace"))
	}
	what := "without the policy"
	if j.change.Policy != nil && j.policy != nil && j.policy.guard.mode == j.old.mode() {
		what = "without what the policy kept until now"
	}
	add(Uncovers, j.uncovered, "%s, policies would delete %s that they leave now", what, count(j.uncovered.n, "tag"))
	if j.partial {
		list = append(list, Warning{Code: NotAllJudged, Text: fmt.Sprintf("there was no time to judge it by all tags: %s in %s were looked at",
			count(j.tags, "tag"), count(j.repositories, "repository"))})
	}
	return list
}

// mode returns the policy's mode; "" is on.
func (s *Saved) mode() Mode {
	if s == nil {
		return ""
	}
	return s.Policy.guard.mode
}

// ofPolicy returns the warnings about the policy as it shall be.
func (j *judging) ofPolicy() (list []Warning) {
	add := func(code WarningCode, e examples, format string, args ...any) {
		if e.n > 0 {
			list = append(list, Warning{Code: code, Text: fmt.Sprintf(format, args...), Number: e.n, Examples: e.first})
		}
	}
	for _, w := range j.policy.typed() {
		// If all tags were judged, the warning Unanchored is given only if the pattern is found within
		// names of tags, with these names as examples; ShellPattern replaces it.
		if w.Code != Unanchored || j.considered == 0 || j.partial {
			list = append(list, w)
			continue
		}
		found := j.within(w.pattern)
		if w.Number, w.Examples = found.n, found.first; found.n > 0 && (j.shell.n == 0 || w.pattern != j.policy.pattern) {
			list = append(list, w)
		}
	}
	if pattern := j.policy.pattern; j.shell.n > 0 {
		add(ShellPattern, j.shell, "%s is a regular expression, in which a star repeats the character before it; if %s was meant, it also selects %s",
			quoted(pattern), quoted(j.glob), count(j.shell.n, "tag"))
	}
	verb := "would delete"
	if !j.policy.method.counts() {
		verb = "deletes, once they are old enough,"
	}
	add(SelectsLatest, j.latest, "it %s %s with the name latest", verb, count(j.latest.n, "tag"))
	are := "are releases"
	if j.releases.n == 1 {
		are = "is a release"
	}
	add(SelectsReleases, j.releases, "it %s %s that %s", verb, count(j.releases.n, "tag"), are)
	if j.selected*2 > j.tags {
		list = append(list, Warning{Code: SelectsMost, Number: j.selected, Text: fmt.Sprintf("it would delete %d of %s now, more than half", j.selected, count(j.tags, "tag"))})
	}
	for i, k := range j.policy.keep {
		if j.considered > 0 && !j.keeps[i] && !j.partial {
			list = append(list, Warning{Code: KeepsNothing, Text: fmt.Sprintf("its keep rule %q keeps none of %s that it looks at", k.form().String(), count(j.considered, "tag"))})
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
func (j *judging) ofRepositories() (list []Warning) {
	if j.partial || j.target.Scope() == DefaultScope && j.reached.n == 0 {
		return nil
	}
	for i, pattern := range j.policy.where.repositories {
		if j.matches[i] {
			continue
		}
		text := fmt.Sprintf("%s matches no repository", pattern)
		if !slices.Contains(j.matches, true) {
			text += ", so the policy deletes nothing"
			if j.target.Scope() == NamespaceScope && j.old == nil {
				text += ", and the registry's default policies don't apply in the namespace any more"
			}
		}
		list = append(list, Warning{Code: NoRepository, Text: text})
	}
	return list
}

// count writes a number of things.
func count(n int64, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case what == "repository":
		return fmt.Sprintf("%d repositories", n)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
