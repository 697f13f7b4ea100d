package client

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

func manifestCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("manifest", "Look at manifests without tags, and delete them", untaggedCommand(src), manifestDeleteCommand(src)))
}

func untaggedCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "untagged REPOSITORY", Short: "List the manifests of a repository to which no tag points", Args: cobra.ExactArgs(1),
		Long: "List the manifests of a repository to which no tag points, in the order of their digests. An index may list them, or they\n" +
			"refer to a subject, as signatures do; the others go when garbage collection reviews them.",
	}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.UntaggedQuery{InRepository: api.InRepository{Repository: args[0]}}
		list, more, err := api.List(cmd.Context(), c, api.ListUntagged, in, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(m api.UntaggedManifest) string { return m.Digest.String() }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, m := range list {
				needed := ""
				switch {
				case m.Index != nil:
					needed = "index " + short(m.Index.String())
				case m.Subject != nil:
					needed = "subject " + short(m.Subject.String())
				}
				rows[i] = []string{m.Digest.String(), command.Size(m.Size), clock(&m.PushedAt), needed}
			}
			return table(w, []string{"DIGEST", "SIZE", "PUSHED", "BELONGS TO"}, rows, more)
		})
	})
	return cmd
}

func manifestDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete REPOSITORY@DIGEST...", Short: "Delete manifests without tags", Args: cobra.MinimumNArgs(1),
		Long: "Delete manifests to which no tag points. Only a push brings one back. A manifest stays that has got a tag, that an index\n" +
			"lists or that is deployed.",
	}
	yes, holds := command.AddYes(cmd), addOverrideHolds(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		items := make([]api.ManifestItem, len(args)) // all arguments are parsed first: if one is misspelt, nothing is deleted
		for i, arg := range args {
			repository, text, ok := strings.Cut(arg, "@")
			d, err := oci.ParseDigest(text)
			if !ok || repository == "" || err != nil {
				return command.Usagef("%q should be a repository and a digest, like library/app@sha256:…", arg)
			}
			items[i] = api.ManifestItem{InRepository: api.InRepository{Repository: repository}, Digest: d}
		}
		if err := command.Confirm(cmd, *yes, "Delete %s? Only a push brings them back.", strings.Join(args, ", ")); err != nil {
			return err
		}
		for i, item := range items {
			if _, err := api.DeleteManifest.Call(cmd.Context(), c, api.ManifestDeletion{ManifestItem: item, Untagged: true, Override: *holds}); err != nil {
				return fmt.Errorf("deleting %s: %w", args[i], err)
			}
			if err := say(cmd, "Deleted %s.\n", args[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}
