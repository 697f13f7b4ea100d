package main

import (
	"context"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

func gcRetryCommand(src *source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Bring back the reviews that failed too often and were set aside",
		Args:  cobra.NoArgs,
	}
	out := addFormat(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return src.withCollector(cmd, func(ctx context.Context, _ *config.Config, c *gc.Collector, _ *db.DB, log *audit.Log) error {
			if err := log.Append(ctx, audit.Entry{Kind: audit.RetryGC}); err != nil {
				return err
			}
			var n struct {
				Manifests int64 `json:"manifests"`
				Blobs     int64 `json:"blobs"`
			}
			var err error
			if n.Manifests, err = c.RetrySetAside(ctx, gc.ReviewOfManifests); err != nil {
				return err
			}
			if n.Blobs, err = c.RetrySetAside(ctx, gc.ReviewOfBlobs); err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), n, func(w io.Writer) error {
				if n.Manifests+n.Blobs == 0 {
					_, err := fmt.Fprintln(w, "No review is set aside.")
					return err
				}
				_, err := fmt.Fprintf(w, "Brought back %s and %s: their reviews are due now.\n",
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
