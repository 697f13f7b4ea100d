package client

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
)

func namespaceLabelsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "labels NAMESPACE", Short: "Show or say which labels of pushed images decide about their tags", Args: cobra.ExactArgs(1),
		Long: "Show or say which labels of a pushed image decide about its tag: io.purser.expires-after and quay.expires-after, such as 2d,\n" +
			"say when it is deleted, io.purser.immutable and quay.immutable, true, that nobody may move or delete it. None of them\n" +
			"counts unless this says so.",
		Example: "  purser namespace labels app --expires-after\n  purser namespace labels app --expires-after=false --immutable",
	}
	format := command.AddFormat(cmd)
	var want catalog.TagLabels
	cmd.Flags().BoolVar(&want.Expiry, "expires-after", false, "let labels give tags an expiration")
	cmd.Flags().BoolVar(&want.Immutable, "immutable", false, "let labels make tags immutable")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.InNamespace{Namespace: args[0]}
		now, err := api.GetTagLabels.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		changed := false
		for name, value := range map[string]struct{ from, to *bool }{"expires-after": {&want.Expiry, &now.Expiry}, "immutable": {&want.Immutable, &now.Immutable}} {
			if cmd.Flags().Changed(name) {
				changed, *value.to = true, *value.from
			}
		}
		if changed {
			if _, err := api.SetTagLabels.Call(cmd.Context(), c, api.TagLabelsChange{InNamespace: in, Body: now}); err != nil {
				return err
			}
		}
		return format.Print(cmd.OutOrStdout(), now, func(w io.Writer) error {
			words := map[bool]string{true: "counts", false: "is ignored"}
			return fields(w, "namespace", args[0], "expires-after", words[now.Expiry], "immutable", words[now.Immutable])
		})
	})
	return cmd
}

func tagImmutableCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "immutable REPOSITORY:TAG", Short: "Make a tag immutable, so that nobody moves or deletes it, or undo that", Args: cobra.ExactArgs(1),
	}
	undo := cmd.Flags().Bool("undo", false, "let the tag be moved and deleted again")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		item, err := tagItem(args[0])
		if err != nil {
			return err
		}
		immutable := !*undo
		if _, err := api.ChangeTag.Call(cmd.Context(), c, api.TagChange{TagItem: item, Body: api.MovedTag{Immutable: &immutable}}); err != nil {
			return err
		}
		if *undo {
			return say(cmd, "%s may be moved and deleted again.\n", args[0])
		}
		return say(cmd, "%s is immutable.\n", args[0])
	})
	return cmd
}
