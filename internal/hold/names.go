package hold

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A digest that a reporter found by a name, such as that of a tag, is stored with the name. If a
// later report says of this name that it couldn't be resolved, the digests that the reporter held
// under it stay held: a registry that refuses to tell, or a tag that is gone, must not end them.

const (
	maxNames = 100  // of an item; AnyName stands for more
	maxName  = 1024 // bytes
	// maxFirst is how many unresolved images a reporter shows.
	maxFirst = 20
)

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > maxName:
		return fmt.Errorf("a name has more than %d bytes", maxName)
	case strings.ContainsAny(name, "\n\x00") || !utf8.ValidString(name):
		return errors.New("a name is no text of one line")
	}
	return nil
}

// checkNames returns an item's names in order, each once.
func checkNames(names []string) ([]string, error) {
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	return merge(names, nil), nil
}

// merge returns the names of both lists in order, each once, or AnyName if there are too many.
func merge(a, b []string) []string {
	names := slices.Concat(a, b)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxNames || slices.Contains(names, AnyName) {
		return []string{AnyName}
	}
	return names
}

// compact joins the items of each digest. The items are in the order of their digests.
func compact(items []Item) []Item {
	out := items[:0]
	for _, item := range items {
		if last := len(out) - 1; last >= 0 && out[last].Digest == item.Digest {
			out[last].Names = merge(out[last].Names, item.Names)
			continue
		}
		out = append(out, item)
	}
	return out
}

// names is a set of unresolved names.
type names map[string]bool

func (t *reporting) unresolved() names {
	set := make(names, len(t.report.Unresolved))
	for _, u := range t.report.Unresolved {
		set[u.Name] = true
	}
	return set
}

// any reports whether one of a digest's names is unresolved.
func (n names) any(of []string) bool {
	return slices.ContainsFunc(of, func(name string) bool { return n[name] || name == AnyName && len(n) > 0 })
}

// stay returns the names of a digest that was held under the names `old` and is reported under
// `now`: those of the report, and the old ones that are unresolved. A difference keeps all.
func (n names) stay(old, now []string, all bool) []string {
	return merge(now, slices.DeleteFunc(slices.Clone(old), func(name string) bool { return !all && !n.any([]string{name}) }))
}

// firstUnresolved describes the first unresolved images for people.
func firstUnresolved(list []Unresolved) []string {
	first := []string{}
	for _, u := range list[:min(len(list), maxFirst)] {
		text := u.Name
		if u.UsedBy != "" {
			text += ", used by " + u.UsedBy
		}
		if u.Reason != "" {
			text += ": " + u.Reason
		}
		text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
		if len(text) > 2*maxName {
			text = strings.ToValidUTF8(text[:2*maxName], "")
		}
		first = append(first, text)
	}
	return first
}
