package judge

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// version is a tag's name, read as a version.
type version struct {
	numbers    [3]string // major, minor, patch, without leading zeros
	prerelease bool
	pieces     []string // of the prerelease: numbers without leading zeros, and lowercase words
	variant    string
}

var versionForm = regexp.MustCompile(`^[vV]?([0-9]+)\.([0-9]+)\.([0-9]+)(?:-([0-9A-Za-z.-]+))?(?:_[0-9A-Za-z._-]+)?$`)

// prereleaseWords begin the parts of a version's suffix that make it a prerelease.
var prereleaseWords = []string{"alpha", "beta", "rc", "pre", "preview", "dev", "snapshot", "nightly", "canary", "m"}

// IsRelease returns whether a tag's name is a version that is no prerelease.
func IsRelease(tag string) bool {
	v, ok := parseVersion(tag)
	return ok && !v.prerelease
}

// parseVersion reads a tag's name as a version: three numbers, then perhaps a suffix such as
// -rc.1 or -alpine3.20, and a build after _, which it ignores. The page on auto-pruning,
// section "Keep versions", defines the syntax. ok is false for all other names.
func parseVersion(tag string) (v version, ok bool) {
	found := versionForm.FindStringSubmatch(tag)
	if found == nil {
		return version{}, false
	}
	for i := range v.numbers {
		v.numbers[i] = plainNumber(found[i+1])
	}
	if found[4] == "" {
		return v, true
	}
	var variant []string
	inVariant := false
	for part := range strings.SplitSeq(strings.ToLower(found[4]), "-") {
		word := part[:len(part)-len(strings.TrimLeft(part, letters))]
		if word != "" {
			inVariant = !slices.Contains(prereleaseWords, word)
		}
		switch {
		case !inVariant:
			v.prerelease = true
			v.pieces = append(v.pieces, pieces(part)...)
		case word != "":
			variant = append(variant, word)
		}
	}
	v.variant = strings.Join(variant, "-")
	return v, true
}

const (
	letters = "abcdefghijklmnopqrstuvwxyz"
	digits  = "0123456789"
)

// pieces divides a part of a prerelease at dots, and between letters and digits.
func pieces(part string) (list []string) {
	for part != "" {
		rest := strings.TrimLeft(part, digits)
		if len(rest) < len(part) {
			list = append(list, plainNumber(part[:len(part)-len(rest)]))
			part = rest
			continue
		}
		if rest = strings.TrimLeft(part, letters); len(rest) < len(part) {
			list = append(list, part[:len(part)-len(rest)])
			part = rest
			continue
		}
		part = part[1:] // a dot
	}
	return list
}

// plainNumber removes leading zeros.
func plainNumber(text string) string {
	if text = strings.TrimLeft(text, "0"); text == "" {
		return "0"
	}
	return text
}

// compare returns a negative number if v is older than other, a positive one if it is newer,
// and 0 if both are the same version. It ignores variants.
func (v *version) compare(other *version) int {
	for i := range v.numbers {
		if c := compareNumbers(v.numbers[i], other.numbers[i]); c != 0 {
			return c
		}
	}
	switch {
	case v.prerelease != other.prerelease && v.prerelease:
		return -1
	case v.prerelease != other.prerelease:
		return 1
	}
	return slices.CompareFunc(v.pieces, other.pieces, comparePieces)
}

// compareNumbers compares numbers of any length that have no leading zeros.
func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func comparePieces(a, b string) int {
	switch aNumber, bNumber := a[0] <= '9', b[0] <= '9'; {
	case aNumber && bNumber:
		return compareNumbers(a, b)
	case aNumber:
		return -1
	case bNumber:
		return 1
	}
	return strings.Compare(a, b)
}

// newestVersions finds the `limit` newest of the versions that are added to it. Equal
// versions count as one.
type newestVersions struct {
	limit int
	list  []*version // oldest first
}

func (n *newestVersions) add(v *version) {
	i, known := slices.BinarySearchFunc(n.list, v, (*version).compare)
	switch {
	case known, i == 0 && len(n.list) == n.limit:
		return
	case len(n.list) < n.limit:
		n.list = slices.Insert(n.list, i, v)
		return
	}
	copy(n.list, n.list[1:i]) // forget the oldest
	n.list[i-1] = v
}

// oldest returns the oldest of the `limit` newest versions, nil if fewer were added.
func (n *newestVersions) oldest() *version {
	if len(n.list) < n.limit {
		return nil
	}
	return n.list[0]
}
