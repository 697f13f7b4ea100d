package autoprune_test

import (
	"regexp"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/autoprune"
)

// drawCounting draws selectors and what a policy by number counts.
func drawCounting(t *rapid.T) string {
	return rapid.SampledFrom([]string{
		"", "", "", ` where "mediaTypes": ["a"]`, ` where "largerThan": "2"`,
		` where "groupBy": "^([a-z]+)"`, ` where "groupBy": "^(v)?.*?([0-9])$"`, ` where "groupBy": "^(pr-|x)", "mediaTypes": ["a"]`,
		` where "groupBy": "^(v)?"`,
	}).Draw(t, "counting")
}

// groupOf returns the group of a tag in policy i, which counts tags; "" if it has none.
func (s scene) groupOf(i int, one autoprune.Tag) string {
	by := s.rules.Policies[i].Policy.Counting().GroupBy
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
func (s scene) beyondNewest(i int, one autoprune.Tag, remaining []autoprune.Tag) bool {
	group := s.groupOf(i, one)
	newer := slices.DeleteFunc(slices.Clone(remaining), func(other autoprune.Tag) bool {
		return s.groupOf(i, other) != group || newestFirst(other, one) >= 0
	})
	return group != "" && len(newer) >= s.rules.Policies[i].Policy.Value().(int)
}
