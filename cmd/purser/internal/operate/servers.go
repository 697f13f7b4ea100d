package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

// ownSettings is the flag of commands that delete or repair.
const ownSettings = "own-settings"

func addOwnSettings(cmd *cobra.Command) {
	cmd.Flags().Bool(ownSettings, false, "go on although the servers have other settings that decide what is deleted")
}

// requireSameSettings refuses a command that deletes or repairs if the servers that run, or the one
// that ran last, have other settings than the command that decide what is deleted and what is kept,
// or where. Typed without the servers' configuration, the command would delete what they keep.
func requireSameSettings(ctx context.Context, src *command.Source, cmd *cobra.Command, cfg *config.Config, metadata *db.DB) error {
	return refuseOthers(ctx, src, cmd, cfg, metadata, true)
}

// requireSettingsOfRunning is requireSameSettings without the server that ran last.
func requireSettingsOfRunning(ctx context.Context, src *command.Source, cmd *cobra.Command, cfg *config.Config, metadata *db.DB) error {
	return refuseOthers(ctx, src, cmd, cfg, metadata, false)
}

func refuseOthers(ctx context.Context, src *command.Source, cmd *cobra.Command, cfg *config.Config, metadata *db.DB, stopped bool) error {
	if own, err := cmd.Flags().GetBool(ownSettings); own && err == nil {
		return nil
	}
	servers, err := backend.Servers(ctx, metadata)
	if err != nil {
		return err
	}
	for _, s := range servers {
		if !s.Runs && !stopped {
			continue
		}
		var differ []string
		for _, d := range cfg.Differences(s.Settings) {
			if d.Decides {
				differ = append(differ, d.String())
			}
		}
		if len(differ) > 0 {
			return command.Refuse(fmt.Sprintf("nothing is deleted or repaired, since this command has other settings than %s: %s.\n"+
				"This command has %s: give it the server's, by --config FILE and the variables of its service. "+
				"If its own settings are right, restart the server with them, or add --%s",
				s.Name(), strings.Join(differ, "; "), src.Used(cmd), ownSettings))
		}
	}
	return nil
}
