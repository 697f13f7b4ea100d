// Package client has the commands that are clients of the management API. They show and
// change a registry's namespaces, repositories, tags, policies, pruning, pull statistics,
// protection rules and webhooks, and show its audit log. They need the registry's URL, but
// no configuration.
package client

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// Commands returns the commands of this package.
func Commands(src *command.Source) []*cobra.Command {
	return []*cobra.Command{
		namespaceCommand(src), repoCommand(src), tagCommand(src), auditCommand(src), protectionCommand(src),
		policyCommand(src), pruneCommand(src), pullsCommand(src), webhookCommand(src),
	}
}
