package client

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/policy"
)

// TestPresets: each preset is a policy that can be saved; flags change members of it, and add keep
// rules to its own.
func TestPresets(t *testing.T) {
	t.Parallel()
	body := func(flags ...string) map[string]any {
		t.Helper()
		text, err := policyFlagsOf(t, flags...).body()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := policy.Parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, p := range policy.Presets {
		want, err := policy.Parse([]byte(p.Policy))
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		text, err := policyFlagsOf(t, "--preset", p.Name).body()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := policy.Parse(text); err != nil || !got.Equal(want) {
			t.Errorf("--preset %s becomes %s (%v)", p.Name, text, err)
		}
		for _, warning := range want.Warnings() {
			t.Errorf("%s has the warning %s", p.Name, warning)
		}
	}
	m := body("--preset", "pull-requests", "--older-than", "1w")
	if m["olderThan"] != "1w" || m["tagPattern"] == nil {
		t.Errorf("the policy is %v", m)
	}
	m = body("--preset", "releases", "--keep-pattern", "^x")
	if keep, _ := m["keep"].([]any); len(keep) != 4 {
		t.Errorf("the policy is %v", m)
	}
	m = body("--preset", "branches", "--num-tags", "3")
	if m["numTags"] != 3.0 || m["groupBy"] != policy.BranchPattern {
		t.Errorf("the policy is %v", m)
	}
	if p, _ := policy.PresetOf("branches"); !strings.Contains(p.Policy, policy.BranchPattern) {
		t.Errorf("the preset branches isn't --per-branch: %s", p.Policy)
	}
	for preset, flags := range map[string][]string{
		"pull-requests": {"--num-tags", "5"}, "branches": {"--older-than", "5d"}, "untagged": {"--older-than", "5d"},
		"releases": {"--policy", `{"method": "untagged", "olderThan": "1d"}`},
	} {
		if text, err := policyFlagsOf(t, append(flags, "--preset", preset)...).body(); err == nil {
			t.Errorf("--preset %s and %v become %s", preset, flags, text)
		}
	}
}

// TestTriedPolicy: a preview and a forecast try out the policy of each flag that describes one, and
// without flags the policies that apply.
func TestTriedPolicy(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{
		nil, {"--policy", `{"method": "untagged", "olderThan": "1d"}`}, {"--preset", "releases"}, {"--untagged", "1d"}, {"--num-tags", "3"},
		{"--num-tags", "3", "--per-branch"}, {"--older-than", "1d", "--keep-newest", "1"},
	} {
		tried, err := policyFlagsOf(t, flags...).tried()
		if err != nil || (tried != nil) != (flags != nil) {
			t.Errorf("%v try out %v (%v)", flags, tried, err)
		}
	}
	for _, flag := range [][]string{{"--per-branch"}, {"--not-matching"}, {"--keep-newest", "1"}, {"--window", "mon"}, {"--never-below", "1"}} {
		if tried, err := policyFlagsOf(t, flag...).tried(); err == nil {
			t.Errorf("%v alone try out %v", flag, tried)
		}
	}
}
