package autoprune_test

import (
	"iter"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// oracleNow is when the scenes are judged.
var oracleNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func oracleAgo(d time.Duration) time.Time { return oracleNow.Add(-d) }

func oracleProtect(t rapid.TB, patterns ...string) []judge.Protection {
	t.Helper()
	var list []judge.Protection
	for _, text := range patterns {
		pattern, err := oci.ParseTagPattern(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, judge.Protection{ID: text, Pattern: pattern})
	}
	return list
}

// oracleParents answers from a list of references.
func oracleParents(references []judge.Reference) func([]int64) ([]judge.Reference, error) {
	return func(manifests []int64) (found []judge.Reference, err error) {
		for _, r := range references {
			if slices.Contains(manifests, r.Child) {
				found = append(found, r)
			}
		}
		return found, nil
	}
}

// oracleEach yields the elements of a slice.
func oracleEach(tags []judge.Tag) iter.Seq2[judge.Tag, error] {
	return func(yield func(judge.Tag, error) bool) {
		for i := range tags {
			if !yield(tags[i], nil) {
				return
			}
		}
	}
}

func oracleEvaluate(t rapid.TB, r judge.Rules, repository judge.Repository) *judge.Verdict {
	t.Helper()
	v, err := judge.Evaluate(r, repository)
	if err != nil {
		t.Fatalf("Evaluate: %v", err)
	}
	return v
}
