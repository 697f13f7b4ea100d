package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune"
)

// presetNames are the values of --preset.
func presetNames() (names []string) {
	for _, p := range autoprune.Presets {
		names = append(names, p.Name)
	}
	return names
}

// addPreset adds the flag --preset.
func addPreset(cmd *cobra.Command, name *string) {
	textFlag(cmd, name, "preset", "", "start with the policy that has this `NAME`: "+strings.Join(presetNames(), ", ")+"; other flags change it", checkChoice(presetNames()...))
}

// addPresets adds the flag --presets, which lists the presets instead of what the command does.
func addPresets(cmd *cobra.Command, format *command.Format) {
	list := cmd.Flags().Bool("presets", false, "list the presets with their policies, and do nothing else")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*list {
			return run(cmd, args)
		}
		type preset struct {
			Name   string          `json:"name"`
			Title  string          `json:"title"`
			Policy json.RawMessage `json:"policy"`
		}
		var out []preset
		for _, p := range autoprune.Presets {
			out = append(out, preset{p.Name, p.Title, json.RawMessage(p.Policy)})
		}
		return format.Print(cmd.OutOrStdout(), out, func(w io.Writer) error {
			for i, p := range autoprune.Presets {
				gap := strings.Repeat("\n", min(i, 1))
				if _, err := fmt.Fprintf(w, "%s%s: %s\n%s\n", gap, p.Name, p.Title, p.Policy); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// withPreset returns the flags with those of the preset that weren't given, and the preset's keep
// rules. Keep rules of flags are added to these: a flag that keeps more must not keep less.
func (f policyFlags) withPreset() (policyFlags, []autoprune.KeepForm, error) {
	if f.preset == "" {
		return f, nil, nil
	}
	preset, _ := autoprune.PresetOf(f.preset) // the flag has checked the name
	p, err := autoprune.ParsePolicy([]byte(preset.Policy))
	if err != nil {
		return f, nil, fmt.Errorf("preset %s: %w", f.preset, err)
	}
	switch p.Method() {
	case autoprune.NumberOfTags:
		if n, ok := p.Value().(int); ok && f.numTags == 0 {
			f.numTags = n
		}
	case autoprune.UntaggedManifests:
		f.untagged = cmp.Or(f.untagged, fmt.Sprint(p.Value()))
	case autoprune.MaxBytes:
		f.maxBytes = cmp.Or(f.maxBytes, fmt.Sprint(p.Value()))
	case autoprune.CreationDate, autoprune.LastPulled:
		f.method = cmp.Or(f.method, string(p.Method()))
		f.olderThan = cmp.Or(f.olderThan, fmt.Sprint(p.Value()))
	}
	pattern, _ := p.Pattern()
	f.pattern = cmp.Or(f.pattern, pattern.String())
	if !f.count.perBranch {
		f.count.groupBy = cmp.Or(f.count.groupBy, p.Counting().GroupBy)
	}
	f.guard.neverBelow = cmp.Or(f.guard.neverBelow, p.Safeguards().NeverBelow)
	return f, p.Keep(), nil
}
