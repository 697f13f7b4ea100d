package main

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// operateCommands returns the commands.
func operateCommands(src *command.Source) []*cobra.Command {
	return []*cobra.Command{
		configCommand(src), postgresCommand(src), migrateCommand(src), gcCommand(src), checkCommand(src), storeCommand(src), looseCommand(src),
	}
}
