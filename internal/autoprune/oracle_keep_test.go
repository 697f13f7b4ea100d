package autoprune_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oracleKeeps applies the keep rules of all policies to all tags.
func oracleKeeps(in oracleInput, rules []oracleRule, tags []oracleTag, fates map[string]oracleFate, tooMany bool) {
	for _, r := range rules {
		for _, t := range tags {
			if f := fates[t.name]; len(r.Keep) > 0 && r.inDoubt(in, t) {
				f.kept = append(f.kept, "in doubt "+strconv.Itoa(r.index))
				fates[t.name] = f
			}
		}
		for _, k := range r.Keep {
			for _, t := range tags {
				if !r.looksAt(in, t) {
					continue
				}
				if kind := k.keeps(in, r, tags, fates, t, tooMany); kind != "" {
					f := fates[t.name]
					f.kept = append(f.kept, kind+" "+strconv.Itoa(r.index))
					fates[t.name] = f
				}
			}
		}
	}
}

// counts reports whether the keep rules of the policy count a tag.
func (r oracleRule) counts(in oracleInput, t oracleTag, f oracleFate) bool {
	return r.looksAt(in, t) && !f.protected && !t.exempt[r.index] && !(f.orphan && r.removesOrphans())
}

// grouped reports whether the rule's groups are counted for the limit.
func (k oracleKeep) grouped() bool {
	return k.oracleCounting.grouped() || k.Versions != nil && *k.Versions != "releases"
}

// group returns the group of a tag's name, and its version if the rule counts versions. ok
// is false if the tag has no group.
func (k oracleKeep) group(name string) (group string, v oracleVersion, ok bool) {
	if k.GroupBy != nil {
		m := oracleExpression(*k.GroupBy).FindStringSubmatch(name)
		if m == nil {
			return "", v, false
		}
		return strings.Join(m[1:], "\x00"), v, true
	}
	if k.Versions == nil {
		return "", v, k.Newest != nil
	}
	v, ok = oracleParseVersion(name)
	switch *k.Versions {
	case "newest_patches":
		return strings.Join([]string{v.variant, v.numbers[0], v.numbers[1]}, "\x00"), v, ok && !v.prerelease
	case "newest_prereleases":
		return v.variant, v, ok && v.prerelease
	default:
		return "", v, ok && !v.prerelease
	}
}

// keeps returns the kind of the rule if the rule keeps tag t, and "" otherwise.
func (k oracleKeep) keeps(in oracleInput, r oracleRule, tags []oracleTag, fates map[string]oracleFate, t oracleTag, tooMany bool) string {
	switch {
	case k.TagPattern != nil:
		if oracleFound(*k.TagPattern, t.name) {
			return "pattern"
		}
		return ""
	case k.UsedWithin != nil:
		age := oracleAge(*k.UsedWithin)
		switch {
		case !in.statistics.reaches(in.now, age):
			return "usedWithin without statistics"
		case in.now.Sub(t.pushed) <= age || in.now.Sub(t.used) <= age:
			return "usedWithin"
		}
		return ""
	}
	group, version, ok := k.group(t.name)
	if !ok {
		return ""
	}
	if k.Versions != nil && *k.Versions == "releases" {
		return "releases"
	}
	if fates[t.name].orphan && r.removesOrphans() {
		return ""
	}
	if tooMany && k.grouped() {
		return "too many groups"
	}
	if k.Versions == nil {
		return k.keepsNewest(in, r, tags, fates, t, group)
	}
	var newer []oracleVersion
	for _, u := range tags {
		other, v, ok := k.group(u.name)
		if !ok || other != group || !r.counts(in, u, fates[u.name]) {
			continue
		}
		if v.compare(version) > 0 &&
			!slices.ContainsFunc(newer, func(w oracleVersion) bool { return w.compare(v) == 0 }) {
			newer = append(newer, v)
		}
	}
	limit := 1
	if k.Newest != nil {
		limit = *k.Newest
	}
	if len(newer) < limit {
		return *k.Versions
	}
	return ""
}

type oracleVersion struct {
	numbers    [3]string // without leading zeros
	prerelease bool
	pieces     []string
	variant    string
}

var (
	oracleVersionForm = regexp.MustCompile(`^[vV]?([0-9]+)\.([0-9]+)\.([0-9]+)(-[0-9A-Za-z.-]+)?(_[0-9A-Za-z._-]+)?$`)
	oracleWord        = regexp.MustCompile(`^[a-z]*`)
	oraclePiece       = regexp.MustCompile(`[a-z]+|[0-9]+`)
)

func oracleParseVersion(name string) (v oracleVersion, ok bool) {
	m := oracleVersionForm.FindStringSubmatch(name)
	if m == nil {
		return v, false
	}
	for i := range v.numbers {
		v.numbers[i] = strings.TrimLeft(m[i+1], "0")
	}
	if m[4] == "" {
		return v, true
	}
	words := []string{"alpha", "beta", "rc", "pre", "preview", "dev", "snapshot", "nightly", "canary", "m"}
	inPrerelease := true
	var variant []string
	for _, part := range strings.Split(strings.ToLower(m[4][1:]), "-") {
		word := oracleWord.FindString(part)
		if word != "" {
			inPrerelease = slices.Contains(words, word)
		}
		switch {
		case inPrerelease:
			v.prerelease = true
			v.pieces = append(v.pieces, oraclePiece.FindAllString(part, -1)...)
		case word != "":
			variant = append(variant, word)
		}
	}
	v.variant = strings.Join(variant, "-")
	return v, true
}

// compare returns a number below, equal to or above 0 if v is older than, equal to or newer than w.
func (v oracleVersion) compare(w oracleVersion) int {
	for i := range v.numbers {
		if c := oracleCompareNumbers(v.numbers[i], w.numbers[i]); c != 0 {
			return c
		}
	}
	if v.prerelease != w.prerelease {
		if v.prerelease {
			return -1
		}
		return 1
	}
	for i := 0; i < len(v.pieces) && i < len(w.pieces); i++ {
		a, b := v.pieces[i], w.pieces[i]
		aDigit, bDigit := a[0] <= '9', b[0] <= '9'
		c := strings.Compare(a, b)
		switch {
		case aDigit && bDigit:
			c = oracleCompareNumbers(a, b)
		case aDigit:
			c = -1
		case bDigit:
			c = 1
		}
		if c != 0 {
			return c
		}
	}
	return len(v.pieces) - len(w.pieces)
}

func oracleCompareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
