package client

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

// findCommand makes the command that searches a registry.
func findCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "find TEXT", Short: "Search namespaces, repositories, tags and digests", Args: cobra.ExactArgs(1),
		Long: "Search everything from which you may pull. TEXT is a part of a name, the beginning of a tag's name, a digest or its\n" +
			"first 6 digits, repository:tag, repository@digest, or a reference as a client has printed it.",
	}
	format, limit := command.AddFormat(cmd), 10
	cmd.Flags().Var(command.Number(&limit, 1, 50), "limit", "show at most `N` of each kind")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if strings.TrimSpace(args[0]) == "" {
			return command.Usagef("TEXT: it is empty")
		}
		found, err := api.Find.Call(cmd.Context(), c, api.FindQuery{Query: args[0], Limit: limit})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), found, func(w io.Writer) error {
			var rows [][]string
			for _, i := range found.Results {
				rows = append(rows, []string{i.Kind, i.Name, foundMore(i)})
			}
			if err := table(w, []string{"KIND", "NAME", "TAGS OR DIGEST"}, rows, false); err != nil {
				return err
			}
			if len(found.More) > 0 {
				_, err = fmt.Fprintf(w, "There may be more (%s): write more of the name, or repository:tag.\n", strings.Join(found.More, ", "))
			}
			return err
		})
	})
	return addServer(cmd)
}

// foundMore returns what is shown beside the name of a result: where a tag points, and which tags point to
// a manifest.
func foundMore(i api.FoundItem) string {
	switch i.Kind {
	case api.FoundTag:
		return i.Digest.String()
	case api.FoundManifest:
		return cmp.Or(strings.Join(i.Tags, ", "), "no tag")
	}
	return ""
}
