package autoprune_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/testscale"
)

// oracleKinds are the reasons for which some tag of the drawn scenes must go or stay.
var oracleKinds = []string{
	"goes: age", "goes: last use", "goes: number", "goes: number of group", "in no group", "goes: number of images", "goes: number of platform", "its platforms aren't known", "goes: bytes", "goes: orphan", "goes: attached", "its last use isn't known",
	"goes by a policy of default", "goes by a policy of setting", "goes by a policy of namespace", "goes by a policy of repository",
	"kept: newest", "kept: newest of group", "kept: newest images", "kept: newest of platform", "kept: platform not known", "kept: usedWithin", "kept: usedWithin without statistics", "kept: pattern",
	"kept: releases", "kept: newest_patches", "kept: newest_prereleases", "kept from another policy only",
	"protected from a policy", "exempt", "exempt attached tag", "no statistics", "attached tag of an image that stays", "orphan that stays",
	"goes: attached, with an index", "scene without tags", "scene of 38 tags and more", "scene of 5 policies and more",
	"kept: neverBelow", "waits", "would go", "would go attached", "asks", "stays within its cap", "rests",
	"selects: mediaTypes", "selects: artifactTypes", "selects: largerThan", "selects: smallerThan", "selects: repositories",
	"selects: annotations", "selects: labels", "selects: platforms", "in doubt", "kept: in doubt",
}

// count adds the kinds of the scene's tags to `seen`, which has the number of scenes by kind.
func (s oracleScene) count(fates map[string]oracleFate, seen map[string]int) {
	scene := map[string]bool{
		"scene without tags":           len(s.tags) == 0,
		"scene of 38 tags and more":    len(s.tags) >= 38,
		"scene of 5 policies and more": len(s.policies) >= 5,
	}
	asks := s.asks()
	for i, p := range s.policies {
		scene["asks"] = scene["asks"] || asks[i]
		scene["rests"] = scene["rests"] || strings.Contains(p.text, `"quiet"`) || strings.Contains(p.text, `"never"`)
		scene["stays within its cap"] = scene["stays within its cap"] || !asks[i] && strings.Contains(p.text, "maxDeleted") &&
			slices.ContainsFunc(s.tags, func(t oracleTag) bool { return fates[t.name].goes && slices.Contains(fates[t.name].policies(), i) })
	}
	for _, t := range s.tags {
		f := fates[t.name]
		image, _ := oracleImage(s.oracleInput, t)
		kinds := map[string]bool{
			"goes: attached, with an index": f.goes && f.attached && slices.ContainsFunc(s.tags, func(u oracleTag) bool {
				return oracleContains(s.oracleInput, u.manifest, image, 0)
			}),
			"protected from a policy":             f.protected && len(f.selected) > 0,
			"exempt":                              f.exempt && !f.attached,
			"exempt attached tag":                 f.attached && len(t.exempt) > 0,
			"no statistics":                       f.unjudged,
			"attached tag of an image that stays": f.attached && !f.goes,
			"orphan that stays":                   f.orphan && !f.goes,
			"waits":                               f.waits,
			"its last use isn't known":            f.unplaced,
			"in doubt":                            f.doubted,
			"in no group":                         f.ungrouped,
			"its platforms aren't known":          f.unplatformed,
			"too many groups":                     f.tooMany && !f.goes,
		}
		for _, selected := range f.selected {
			if f.goes {
				kinds["goes: "+selected[:strings.LastIndexByte(selected, ' ')]] = true
			}
		}
		for _, i := range f.policies() {
			kinds["goes by a policy of "+s.policies[i].scope] = kinds["goes by a policy of "+s.policies[i].scope] || f.goes
			for _, selector := range []string{"mediaTypes", "artifactTypes", "largerThan", "smallerThan", "repositories", "annotations", "labels", "platforms"} {
				kinds["selects: "+selector] = kinds["selects: "+selector] || f.goes && strings.Contains(s.policies[i].text, selector)
			}
		}
		if len(f.selected) > 0 && !f.protected {
			by := map[string]bool{}
			for _, kept := range f.kept {
				last := strings.LastIndexByte(kept, ' ')
				kinds["kept: "+kept[:last]] = true
				by[kept[last:]] = true
			}
			kinds["kept from another policy only"] = len(by) > 0 &&
				!slices.ContainsFunc(f.selected, func(s string) bool { return by[s[strings.LastIndexByte(s, ' '):]] })
		}
		for kind, is := range kinds {
			scene[kind] = scene[kind] || is
		}
	}
	for kind, is := range scene {
		if is {
			seen[kind]++
		}
	}
}

// countWould counts the kinds of tags that would be deleted if no policy observed or waited.
func (s oracleScene) countWould(fates, would map[string]oracleFate, seen map[string]int) {
	scene := map[string]bool{}
	for name, f := range fates {
		w := would[name]
		scene["would go"] = scene["would go"] || w.goes && !f.goes
		scene["would go attached"] = scene["would go attached"] || w.goes && !f.goes && f.attached
	}
	for kind, is := range scene {
		if is {
			seen[kind]++
		}
	}
}

// compare fails if Evaluate and the oracle disagree about which tags go, and by which
// policies.
func (s oracleScene) compare(t rapid.TB, fates map[string]oracleFate) {
	t.Helper()
	want := map[string][]int{}
	for name, f := range fates {
		if f.goes {
			want[name] = slices.Sorted(slices.Values(f.policies()))
		}
	}
	if got := s.judged(t); !maps.EqualFunc(got, want, slices.Equal) {
		for _, one := range s.tags {
			if g, w := got[one.name], want[one.name]; !slices.Equal(g, w) || (g == nil) != (w == nil) {
				t.Logf("tag %s, pushed %s ago, used %s: goes by %v, the oracle says %+v", one.name, s.now.Sub(one.pushed), one.used, g, fates[one.name])
			}
		}
		t.Fatalf("policies %v of %s (defaults refused: %v), protections %q, statistics %v",
			s.policies, s.repository, s.refuseDefaults, s.protections, s.statistics)
	}
}

// TestOracle compares Evaluate with the oracle, which decides by the documentation alone, in
// random repositories. At night it also fails if a kind of reason never occurs: fewer scenes
// hardly have all of them.
func TestOracle(t *testing.T) {
	t.Parallel()
	compareScenes(t, testscale.Pick(90, 5000), 100_000, oracleKinds)
}

// TestOracleManyGroups compares while keep rules may have only few groups.
func TestOracleManyGroups(t *testing.T) {
	t.Parallel()
	compareScenes(t, testscale.Pick(30, 1000), 6, []string{"kept: too many groups", "kept: newest of group", "too many groups", "goes: number of group"})
}

func compareScenes(t *testing.T, scenes, maxGroups int, kinds []string) {
	seen, done := map[string]int{}, 0
	lacks := func(kind string) bool { return seen[kind] == 0 }
	// Some kinds are rare: a thousand scenes may have none of them.
	for done < scenes || testscale.All && done < 10*scenes && slices.ContainsFunc(kinds, lacks) {
		rapid.Check(t, func(t *rapid.T) {
			s := drawOracleScene(t, "app")
			s.maxGroups = maxGroups
			fates := oracle(s.oracleInput)
			s.compare(t, fates)
			s.count(fates, seen)
			s.would = true
			s.countWould(fates, oracle(s.oracleInput), seen)
			s.compare(t, oracle(s.oracleInput))
			done++
		})
	}
	if testscale.All {
		requireKinds(t, seen, kinds)
	}
}

func requireKinds(t *testing.T, seen map[string]int, kinds []string) {
	t.Helper()
	for _, kind := range lackingKinds(seen, kinds) {
		t.Errorf("no scene has this kind of tag: %s", kind)
	}
	t.Logf("scenes by kind: %v", seen)
}

// lackingKinds returns the kinds of which there was no tag.
func lackingKinds(seen map[string]int, kinds []string) []string {
	return slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return seen[kind] > 0 })
}
