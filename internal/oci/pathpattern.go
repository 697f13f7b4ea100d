package oci

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var pathPatternForm = regexp.MustCompile(`^[a-z0-9*]([a-z0-9._*/-]*[a-z0-9*])?$`)

// maxPathWildcards is how many wildcards, each a star or a double star, a pattern of paths may
// have: the time to compare a path with a pattern grows with their number.
const maxPathWildcards = 5

// CheckPathPattern checks a pattern of repositories' paths. In a pattern, "*" stands for any
// characters but a slash, and "**" for any characters.
func CheckPathPattern(p string) error {
	switch {
	case len(p) > 255:
		return errors.New("a pattern of repositories has more than 255 characters")
	case strings.Count(strings.ReplaceAll(p, "**", "*"), "*") > maxPathWildcards:
		return fmt.Errorf("%q has more than %d wildcards", p, maxPathWildcards)
	case !pathPatternForm.MatchString(p) || strings.Contains(p, "//") || strings.Contains(p, "***"):
		return fmt.Errorf("%q is no pattern of repositories; write a path such as acme/app, acme/* for all just below acme, or acme/** for all below acme", p)
	}
	return nil
}

// MatchPath says whether a path matches a pattern (see CheckPathPattern). Its time is bounded
// by the product of their lengths.
func MatchPath(pattern, path string) bool {
	// state[i] says that pattern[:i] matches the part of the path that was read.
	state := make([]bool, len(pattern)+1)
	next := make([]bool, len(pattern)+1)
	open := func(s []bool) { // stars also match nothing
		for i := range pattern {
			if s[i] && pattern[i] == '*' {
				s[i+1] = true
			}
		}
	}
	state[0] = true
	open(state)
	for j := range len(path) {
		clear(next)
		for i := range len(pattern) {
			switch {
			case !state[i]:
			case pattern[i] != '*':
				next[i+1] = next[i+1] || pattern[i] == path[j]
			case path[j] != '/' || isDouble(pattern, i):
				next[i] = true
			}
		}
		open(next)
		state, next = next, state
	}
	return state[len(pattern)]
}

// isDouble says whether the star at pattern[i] is one of two.
func isDouble(pattern string, i int) bool {
	return i > 0 && pattern[i-1] == '*' || i+1 < len(pattern) && pattern[i+1] == '*'
}
