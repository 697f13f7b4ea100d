package main

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/upstream"
	"github.com/purser-registry/purser/internal/webhook"
)

// completeFlags adds shell completion to those flags of `root` and its subcommands whose
// value is one of a few words.
func completeFlags(root *cobra.Command) {
	words := map[string][]string{
		"output": {string(command.Text), string(command.JSON)}, "events": webhook.Events(), "state": {webhook.Waiting, webhook.Delivered, webhook.GivenUp}, "method": policy.MemberOf("method").Choices(),
		"catalog": upstream.CatalogKinds(),
	}
	for _, p := range policy.Presets {
		words["preset"] = append(words["preset"], p.Name)
	}
	for _, k := range audit.Kinds() {
		words["kind"] = append(words["kind"], string(k))
	}
	completeWords(root, words)
}

// completeWords completes the flags whose names are in `words`, of `cmd` and its subcommands.
func completeWords(cmd *cobra.Command, words map[string][]string) {
	for name, list := range words {
		if cmd.Flags().Lookup(name) != nil {
			cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // the flag is there
		}
	}
	for _, c := range cmd.Commands() {
		completeWords(c, words)
	}
}
