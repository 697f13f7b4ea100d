// Package client has the commands that are clients of the management API: what a registry
// has in namespaces, repositories and tags, its audit log, policies, pruning, statistics of
// pulls, protection rules and webhooks. They need an address and no configuration.
package client

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// Commands returns the commands that ask a registry over its management API.
func Commands(src *command.Source) []*cobra.Command {
	return []*cobra.Command{
		namespaceCommand(src), repoCommand(src), tagCommand(src), auditCommand(src), protectionCommand(src),
		policyCommand(src), pruneCommand(src), pullsCommand(src), webhookCommand(src),
	}
}
