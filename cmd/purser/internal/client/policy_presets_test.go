package client

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
)

// TestPresets: each preset is a policy that can be saved; flags change members of it, and add keep
// rules to its own.
func TestPresets(t *testing.T) {
	t.Parallel()
	body := func(f policyFlags) map[string]any {
		t.Helper()
		text, err := f.body()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := autoprune.ParsePolicy(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, p := range autoprune.Presets {
		want, err := autoprune.ParsePolicy([]byte(p.Policy))
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		text, err := (&policyFlags{policyValues: policyValues{preset: p.Name}}).body()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := autoprune.ParsePolicy(text); err != nil || !got.Equal(want) {
			t.Errorf("--preset %s becomes %s (%v)", p.Name, text, err)
		}
		for _, warning := range want.Warnings() {
			t.Errorf("%s has the warning %s", p.Name, warning)
		}
	}
	m := body(policyFlags{policyValues: policyValues{preset: "pull-requests", olderThan: "1w"}})
	if m["olderThan"] != "1w" || m["tagPattern"] == nil {
		t.Errorf("the policy is %v", m)
	}
	m = body(policyFlags{policyValues: policyValues{preset: "releases"}, keep: keepFlags{patterns: []string{"^x"}}})
	if keep, _ := m["keep"].([]any); len(keep) != 4 {
		t.Errorf("the policy is %v", m)
	}
	m = body(policyFlags{policyValues: policyValues{preset: "branches", numTags: 3}})
	if m["numTags"] != 3.0 || m["groupBy"] != autoprune.BranchPattern {
		t.Errorf("the policy is %v", m)
	}
	if p, _ := autoprune.PresetOf("branches"); !strings.Contains(p.Policy, autoprune.BranchPattern) {
		t.Errorf("the preset branches isn't --per-branch: %s", p.Policy)
	}
	for preset, flags := range map[string]policyValues{
		"pull-requests": {numTags: 5}, "branches": {olderThan: "5d"}, "untagged": {olderThan: "5d"}, "releases": {json: "{}"},
	} {
		flags.preset = preset
		if text, err := (&policyFlags{policyValues: flags}).body(); err == nil {
			t.Errorf("%+v becomes %s", flags, text)
		}
	}
}
