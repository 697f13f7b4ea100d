package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func gcRetryCommand(src *source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Try reviews again that failed too often",
		Args:  cobra.NoArgs,
	}
	out := addFormat(cmd)
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
			return out.print(cmd.OutOrStdout(), n, func(w io.Writer) error {
				if n.Manifests+n.Blobs == 0 {
					_, err := fmt.Fprintln(w, "There are no failed reviews.")
					return err
				}
				_, err := fmt.Fprintf(w, "Reviews of %s and %s are due again.\n",
					count(n.Manifests, "manifest"), count(n.Blobs, "blob"))
				return err
			})
		})
	}
	return cmd
}
