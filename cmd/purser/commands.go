package main

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// clientCommands returns the commands.
func clientCommands(src *command.Source) []*cobra.Command {
	return []*cobra.Command{
		namespaceCommand(src), repoCommand(src), tagCommand(src), auditCommand(src), protectionCommand(src),
		policyCommand(src), pruneCommand(src), pullsCommand(src), webhookCommand(src),
	}
}
