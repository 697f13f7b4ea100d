package judge_test

import (
	"math"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/judge"
)

// TestMaxBytesDoesNotOverflow: sizes whose sum is no int64 exceed every limit.
func TestMaxBytesDoesNotOverflow(t *testing.T) {
	t.Parallel()
	r := judge.Repository{
		Tags:      judge.Tags([]judge.Tag{tag("a", day, manifest(1)), tag("b", 2*day, manifest(2)), tag("c", 3*day, manifest(3))}),
		Kept:      func([]int64) ([]judge.Reference, error) { return nil, nil },
		BlobSizes: func([]string) (map[string]int64, error) { return nil, nil },
		Contents: func(manifests []int64) (list []judge.Content, _ error) {
			for _, id := range manifests {
				list = append(list, judge.Content{Manifest: id, Size: math.MaxInt64 / 2})
			}
			return list, nil
		},
	}
	v := evaluateIn(t, rules(t, "max_bytes:9223372036854775806"), r)
	for name, goes := range map[string]bool{"a": false, "b": false, "c": true} {
		if d := v.Decide(tag(name, map[string]time.Duration{"a": 1, "b": 2, "c": 3}[name]*day)); d.Delete != goes {
			t.Errorf("%s goes: %v", name, d.Delete)
		}
	}
}
