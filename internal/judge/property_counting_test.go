package judge_test

import (
	"regexp"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
)

// drawCounting draws selectors and what a policy by number counts.
func drawCounting(t *rapid.T) string {
	return rapid.SampledFrom([]string{
		"", "", "", ` where "mediaTypes": ["a"]`, ` where "largerThan": "2"`,
		` where "groupBy": "^([a-z]+)"`, ` where "groupBy": "^(v)?.*?([0-9])$"`, ` where "groupBy": "^(pr-|x)", "mediaTypes": ["a"]`,
		` where "groupBy": "^(v)?"`, ` where "countImages": true`, ` where "countImages": true, "groupBy": "^([a-z]+)"`, ` where "perPlatform": true`,
	}).Draw(t, "counting")
}

// groupOf returns the group of a tag in policy i, which counts tags; "" if it has none.
func (s scene) groupOf(i int, one judge.Tag) string {
	by := s.rules.Policies[i].Policy.GroupBy.String()
	if by == "" {
		return "all"
	}
	found := regexp.MustCompile(by).FindStringSubmatch(one.Name)
	if found == nil || strings.Join(found[1:], "") == "" {
		return ""
	}
	return strings.Join(found[1:], "/")
}

// beyondNewest returns whether a tag isn't among the newest that policy i, which counts the tags
// `remaining`, lets stay.
func (s scene) beyondNewest(i int, one judge.Tag, remaining []judge.Tag) bool {
	group := s.groupOf(i, one)
	if s.rules.Policies[i].Policy.PerPlatform {
		return !s.newestOfPlatform(one, remaining, s.rules.Policies[i].Policy.Value().(int))
	}
	if s.rules.Policies[i].Policy.CountImages {
		return group != "" && s.newerImages(i, one, remaining, func(other judge.Tag) bool { return s.groupOf(i, other) == group }) >= s.rules.Policies[i].Policy.Value().(int)
	}
	newer := slices.DeleteFunc(slices.Clone(remaining), func(other judge.Tag) bool {
		return s.groupOf(i, other) != group || newestFirst(other, one) >= 0
	})
	return group != "" && len(newer) >= s.rules.Policies[i].Policy.Value().(int)
}

// newerImages returns how many of the images that policy i counts are newer than the image of a tag,
// by those of their tags that are in a group.
func (s scene) newerImages(i int, one judge.Tag, counted []judge.Tag, in func(judge.Tag) bool) int {
	newest := one
	for _, other := range s.tags {
		orphaned := orphan(other) && s.rules.Policies[i].Policy.RemoveOrphans
		if other.Manifest == one.Manifest && !attached(other) && !orphaned && s.considers(i, other) && in(other) && newestFirst(other, newest) < 0 {
			newest = other
		}
	}
	newer := map[int64]bool{}
	for _, other := range counted {
		if in(other) && other.Manifest != one.Manifest && newestFirst(other, newest) < 0 {
			newer[other.Manifest] = true
		}
	}
	return len(newer)
}

// newestOfPlatform returns whether a tag is among the newest of one of its platforms, or has none.
func (s scene) newestOfPlatform(one judge.Tag, counted []judge.Tag, number int) bool {
	of := func(t judge.Tag) []string { return strings.Split(t.Platforms, "\x00") }
	return one.Platforms == "" || slices.ContainsFunc(of(one), func(platform string) bool {
		newer := 0
		for _, other := range counted {
			if slices.Contains(of(other), platform) && newestFirst(other, one) < 0 {
				newer++
			}
		}
		return newer < number
	})
}
