package judge

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]string{
		"v1.4.2": "release", "V1.4.2": "release", "1.4.2_build.5": "release", "2024.01.05": "release",
		"99999999999999999999999999.0.0": "release",
		"1.4.2-rc.1":                     "prerelease", "1.4.2-RC1": "prerelease", "1.4.2-20260301": "prerelease", "1.4.2--": "prerelease",
		"1.4.2-m3": "prerelease", "1.4.2-SNAPSHOT_5": "prerelease", "1.4.2-.x": "prerelease",
		"1.4.2-alpine": "release alpine", "1.4.2-Alpine3.20": "release alpine", "1.4.2-rc.1-alpine3.20": "prerelease alpine",
		"1.4.2-alpine3.20-rc.1": "prerelease alpine", "1.4.2-debian-12-r3": "release debian-r", "1.4.2-slim-bookworm": "release slim-bookworm",
		"1.4.2-rc1-2": "prerelease", "1.4.2-mac": "release mac", "1.4.2-12-alpine": "prerelease alpine", "1.4.2-alpine--": "release alpine",
		"1": "", "1.4": "", "v1.4": "", "1.4.2.3": "", "1.4.2-": "", "1.4.2_": "", "x1.4.2": "", "1.4.2rc1": "", "vv1.4.2": "", "1.4.2-a_": "",
	} {
		v, ok := parseVersion(tag)
		got := ""
		switch {
		case ok && v.prerelease:
			got = "prerelease " + v.variant
		case ok:
			got = "release " + v.variant
		}
		if got = strings.TrimSpace(got); got != want {
			t.Errorf("%s is read as %q, want %q", tag, got, want)
		}
	}
}

// TestCompareVersions compares each pair of a list in ascending order; versions on one line
// are equal.
func TestCompareVersions(t *testing.T) {
	t.Parallel()
	lines := []string{
		"0.0.0--", "0.0.0", "0.0.9", "0.0.10 0.0.010",
		"1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-20260301",
		"1.0.0-alpha", "1.0.0-alpha.1 1.0.0-alpha1 1.0.0-ALPHA.01", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
		"1.0.0-rc.1 v1.0.0-RC1 1.0.0-rc1_b5", "1.0.0-rc9", "1.0.0-rc10", "1.0.0-rc10.1 1.0.0-rc10-1",
		"1.0.0 v1.0.0 1.0.0_b2 1.0.0-alpine 01.0.00", "1.0.1", "1.1.0", "1.10.0", "2.0.0", "2024.1.5 2024.01.05", "99999999999999999999.0.0",
	}
	for i, a := range lines {
		for k, b := range lines {
			for a := range strings.FieldsSeq(a) {
				for b := range strings.FieldsSeq(b) {
					va, okA := parseVersion(a)
					vb, okB := parseVersion(b)
					got := va.compare(&vb)
					if !okA || !okB || got < 0 != (i < k) || got > 0 != (i > k) {
						t.Errorf("%s compared with %s: %d", a, b, got)
					}
				}
			}
		}
	}
}

// TestNewestVersions compares newestVersions with sorting.
func TestNewestVersions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOf(rapid.IntRange(0, 20)).Draw(t, "patches")
		limit := rapid.IntRange(1, 6).Draw(t, "limit")
		n, seen := newestVersions{limit: limit}, [21]bool{}
		for _, patch := range numbers {
			n.add(&version{numbers: [3]string{"1", "0", string(rune('a' + patch))}})
			seen[patch] = true
		}
		want, left := "", limit
		for patch := 20; patch >= 0 && want == ""; patch-- {
			if seen[patch] {
				if left--; left == 0 {
					want = string(rune('a' + patch))
				}
			}
		}
		got := ""
		if v := n.oldest(); v != nil {
			got = v.numbers[2]
		}
		if got != want || len(n.list) > limit {
			t.Fatalf("the oldest of the newest %d of %v is %q, want %q", limit, numbers, got, want)
		}
	})
}
