package main

import (
	"context"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
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
		return src.withGC(cmd, func(ctx context.Context, g gcAccess) error {
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

// count formats a number with a noun in singular or plural.
func count(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(n) + " " + one + "s"
}
