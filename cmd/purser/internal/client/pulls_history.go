package client

import (
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// addDays adds the flag --days. Its value becomes the query parameter of the same name.
func addDays(cmd *cobra.Command) *int {
	days := 30
	cmd.Flags().Var(command.Number(&days, 1, 3660), "days", "the last `N` days, today included")
	return &days
}

// historyPath returns the API's path of the history of a namespace, REPOSITORY,
// REPOSITORY:TAG or REPOSITORY@DIGEST; without an argument, of the registry.
func historyPath(args []string) string {
	if len(args) == 0 {
		return api.Path("pull_statistics", "history")
	}
	if repository, digest, ok := strings.Cut(args[0], "@"); ok {
		return api.Path("repository", repository, "manifest", digest, "pull_statistics", "history")
	}
	if repository, tag, ok := strings.Cut(args[0], ":"); ok {
		return api.Path("repository", repository, "tag", tag, "pull_statistics", "history")
	}
	if strings.Contains(args[0], "/") {
		return api.Path("repository", args[0], "pull_statistics", "history")
	}
	return api.Path("organization", args[0], "pull_statistics", "history")
}

func pullsHistoryCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "history [NAMESPACE|REPOSITORY|REPOSITORY:TAG|REPOSITORY@DIGEST]", Short: "Show how many pulls there were on each day", Args: cobra.MaximumNArgs(1),
		Long: "Show how many pulls there were on each day, in UTC: of a namespace, a repository, a tag or a manifest, or of the\n" +
			"whole registry. A name without a slash is a namespace. Days from before the history began are left out.",
	}
	f, days := command.AddFormat(cmd), addDays(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		var h api.PullHistory
		if err := c.Get(cmd.Context(), historyPath(args), url.Values{"days": {strconv.Itoa(*days)}}, &h); err != nil {
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
	f, days := command.AddFormat(cmd), addDays(cmd)
	limit := 10
	cmd.Flags().Var(command.Number(&limit, 1, 1000), "limit", "list at most `N`")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		q := url.Values{"days": {strconv.Itoa(*days)}, "limit": {strconv.Itoa(limit)}}
		if len(args) > 0 && strings.Contains(args[0], "/") {
			var top api.TopTags
			if err := c.Get(cmd.Context(), api.Path("repository", args[0], "pull_statistics", "top"), q, &top); err != nil {
				return err
			}
			return f.Print(cmd.OutOrStdout(), top, func(w io.Writer) error {
				rows := make([][]string, len(top.Tags))
				for i, t := range top.Tags {
					rows[i] = []string{t.Tag, humanize.Comma(t.Pulls)}
				}
				return table(w, []string{"TAG", "PULLS"}, rows, false)
			})
		}
		if len(args) > 0 {
			q.Set("namespace", args[0])
		}
		var top api.TopRepositories
		if err := c.Get(cmd.Context(), api.Path("pull_statistics", "top"), q, &top); err != nil {
			return err
		}
		return f.Print(cmd.OutOrStdout(), top, func(w io.Writer) error {
			rows := make([][]string, len(top.Repositories))
			for i, r := range top.Repositories {
				rows[i] = []string{r.Repository, humanize.Comma(r.Pulls)}
			}
			return table(w, []string{"REPOSITORY", "PULLS"}, rows, false)
		})
	})
	return cmd
}

func pullsUnpulledCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unpulled [NAMESPACE]", Short: "List the repositories that weren't pulled", Args: cobra.MaximumNArgs(1),
		Long: "List the repositories that weren't pulled in the last days, of a namespace or all, as far as there is a history.\n" +
			"They may be in use all the same: a client that has an image asks for it by HEAD, which is no pull,\n" +
			"and pulls of the last minutes may not be counted yet (\"purser pulls status\").",
	}
	f, days, limit := command.AddFormat(cmd), addDays(cmd), addLimit(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, more, err := api.Collect(*limit, func(cursor string, _ int) ([]string, string, error) {
			q := url.Values{"days": {strconv.Itoa(*days)}, "next_page": {cursor}}
			if len(args) > 0 {
				q.Set("namespace", args[0])
			}
			var page api.UnpulledRepositories
			err := c.Get(cmd.Context(), api.Path("pull_statistics", "unpulled"), q, &page)
			return page.Repositories, page.NextPage, err
		})
		if err != nil {
			return err
		}
		return f.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = []string{r}
			}
			return table(w, []string{"REPOSITORY"}, rows, more)
		})
	})
	return cmd
}
