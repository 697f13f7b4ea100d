package client

import (
	"encoding/json"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
)

// TestCountingFlags: what --num-tags counts becomes members of the policy, which the registry can
// read.
func TestCountingFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags countingFlags
		want  autoprune.CountingForm
	}{
		{countingFlags{}, autoprune.CountingForm{}},
		{countingFlags{groupBy: "^(a)"}, autoprune.CountingForm{GroupBy: "^(a)"}},
		{countingFlags{images: true}, autoprune.CountingForm{CountImages: true}},
		{countingFlags{platforms: true}, autoprune.CountingForm{PerPlatform: true}},
		{countingFlags{perBranch: true}, autoprune.CountingForm{GroupBy: autoprune.BranchPattern}},
	} {
		f := policyFlags{policyValues: policyValues{numTags: 10}, count: tt.flags}
		body, err := f.body()
		if err != nil {
			t.Fatal(err)
		}
		policy, err := autoprune.ParsePolicy(body)
		if err != nil || policy.Counting() != tt.want {
			t.Errorf("%+v becomes %s (%v), want %+v", tt.flags, body, err, tt.want)
		}
		var given map[string]any
		if err := json.Unmarshal(body, &given); err != nil || given["numTags"] != 10.0 {
			t.Errorf("%+v becomes %s (%v)", tt.flags, body, err)
		}
	}
}
