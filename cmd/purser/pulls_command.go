package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

func pullsCommand(src *source) *cobra.Command {
	cmd := group("pulls", "Look after the statistics of pulls", pullsStatusCommand(src), pullsFlushCommand(src), pullsResetCommand(src))
	cmd.Long = "Look after the statistics of pulls: how often and when tags and manifests were pulled. What is\n" +
		"pulled is written to the audit log, and counted from there every few minutes."
	return addServer(cmd)
}

// pullsView is how counting stands, as the API tells of it.
type pullsView struct {
	RecordedSince time.Time  `json:"recorded_since"`
	Behind        float64    `json:"behind_seconds"`
	Counted       int64      `json:"counted"`
	Last          *time.Time `json:"last_processed_timestamp"`
	LastID        int64      `json:"last_processed_log_id"`
	LastXID       uint64     `json:"last_processed_xid"`
	Checked       time.Time  `json:"checked_at"`
	Problem       string     `json:"problem,omitempty"`
}

// show writes the state, and fails when there is a problem.
func (v pullsView) show(cmd *cobra.Command, f format) error {
	err := f.print(cmd.OutOrStdout(), v, func(w io.Writer) error {
		behind := "nothing is uncounted"
		if v.Behind > 0 {
			behind = time.Duration(v.Behind * float64(time.Second)).Round(time.Second).String()
		}
		return fields(w, "recorded since", clock(&v.RecordedSince), "behind", behind, "counted", humanize.Comma(v.Counted),
			"newest pull read", clock(v.Last), "watermark", fmt.Sprintf("transaction %d, entry %d", v.LastXID, v.LastID),
			"log last read", clock(&v.Checked))
	})
	if err == nil && v.Problem != "" {
		err = errors.New(v.Problem)
	}
	return err
}

func pullsStatusCommand(src *source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how far pulls are counted, and since when", Args: cobra.NoArgs,
		Long: "Show how far pulls are counted, and since when. The exit code is 1 when they can't be.",
	}
	f := addFormat(cmd)
	cmd.RunE = src.withClient(func(cmd *cobra.Command, c *client, _ []string) error {
		var v pullsView
		if err := c.get(cmd.Context(), apiPath("pull_statistics"), nil, &v); err != nil {
			return err
		}
		return v.show(cmd, *f)
	})
	return cmd
}

func pullsFlushCommand(src *source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "flush", Short: "Count now what isn't counted yet", Args: cobra.NoArgs,
		Long: "Count now what isn't counted yet, but for pulls of the last second and those behind a transaction\n" +
			"that is open in the database.",
	}
	f := addFormat(cmd)
	cmd.RunE = src.withClient(func(cmd *cobra.Command, c *client, _ []string) error {
		var v pullsView
		if err := c.post(cmd.Context(), apiPath("pull_statistics", "flush"), nil, &v); err != nil {
			return err
		}
		return v.show(cmd, *f)
	})
	return cmd
}

func pullsResetCommand(src *source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reset", Short: "Go on counting after the database was restored or moved", Args: cobra.NoArgs,
		Long: "Go on counting after the database was restored or moved. Counts stay, what was counted isn't counted\n" +
			"again, and what wasn't will be. It may take minutes where the audit log is long.",
	}
	yes := addYes(cmd)
	cmd.RunE = src.withClient(func(cmd *cobra.Command, c *client, _ []string) error {
		if err := confirm(cmd, *yes, "Put the pulls in the audit log in a new order?"); err != nil {
			return err
		}
		var done struct{ Unread int64 }
		if err := c.post(cmd.Context(), apiPath("pull_statistics", "reset"), nil, &done); err != nil {
			return err
		}
		return say(cmd, "Pulls to be counted: %s.\n", humanize.Comma(done.Unread))
	})
	return cmd
}
