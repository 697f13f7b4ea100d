package client

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/policy"
)

// policyFlagsOf parses flags of a policy.
func policyFlagsOf(t *testing.T, args ...string) *policyFlags {
	t.Helper()
	cmd := new(cobra.Command)
	f := addPolicyFlags(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCountingFlags: what --num-tags counts becomes members of the policy, which the registry can
// read.
func TestCountingFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ flags, want string }{
		{"", ""},
		{"--group-by ^(a)", `of each group by "^(a)"`},
		{"--count-images", "images"},
		{"--per-platform", "of each platform"},
		{"--per-branch", "of each group by " + policy.Quoted(policy.BranchPattern)},
	} {
		body, err := policyFlagsOf(t, append([]string{"--num-tags", "10"}, strings.Fields(tt.flags)...)...).body()
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.Parse(body)
		if err != nil || p.Counting.String() != tt.want {
			t.Errorf("%s becomes %s (%v), want %s", tt.flags, body, err, tt.want)
		}
		var given map[string]any
		if err := json.Unmarshal(body, &given); err != nil || given["numTags"] != 10.0 {
			t.Errorf("%s becomes %s (%v)", tt.flags, body, err)
		}
	}
}
