package judge_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// TestNewestOfEachBranch: a policy with groupBy leaves the newest tags of each group, and every tag
// that is in no group.
func TestNewestOfEachBranch(t *testing.T) {
	t.Parallel()
	const branches = `{"method": "number_of_tags", "numTags": 2, "groupBy": "^(.+)-[0-9a-f]{7,40}$"}`
	names := []string{"main-3f2a9c1", "main-20260301", "main-90ab12c", "x-1234567", "x-7654321", "x-aaaaaaa", "production", "latest", "v1.4.2", "release-15", "release-14", "release-13"}
	r := rules(t)
	r.Policies = []judge.Applied{{ID: "p", Policy: parsed(t, branches)}}
	goes, stays := fates(t, r, inOrder(names...))
	if want := "main-90ab12c x-aaaaaaa"; goes != want {
		t.Errorf("the policy deletes %q, want %q", goes, want)
	}
	for _, text := range []string{"production:no_group", "release-13:no_group", "main-3f2a9c1:among_newest"} {
		if !strings.Contains(stays, text) {
			t.Errorf("%s stays, want %s among them", stays, text)
		}
	}
	// Whatever is wrong with the expression, production isn't in a group with others.
	for _, wrong := range []string{`^(main)?-?`, `^(.+)-v[0-9]`, `(zzz)`, `^(main|x)-`, `^()`} {
		text := fmt.Sprintf(`{"method": "number_of_tags", "numTags": 1, "groupBy": %q}`, wrong)
		r.Policies[0].Policy = parsed(t, text)
		if goes, _ := fates(t, r, inOrder(names...)); strings.Contains(goes, "production") || strings.Contains(goes, "latest") {
			t.Errorf("%s deletes %s", text, goes)
		}
	}
	v := evaluate(t, rules(t, `number_of_tags:1 where "groupBy": "^(pr)-(.)"`), inOrder("pr-a2", "pr-a1"))
	if text := v.Reason(inOrder("", "pr-a1")[1], v.Decide(inOrder("", "pr-a1")[1])); text != `not among the newest 1 of the group "pr, a"` {
		t.Errorf("the reason is %q", text)
	}
}

// fates returns the tags that the rules delete, and the others with the code of the reason.
func fates(t *testing.T, r judge.Rules, tags []judge.Tag) (goes, stays string) {
	t.Helper()
	v := evaluate(t, r, tags)
	var going, staying []string
	for _, one := range tags {
		if d := v.Decide(one); d.Delete {
			going = append(going, one.Name)
		} else {
			staying = append(staying, one.Name+":"+string(d.Code))
		}
		if text := v.Reason(one, v.Decide(one)); text == "" || text == string(v.Decide(one).Code) {
			t.Errorf("tag %s has no reason but %q", one.Name, text)
		}
	}
	return strings.Join(going, " "), strings.Join(staying, " ")
}

func TestBranchPattern(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile(policy.BranchPattern)
	for name, branch := range map[string]string{
		"main-3f2a9c1": "main", "main-g3f2a9c1": "main", "main-20260301": "main", "main-2026-03-01": "main", "main-20260301120000": "main",
		"feature-123-3f2a9c1": "feature-123", "main-20260301-3f2a9c1": "main-20260301",
		"release-15": "", "production": "", "3f2a9c1": "", "v1.4.2": "", "pr-7": "", "main-alpine": "", "-3f2a9c1": "",
	} {
		found := pattern.FindStringSubmatch(name)
		if got := strings.Join(append(found, "", "")[min(1, len(found)):][:1], ""); got != branch {
			t.Errorf("the branch of %s is %q, want %q", name, got, branch)
		}
	}
}

// TestGroupsAreRefused: groupBy goes only with number_of_tags, and needs parentheses.
func TestGroupsAreRefused(t *testing.T) {
	t.Parallel()
	for text, problem := range map[string]string{
		`{"method": "creation_date", "olderThan": "2w", "groupBy": "^(a)"}`:   "groupBy: creation_date has none; it goes with number_of_tags",
		`{"method": "max_bytes", "maxBytes": "2GB", "groupBy": "^(a)"}`:       "groupBy: max_bytes has none",
		`{"method": "number_of_tags", "numTags": 2, "groupBy": "^a"}`:         "groupBy: it needs parentheses",
		`{"method": "number_of_tags", "numTags": 2, "groupBy": "^(?:a)"}`:     "groupBy: it needs parentheses",
		`{"method": "number_of_tags", "numTags": 2, "groupBy": "("}`:          "groupBy: ",
		`{"method": "number_of_tags", "numTags": 2, "groupBy": ""}`:           "groupBy: ",
		`{"method": "number_of_tags", "numTags": 2, "groupBy": ["^(a)"]}`:     "groupBy: it must be a string",
		`{"method": "number_of_tags", "numTags": 2, "groupby": "^(a)"}`:       "groupby: it must be written groupBy",
		`{"method": "number_of_tags", "numTags": 2, "keep": [{"newest": 1}]}`: "",
		`{"method": "creation_date", "olderThan": "2w", "groupBy": null}`:     "",
	} {
		_, err := policy.Parse([]byte(text))
		if problem == "" && err != nil || problem != "" && (err == nil || !strings.HasPrefix(err.Error(), problem)) {
			t.Errorf("%s: %v, want %q", text, err, problem)
		}
	}
}

// inOrder returns tags with these names, of which the first is the newest. Each has its own manifest.
func inOrder(names ...string) (list []judge.Tag) {
	for i, name := range names {
		list = append(list, tag(name, time.Duration(2+i)*day, manifest(int64(i+1))))
	}
	return list
}

// TestNewestImages: tags of the same manifest count as one image, which is as new as the newest of
// them, also if that one is protected.
func TestNewestImages(t *testing.T) {
	t.Parallel()
	tags := []judge.Tag{
		tag("latest", day, manifest(3)), tag("v3", 2*day, manifest(3)), tag("v3.0", 9*day, manifest(3)),
		tag("v2", 3*day, manifest(2)), tag("v2.0", 8*day, manifest(2)), tag("v1", 4*day, manifest(1)), tag("stable", 5*day, manifest(4)), tag("v4", 10*day, manifest(4)),
	}
	r := rules(t, `number_of_tags:2 where "countImages": true`)
	if goes, _ := fates(t, r, tags); goes != "v1 stable v4" {
		t.Errorf("of the images the policy deletes %q", goes)
	}
	r = rules(t, `number_of_tags:3 where "countImages": true`)
	r.Protection = protect(t, "^stable$")
	if goes, _ := fates(t, r, tags); goes != "v4" {
		t.Errorf("beside a protected tag the policy deletes %q", goes)
	}
	r = rules(t, `creation_date:1h keep [{"newest": 1, "countImages": true}]`)
	if goes, stays := fates(t, r, tags); goes != "v2 v2.0 v1 stable v4" || stays != "latest:kept_newest v3:kept_newest v3.0:kept_newest" {
		t.Errorf("the keep rule lets go %q and keeps %q", goes, stays)
	}
	v := evaluate(t, rules(t, `number_of_tags:1 where "countImages": true, "groupBy": "^(v)"`), tags)
	if text := v.Reason(tags[5], v.Decide(tags[5])); text != `not among the newest 1 images of the group "v"` {
		t.Errorf("the reason is %q", text)
	}
	for _, text := range []string{
		`{"method": "last_pulled", "olderThan": "2w", "countImages": true}`, `{"method": "number_of_tags", "numTags": 2, "countImages": 1}`,
		`{"method": "creation_date", "olderThan": "2w", "keep": [{"usedWithin": "2d", "countImages": true}]}`,
		`{"method": "creation_date", "olderThan": "2w", "keep": [{"versions": "newest_patches", "newest": 2, "countImages": true}]}`,
	} {
		if _, err := policy.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "countImages: ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestNewestOfEachPlatform: a tag stays if it is among the newest of one of its platforms, or if it
// isn't known for which platforms it is.
func TestNewestOfEachPlatform(t *testing.T) {
	t.Parallel()
	of := func(platforms ...string) func(*judge.Tag) {
		return func(t *judge.Tag) { t.Platforms = strings.Join(platforms, "\x00") }
	}
	tags := []judge.Tag{
		tag("a", day, of("linux/amd64")), tag("b", 2*day, of("linux/amd64", "linux/arm64")), tag("c", 3*day, of("linux/amd64")),
		tag("d", 4*day, of("linux/arm64")), tag("e", 5*day, of("linux/s390x")), tag("chart", 6*day),
	}
	if goes, stays := fates(t, rules(t, `number_of_tags:1 where "perPlatform": true`), tags); goes != "c d" ||
		stays != "a:among_newest b:among_newest e:among_newest chart:no_platform" {
		t.Errorf("the policy deletes %q, and %q stay", goes, stays)
	}
	if goes, stays := fates(t, rules(t, `creation_date:1h keep [{"newest": 1, "perPlatform": true}]`), tags); goes != "c d" || !strings.Contains(stays, "chart:kept_platform") {
		t.Errorf("the keep rule lets go %q and keeps %q", goes, stays)
	}
	if goes, _ := fates(t, rules(t, `number_of_tags:1 where "perPlatform": true, "groupBy": "^([ab])"`), tags); goes != "" {
		t.Errorf("with groups the policy deletes %q", goes)
	}
	for name, images := range map[string][]policy.ImageAttributes{
		"no images":              nil,
		"an unread one":          {{}},
		"a chart":                {{PlatformKnown: true}},
		"one unread of two":      {{PlatformKnown: true, Platform: "linux/amd64"}, {}},
		"an index of an index":   {{PlatformKnown: true, Platform: "linux/amd64"}, {PlatformKnown: true}},
		"attestations, no image": {{PlatformKnown: true, Platform: "unknown/unknown"}},
	} {
		if got := judge.PlatformsOf(images); got != "" {
			t.Errorf("%s: platforms %q, want none", name, got)
		}
	}
	got := judge.PlatformsOf([]policy.ImageAttributes{
		{PlatformKnown: true, Platform: "linux/b"}, {PlatformKnown: true, Platform: "unknown/unknown"}, {PlatformKnown: true, Platform: "linux/a"}, {PlatformKnown: true, Platform: "linux/b"},
	})
	if got != "linux/a\x00linux/b" {
		t.Errorf("platforms %q", got)
	}
	if _, err := policy.Parse([]byte(`{"method": "max_bytes", "maxBytes": "2GB", "perPlatform": true}`)); err == nil || !strings.HasPrefix(err.Error(), "perPlatform: ") {
		t.Error(err)
	}
}
