package client

import (
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

// asksOf returns the policies that ask in a namespace.
func asksOf(cmd *cobra.Command, c *api.Client, namespace string) ([]autoprune.Ask, error) {
	list, _, err := api.List(cmd.Context(), c, api.ListAsks, api.AskQuery{PruneNamespace: api.PruneNamespace{Namespace: namespace}}, 0)
	return list, err
}

func pruneAsksCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "asks NAMESPACE", Short: "List the policies that ask for an approval", Args: cobra.ExactArgs(1),
		Long: "List the policies that deleted no tags of a namespace in its last run, because they would have deleted more than\n" +
			"their maxDeleted or maxDeletedPercent allows. To let a policy delete them, approve it or change it.",
	}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := asksOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		list, more := command.Cut(listing, list)
		return command.PrintList(cmd, listing, list, more, func(a autoprune.Ask) string { return a.Policy }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintln(w, "No policy asks for an approval.")
				return err
			}
			rows := make([][]string, len(list))
			for i, a := range list {
				approved := ""
				if a.Approved != nil {
					approved = humanize.Comma(*a.Approved) + " until " + clock(a.Until)
				}
				of := string(a.Scope)
				if a.Repository != "" {
					of = a.Repository
				}
				rows[i] = []string{a.Policy, of, humanize.Comma(a.Would), humanize.Comma(a.Most), clock(&a.Asked), approved}
			}
			return table(w, []string{"POLICY", "OF", "WOULD DELETE", "MAY DELETE", "ASKED", "APPROVED"}, rows, more)
		})
	})
	return cmd
}

func pruneApproveCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve NAMESPACE POLICY", Short: "Let a policy that asks delete tags", Args: cobra.ExactArgs(2),
		Long: "Let a policy that asks for an approval delete as many tags of a namespace as it asks for, in one run. The approval\n" +
			"ends after 7 days, and when the policy is saved. The policy asks again if it would delete more than was approved.",
		Example: "  purser prune approve app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e\n" +
			"  purser prune approve app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e --tags 2000 --yes",
	}
	format, yes := command.AddFormat(cmd), command.AddYes(cmd)
	tags := 0
	cmd.Flags().Var(command.Number(&tags, 1, policy.MaxNumTags), "tags", "approve `N` tags, as there may be more when the policy is applied (default: the number that it asks for)")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := asksOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		var uuids []string
		for _, a := range list {
			uuids = append(uuids, a.Policy)
		}
		id, err := onlyOf(args[1], uuids)
		if err != nil {
			return err
		}
		var ask autoprune.Ask
		for _, a := range list {
			if a.Policy == id {
				ask = a
			}
		}
		if ask.Policy == "" {
			return command.Refuse(fmt.Sprintf("policy %s doesn't ask for an approval in %s: \"purser prune asks %s\" lists those that do", id, args[0], args[0]))
		}
		most := int64(tags)
		if tags == 0 {
			most = ask.Would
		}
		if err := command.Confirm(cmd, *yes, "Let policy %s delete up to %s of %s, in one run? They can be restored until garbage collection deletes their manifests.",
			id, command.Count(most, "tag"), args[0]); err != nil {
			return err
		}
		ask, err = api.ApproveAsk.Call(cmd.Context(), c, api.AskApproval{
			PrunePolicy: api.PrunePolicy{PruneNamespace: api.PruneNamespace{Namespace: args[0]}, Policy: id},
			Body:        api.PruneApproval{Version: ask.Version, Tags: most},
		})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), ask, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "Policy %s may delete up to %s of %s in one run, until %s.\n", id, command.Count(most, "tag"), args[0], clock(ask.Until))
			return err
		})
	})
	return cmd
}
