package judge_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// wish is a scene for a policy of the documentation, and the tags that the policy deletes there.
type wish struct {
	tags []judge.Tag
	goes string
}

// wishes has a scene for each wish of the section "What people want to say".
func wishes() map[string]wish {
	used := func(age time.Duration) func(*judge.Tag) {
		return func(t *judge.Tag) { t.Pulled = ago(age) }
	}
	of := func(platforms ...string) func(*judge.Tag) {
		return func(t *judge.Tag) { t.Platforms = strings.Join(platforms, "\x00") }
	}
	var ten, commits []judge.Tag
	for _, digit := range "0123456789" {
		ten = append(ten, tag("new-"+string(digit), day))
		commits = append(commits, tag("main-3f2a9c"+string(digit), 2*day))
	}
	return map[string]wish{
		"Keep releases forever, and everything else for 30 days": {append(ten,
			tag("v1.0.0", 400*day), tag("v1.0.1-rc1", 400*day), tag("production", 400*day), tag("latest", 31*day), tag("pr-7", 31*day),
			tag("main-3f2a9c1", 29*day), tag("old-but-used", 400*day, used(5*day))), "v1.0.1-rc1 pr-7"},
		"Keep images of pull requests for two weeks": {[]judge.Tag{
			tag("pr-7", 15*day), tag("PR-7-3f2a9c1", 15*day), tag("mr-8", 15*day), tag("pr-9", 13*day), tag("prod", 15*day), tag("pr-eu", 15*day),
			tag("prod-7", 15*day), tag("latest", 15*day), tag("my-pr-7", 15*day), tag("pr-7x", 15*day),
		}, "pr-7 PR-7-3f2a9c1 mr-8"},
		"Keep the newest 10 of each branch": {append(commits,
			tag("main-0000000", 3*day), tag("main-20240101", 4*day), tag("x-1234567", 400*day), tag("production", 400*day), tag("v1.4.2", 400*day),
			tag("release-14", 400*day)), "main-0000000 main-20240101"},
		"Keep the newest 3 images, however many tags they have": {[]judge.Tag{
			tag("latest", day, manifest(4)), tag("4", day, manifest(4)), tag("4.0", day, manifest(4)), tag("3", 2*day, manifest(3)), tag("2", 3*day, manifest(2)),
			tag("1", 4*day, manifest(1)), tag("1.0", 5*day, manifest(1)),
		}, "1 1.0"},
		"Keep the newest 3 for each architecture": {[]judge.Tag{
			tag("a1", day, of("linux/amd64")), tag("a2", 2*day, of("linux/amd64")), tag("a3", 3*day, of("linux/amd64")), tag("a4", 4*day, of("linux/amd64")),
			tag("arm", 5*day, of("linux/arm64")), tag("both", 6*day, of("linux/amd64", "linux/arm64")), tag("chart", 400*day),
		}, "a4"},
		"Delete manifests without tags after two weeks, and no tag": {[]judge.Tag{tag("old", 4000*day), tag("latest", day)}, ""},
		"Delete what nobody used for 90 days, but leave each repository its newest 2 tags": {[]judge.Tag{
			tag("a", 100*day), tag("b", 101*day), tag("c", 102*day), tag("d", 103*day, used(day)), tag("v1.0.1", 104*day), tag("v1.0.0", 105*day),
		}, "c v1.0.0"},
		"Let no repository store more than 50 GiB": {[]judge.Tag{
			tag("a", day, manifest(1)), tag("b", 2*day, manifest(2)), tag("c", 3*day, manifest(3)), tag("d", 4*day, manifest(4)), tag("used", 5*day, manifest(5), used(0)),
		}, "c d"},
		"Keep nightly builds for a week, and the newest 2 whatever their age": {[]judge.Tag{
			tag("nightly-5", 8*day), tag("nightly-4", 9*day), tag("nightly-3", 10*day), tag("not-nightly-2", 400*day),
		}, "nightly-3"},
		"Keep the newest patch of each minor version, and other versions for a month": {[]judge.Tag{
			tag("v1.4.2", 400*day), tag("v1.4.1", 401*day), tag("v1.3.9", 500*day), tag("v2.0.0-rc1", 31*day), tag("v2.0.0-rc2", 29*day), tag("latest", 400*day),
		}, "v1.4.1 v2.0.0-rc1"},
	}
}

var oneWish = regexp.MustCompile("(?s)\\*\\*([^*\n]+?):?\\*\\*(?: \\(preset `([a-z-]+)`\\))?:?\n\n```json\n(.*?)\n```")

// TestWishes: what the documentation gives as examples does what it says, and presets are these
// policies.
func TestWishes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/auto-prune.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## What people want to say\n")
	section, _, _ = strings.Cut(section, "\n## ")
	scenes, presets := wishes(), map[string]bool{}
	for _, found := range oneWish.FindAllStringSubmatch(section, -1) {
		title, preset, text := found[1], found[2], found[3]
		scene, ok := scenes[title]
		if !ok {
			t.Errorf("no scene has the wish %q", title)
			continue
		}
		delete(scenes, title)
		r := rules(t)
		p := parsed(t, text)
		r.Policies = []judge.Applied{{ID: "wish", Policy: p}}
		if goes := wishFor(t, r, scene.tags); goes != scene.goes {
			t.Errorf("%s: %q go, want %q", title, goes, scene.goes)
		}
		if preset == "" {
			continue
		}
		presets[preset] = true
		if made, ok := policy.PresetOf(preset); !ok || !parsed(t, made.Policy).Equal(p) {
			t.Errorf("%s: the preset %s is %s", title, preset, made.Policy)
		}
	}
	if len(scenes) > 0 {
		t.Errorf("the documentation has no examples of %d wishes: %v", len(scenes), scenes)
	}
	for _, p := range policy.Presets {
		if !presets[p.Name] {
			t.Errorf("the documentation doesn't have the preset %s", p.Name)
		}
	}
}

// wishFor returns the tags that go, in a repository in which each manifest stores 15 GiB.
func wishFor(t *testing.T, r judge.Rules, tags []judge.Tag) string {
	t.Helper()
	v := evaluateIn(t, r, judge.Repository{
		Tags: judge.Tags(tags),
		Kept: func([]int64) ([]judge.Reference, error) { return nil, nil },
		Contents: func(manifests []int64) (list []judge.Content, _ error) {
			for _, id := range manifests {
				list = append(list, judge.Content{Manifest: id, Size: 15 << 30})
			}
			return list, nil
		},
		BlobSizes: func([]string) (map[string]int64, error) { return map[string]int64{}, nil },
	})
	var goes []string
	for _, one := range tags {
		if v.Decide(one).Delete {
			goes = append(goes, one.Name)
		}
	}
	return strings.Join(goes, " ")
}
