package ui

import (
	"encoding/json"
	"testing"

	"github.com/purser-registry/purser/internal/policy"
)

// TestPresetsFillTheForm: the editor has fields for all that a preset says, and writes the preset's
// policy.
func TestPresetsFillTheForm(t *testing.T) {
	t.Parallel()
	for _, p := range policy.Presets {
		d, err := parseDocument(p.Policy)
		if err != nil {
			t.Fatal(err)
		}
		f := formOf(d)
		if f.AsJSON || f.Others != "" {
			t.Errorf("%s: the editor has no fields for %s", p.Name, f.Others)
		}
		text, err := readPolicyForm(formValues(f)).policy()
		if err != nil {
			t.Fatal(err)
		}
		var got, want policy.Policy
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(p.Policy), &want); err != nil || !got.Equal(want) {
			t.Errorf("%s: the editor writes %s (%v)", p.Name, text, err)
		}
	}
}
