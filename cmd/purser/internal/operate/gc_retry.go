package operate

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

func gcRetryCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Try reviews again that failed too often",
		Args:  cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	command.AddInsecure(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withGC(src, cmd, func(ctx context.Context, g gcAccess) error {
			retried, err := g.retry(ctx)
			if err != nil {
				return err
			}
			n := struct {
				Manifests int64 `json:"manifests"`
				Blobs     int64 `json:"blobs"`
			}{retried.Manifests, retried.Blobs}
			return out.Print(cmd.OutOrStdout(), n, func(w io.Writer) error {
				if n.Manifests+n.Blobs == 0 {
					_, err := fmt.Fprintln(w, "There are no failed reviews.")
					return err
				}
				_, err := fmt.Fprintf(w, "Reviews of %s and %s are due again.\n",
					command.Count(n.Manifests, "manifest"), command.Count(n.Blobs, "blob"))
				return err
			})
		})
	}
	return cmd
}
