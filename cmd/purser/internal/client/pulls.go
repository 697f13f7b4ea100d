package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
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

// addDays adds the flag --days. Its value becomes the query parameter of the same name.
func addDays(cmd *cobra.Command) *api.HistoryDays {
	days := &api.HistoryDays{Days: 30}
	cmd.Flags().Var(command.Number(&days.Days, 1, 3660), "days", "the last `N` days, today included")
	return days
}

// history asks for the history of a namespace, REPOSITORY, REPOSITORY:TAG or REPOSITORY@DIGEST;
// without an argument, of the registry.
func history(ctx context.Context, c *api.Client, args []string, days api.HistoryDays) (api.PullHistory, error) {
	if len(args) == 0 {
		return api.GetHistory.Call(ctx, c, days)
	}
	if repository, digest, ok := strings.Cut(args[0], "@"); ok {
		d, err := findDigest(ctx, c, "DIGEST", repository, digest)
		if err != nil {
			return api.PullHistory{}, err
		}
		in := api.ManifestItem{InRepository: api.InRepository{Repository: repository}, Digest: d}
		return api.GetManifestHistory.Call(ctx, c, api.ManifestHistory{ManifestItem: in, HistoryDays: days})
	}
	if repository, tag, ok := strings.Cut(args[0], ":"); ok {
		in := api.TagItem{InRepository: api.InRepository{Repository: repository}, Tag: tag}
		return api.GetTagHistory.Call(ctx, c, api.TagHistory{TagItem: in, HistoryDays: days})
	}
	if strings.Contains(args[0], "/") {
		return api.GetRepositoryHistory.Call(ctx, c, api.RepositoryHistory{InRepository: api.InRepository{Repository: args[0]}, HistoryDays: days})
	}
	return api.GetNamespaceHistory.Call(ctx, c, api.NamespaceHistory{InNamespace: api.InNamespace{Namespace: args[0]}, HistoryDays: days})
}

func pullsHistoryCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "history [NAMESPACE|REPOSITORY|REPOSITORY:TAG|REPOSITORY@DIGEST]", Short: "Show how many pulls there were on each day", Args: cobra.MaximumNArgs(1),
		Long: "Show how many pulls there were on each day, in UTC: of a namespace, a repository, a tag or a manifest, or of the\n" +
			"whole registry. A name without a slash is a namespace. Days from before the history began are left out.",
	}
	f, days := command.AddFormat(cmd), addDays(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		h, err := history(cmd.Context(), c, args, *days)
		if err != nil {
			return err
		}
		return f.Print(cmd.OutOrStdout(), h, func(w io.Writer) error {
			rows := make([][]string, 0, len(h.Days)+1)
			for _, d := range h.Days {
				rows = append(rows, []string{d.Day, humanize.Comma(d.Pulls)})
			}
			return table(w, []string{"DAY", "PULLS"}, append(rows, []string{"total", humanize.Comma(h.Total)}), false)
		})
	})
	return cmd
}

func pullsTopCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top [NAMESPACE|REPOSITORY]", Short: "List what was pulled most", Args: cobra.MaximumNArgs(1),
		Long: "List the repositories that were pulled most, of a namespace or all, or the tags of a repository.",
	}
	listing, days := command.AddUnlimitedListing(cmd), addDays(cmd)
	limit := api.TopLimit{Limit: 10}
	cmd.Flags().Var(command.Number(&limit.Limit, 1, 1000), "limit", "list at most `N`")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if len(args) > 0 && strings.Contains(args[0], "/") {
			top, err := api.ListTopTags.Call(cmd.Context(), c, api.TopTagsQuery{InRepository: api.InRepository{Repository: args[0]}, HistoryDays: *days, TopLimit: limit})
			if err != nil {
				return err
			}
			return listing.Print(cmd, top, false, func(w io.Writer) error {
				for _, t := range top.Tags {
					if err := printed(fmt.Fprintln(w, t.Tag)); err != nil {
						return err
					}
				}
				return nil
			}, func(w io.Writer) error {
				rows := make([][]string, len(top.Tags))
				for i, t := range top.Tags {
					rows[i] = []string{t.Tag, humanize.Comma(t.Pulls)}
				}
				return ranked(w, "TAG", rows, top.Since, top.RecordedSince)
			})
		}
		in := api.TopRepositoriesQuery{HistoryDays: *days, TopLimit: limit}
		if len(args) > 0 {
			in.Namespace = args[0]
		}
		top, err := api.ListTopRepositories.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		return listing.Print(cmd, top, false, func(w io.Writer) error {
			for _, r := range top.Repositories {
				if err := printed(fmt.Fprintln(w, r.Repository)); err != nil {
					return err
				}
			}
			return nil
		}, func(w io.Writer) error {
			rows := make([][]string, len(top.Repositories))
			for i, r := range top.Repositories {
				rows[i] = []string{r.Repository, humanize.Comma(r.Pulls)}
			}
			return ranked(w, "REPOSITORY", rows, top.Since, top.RecordedSince)
		})
	})
	return cmd
}

// ranked prints a list of what was pulled most since the day `since`. If not all pulls of these days
// are counted, it says so below.
func ranked(w io.Writer, of string, rows [][]string, since *string, recorded *time.Time) error {
	err := table(w, []string{of, "PULLS"}, rows, false)
	if err != nil || since == nil || recorded == nil || recorded.UTC().Format(time.DateOnly) <= *since {
		return err
	}
	return printed(fmt.Fprintf(w, "Pulls from before %s may be missing.\n", clock(recorded)))
}

// printed returns the error of printing, as the functions of package fmt return it.
func printed(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

func pullsUnpulledCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unpulled [NAMESPACE]", Short: "List the repositories that weren't pulled", Args: cobra.MaximumNArgs(1),
		Long: "List the repositories that weren't pulled in the last days, of a namespace or all, as far as pulls were counted.\n" +
			"They may be in use all the same: a client that has an image asks for it by HEAD, which is no pull,\n" +
			"and pulls of the last minutes may not be counted yet (\"purser pulls status\").",
	}
	listing, days := command.AddListing(cmd), addDays(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.UnpulledQuery{HistoryDays: *days}
		if len(args) > 0 {
			in.Namespace = args[0]
		}
		var since string
		list, more, err := api.Collect(listing.Limit, func(cursor string, _ int) ([]string, string, error) { // a page examines as many as the registry says
			in.NextPage = cursor
			page, err := api.ListUnpulled.Call(cmd.Context(), c, in)
			if page.Since != nil {
				since = max(since, *page.Since) // each page says what it knows
			}
			return page.Repositories, page.NextPage, err
		})
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(r string) string { return r }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = []string{r}
			}
			if err := table(w, []string{"REPOSITORY"}, rows, more); err != nil || since == "" {
				return err
			}
			return printed(fmt.Fprintf(w, "Nobody pulled from these since %s, in UTC. Earlier pulls, and some of that day, may be unknown.\n", since))
		})
	})
	return cmd
}
