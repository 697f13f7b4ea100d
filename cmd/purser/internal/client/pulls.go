package client

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

func pullsCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("pulls", "Show the statistics of pulls, and look after them", pullsStatusCommand(src), pullsFlushCommand(src), pullsResetCommand(src),
		pullsHistoryCommand(src), pullsTopCommand(src), pullsUnpulledCommand(src))
	cmd.Long = "Show the statistics of pulls, and look after them: how often and when tags and manifests were pulled. Pulls are\n" +
		"counted every few minutes, from the audit log or from Redis."
	return addServer(cmd)
}

// pullsView is the state of pull counting, in the API's format.
type pullsView api.PullState

// problem returns why pulls can't be counted, or "" if they can.
func (v pullsView) problem() string {
	switch r := v.Redis; {
	case v.Problem != "":
		return v.Problem
	case v.Unseen != "":
		return v.Unseen
	case r != nil && (!r.Reachable || r.Status == "ERROR"):
		return "pulls in Redis can't be counted: " + strings.Join(r.Problems, "; ")
	}
	return ""
}

// redisFields returns the lines of output about Redis.
func redisFields(r *api.RedisPulls) []string {
	if r == nil {
		return nil
	}
	memory := humanize.IBytes(uint64(r.Memory))
	if r.MaxMemory > 0 {
		memory += " of " + humanize.IBytes(uint64(r.MaxMemory))
	}
	list := []string{
		"Redis", r.Address, "its memory", memory, "flush", strings.ToLower(r.Status),
		"last complete flush", clock(r.Processed), "keys flushed", humanize.Comma(r.Keys),
	}
	for _, p := range r.Problems {
		list = append(list, "note", p)
	}
	return list
}

// show prints the state of pull counting. It returns an error if pulls can't be counted.
func (v pullsView) show(cmd *cobra.Command, f command.Format) error {
	err := f.Print(cmd.OutOrStdout(), v, func(w io.Writer) error {
		behind := "nothing is uncounted"
		if v.Behind > 0 {
			behind = time.Duration(v.Behind * float64(time.Second)).Round(time.Second).String()
		}
		return fields(w, append([]string{"recorded since", clock(&v.RecordedSince), "uses known since", clock(&v.UsedSince), "HEADs known since", clock(&v.CheckedSince), "new pulls counted by", v.CountedBy, "behind", behind, "counted from the log", humanize.Comma(v.Counted),
			"newest pull read", clock(v.Last), "watermark", fmt.Sprintf("transaction %d, entry %d", v.LastXID, v.LastID),
			"log last read", clock(&v.Checked)}, redisFields(v.Redis)...)...)
	})
	if p := v.problem(); err == nil && p != "" {
		err = errors.New(p)
	}
	return err
}

func pullsStatusCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show how far pulls are counted, and since when", Args: cobra.NoArgs,
		Long: "Show how far pulls are counted, and since when. The exit code is 1 when they can't be.",
	}
	f := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		state, err := api.GetPullState.Call(cmd.Context(), c, struct{}{})
		if err != nil {
			return err
		}
		return pullsView(state).show(cmd, *f)
	})
	return cmd
}

func pullsFlushCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "flush", Short: "Count now the pulls that aren't counted yet", Args: cobra.NoArgs,
		Long: "Count now the pulls that aren't counted yet, except those of the last second and those behind a transaction\n" +
			"that is open in the database.",
	}
	f := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		state, err := api.FlushPulls.Call(cmd.Context(), c, struct{}{})
		if err != nil {
			return err
		}
		return pullsView(state).show(cmd, *f)
	})
	return cmd
}

func pullsResetCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reset", Short: "Go on counting after the database was restored or moved", Args: cobra.NoArgs,
		Long: "Go on counting after the database was restored or moved. Counts stay; what was counted isn't counted\n" +
			"again, and what wasn't will be. Pulls that the database has lost are unknown, so statistics count as complete\n" +
			"from now on only, and reporters of holds count as silent until they report again. It may take minutes where\n" +
			"the audit log is long.",
	}
	yes := command.AddYes(cmd)
	redis := cmd.Flags().Bool("redis", false, "give up the pulls in a Redis that no longer exists, and do nothing else")
	complete := cmd.Flags().Bool("nothing-lost", false, "the database was only moved, and nothing was served meanwhile: what was known before stays known")
	cmd.MarkFlagsMutuallyExclusive("redis", "nothing-lost")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		if *redis {
			if err := command.Confirm(cmd, *yes, "Give up the pulls that Redis had?"); err != nil {
				return err
			}
			_, err := api.ResetPullCounts.Call(cmd.Context(), c, api.PullsReset{Redis: true})
			return err
		}
		if err := command.Confirm(cmd, *yes, "Put the pulls in the audit log in a new order?"); err != nil {
			return err
		}
		done, err := api.ResetPullCounts.Call(cmd.Context(), c, api.PullsReset{NothingLost: *complete})
		if err != nil {
			return err
		}
		return say(cmd, "Pulls to be counted: %s.\n", humanize.Comma(done.Unread))
	})
	return cmd
}
