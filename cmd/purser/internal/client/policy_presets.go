package client

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/policy"
)

// presetNames are the values of --preset.
func presetNames() (names []string) {
	for _, p := range policy.Presets {
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
		for _, p := range policy.Presets {
			out = append(out, preset{p.Name, p.Title, json.RawMessage(p.Policy)})
		}
		return format.Print(cmd.OutOrStdout(), out, func(w io.Writer) error {
			for i, p := range policy.Presets {
				gap := strings.Repeat("\n", min(i, 1))
				if _, err := fmt.Fprintf(w, "%s%s: %s\n%s\n", gap, p.Name, p.Title, p.Policy); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// ofPreset returns the members of the preset, which flags change; none without a preset. Keep rules of
// flags are added to the preset's: a flag that keeps more must not keep less.
func (f *policyFlags) ofPreset() (map[string]any, error) {
	members := make(map[string]any)
	if f.preset == "" {
		return members, nil
	}
	preset, _ := policy.PresetOf(f.preset) // the flag has checked the name
	p, err := policy.Parse([]byte(preset.Policy))
	if err == nil {
		err = json.Unmarshal([]byte(preset.Policy), &members)
	}
	if err != nil {
		return nil, fmt.Errorf("preset %s: %w", f.preset, err)
	}
	if p.Keep != nil {
		members["keep"] = p.Keep
	}
	if p.Method == policy.UntaggedManifests {
		members[untaggedFlag] = members["olderThan"]
		delete(members, "olderThan")
	}
	if p.Method != policy.LastPulled { // other methods follow from the members
		delete(members, "method")
	}
	return members, nil
}
