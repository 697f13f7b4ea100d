package client

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
)

func pruneExemptionsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "exemptions REPOSITORY[:TAG]", Short: "List the tags that undos have exempted from policies, or end that", Args: cobra.ExactArgs(1),
		Long: "List the tags of a repository that undos have restored, with the policies that don't select them since. With --end:\n" +
			"let the policies select them again, all or the one that is named; the next run may delete them.",
		Example: "  purser prune exemptions library/app\n  purser prune exemptions library/app:v1 --end",
	}
	format, yes := command.AddFormat(cmd), command.AddYes(cmd)
	end := cmd.Flags().Bool("end", false, "end the exemptions")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		repository, tag, _ := strings.Cut(args[0], ":")
		in := api.InRepository{Repository: repository}
		if *end {
			return endExemptions(cmd, c, api.ExemptionEnd{InRepository: in, Tag: tag}, args[0], *yes)
		}
		list, _, err := api.List(cmd.Context(), c, api.ListExemptions, api.ExemptionQuery{InRepository: in}, 0)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(e autoprune.Exemption) bool { return tag != "" && e.Tag != tag })
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, e := range list {
				rows[i] = []string{e.Tag, e.Policy, clock(&e.Since)}
			}
			return table(w, []string{"TAG", "POLICY", "SINCE"}, rows, false)
		})
	})
	return cmd
}

// endExemptions ends the exemptions of a repository's tags, or of one of them.
func endExemptions(cmd *cobra.Command, c *api.Client, in api.ExemptionEnd, what string, yes bool) error {
	if err := command.Confirm(cmd, yes, "End the exemptions of %s? The next run may delete these tags.", what); err != nil {
		return err
	}
	done, err := api.EndExemptions.Call(cmd.Context(), c, in)
	if err != nil {
		return err
	}
	return say(cmd, "Ended %s.\n", command.Count(done.Ended, "exemption"))
}
