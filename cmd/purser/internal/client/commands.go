// Package client has the commands that are clients of the management API. They show and
// change a registry's namespaces, repositories, tags, policies, pruning, holds, pull statistics,
// protection rules, webhooks, accounts, robots, teams and roles, and show its audit log. They
// need the registry's URL, but no configuration.
//
// Commands take passwords from the terminal or from standard input, and print a new secret once
// to standard output. So no secret is in the list of processes, and none is in an error.
//
// The commands have their own types for lists (repositories, tags, manifests, entries of the audit
// log). "-o json" prints these types, which have fewer members than the API's answers, since
// scripts rely on them. If the API and a command both show a whole answer, such as the state of
// garbage collection, its type is in package internal/api.
package client

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// Commands returns the commands of this package. `ofUser` become subcommands of the command
// "user".
func Commands(src *command.Source, ofUser ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		namespaceCommand(src), repoCommand(src), tagCommand(src), auditCommand(src), protectionCommand(src), quotaCommand(src), trashCommand(src),
		copyCommand(src), policyCommand(src), pruneCommand(src), holdCommand(src), reportCommand(src), pullsCommand(src), webhookCommand(src),
		loginCommand(src), logoutCommand(src), userCommand(src, ofUser...), robotCommand(src), tokenCommand(src), teamCommand(src), grantCommand(src), clockCommand(src),
	}
}
