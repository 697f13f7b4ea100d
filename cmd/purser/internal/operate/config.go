package operate

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune/policies"
)

func configCommand(src *command.Source) *cobra.Command {
	check := &cobra.Command{
		Use:   "check",
		Short: "Check the settings; name each problem with its place, and say who has to log in",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := src.LoadAndTell(cmd)
			if err := backend.CheckSettings(cmd.Context(), cfg, err); err != nil {
				return err
			}
			if policy, _ := command.DefaultPolicy(cfg); policy != nil {
				for _, warning := range policy.Warnings() {
					fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s: %s: %s.\n", cfg.Source(policies.SettingName), policies.SettingName, warning) //nolint:errcheck // only a note
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The configuration is valid.\n%s\n", cfg.Access())
			return err
		},
	}
	show := &cobra.Command{
		Use:   "show",
		Short: "Show every setting that is in force and where it comes from, secrets hidden",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, problems := src.LoadAndTell(cmd)
			if err := cfg.Show(cmd.OutOrStdout()); err != nil {
				return err
			}
			return problems
		},
	}
	for _, c := range []*cobra.Command{check, show} {
		command.AddServeFlags(c.Flags())
	}
	return command.Group("config", "Explain the configuration", check, show)
}
