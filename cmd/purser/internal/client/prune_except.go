package client

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
)

func pruneExceptCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "except REPOSITORY", Short: "Let only its own policies delete in a repository, or end that", Args: cobra.ExactArgs(1),
		Long: "Make a repository an exception: the policies of its namespace and of the registry delete nothing in it any more, at once.\n" +
			"Their keep rules go on to keep tags. The repository's own policies delete as before; without any, every tag stays.",
		Example: "  purser prune except library/app\n  purser prune except library/app --until 2030-01-02T15:04:05Z\n  purser prune except library/app --end",
	}
	yes := command.AddYes(cmd)
	until := cmd.Flags().String("until", "", "end it at `TIME`, such as 2030-01-02T15:04:05Z")
	end := cmd.Flags().Bool("end", false, "let the policies delete again")
	cmd.MarkFlagsMutuallyExclusive("until", "end")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		path := api.Path("repository", args[0], "autoprune", "exception")
		if *end {
			return endException(cmd, c, path, args[0], *yes)
		}
		body := map[string]any{}
		if *until != "" {
			at, err := time.Parse(time.RFC3339, *until)
			if err != nil {
				return command.Usagef("--until: %q is no time like 2030-01-02T15:04:05Z", *until)
			}
			body["until"] = at
		}
		if err := c.Put(cmd.Context(), path, body, nil); err != nil {
			return err
		}
		var own struct {
			Policies []any `json:"policies"`
		}
		if err := c.Get(cmd.Context(), api.Path("repository", args[0], "autoprunepolicy"), nil, &own); err != nil {
			return err
		}
		if len(own.Policies) == 0 {
			return say(cmd, "%s is an exception. It has no policies of its own, so it keeps every tag.\n", args[0])
		}
		return say(cmd, "%s is an exception: only its own policies delete there.\n", args[0])
	})
	return cmd
}

func endException(cmd *cobra.Command, c *api.Client, path, repository string, yes bool) error {
	err := command.Confirm(cmd, yes, "End the exception of %s? The next run may delete tags of it: \"purser prune preview\" doesn't show them before.", repository)
	if err != nil {
		return err
	}
	var done struct{ Ended bool }
	if err := c.Do(cmd.Context(), http.MethodDelete, path, nil, nil, &done); err != nil {
		return err
	}
	if !done.Ended {
		return say(cmd, "%s was no exception.\n", repository)
	}
	return say(cmd, "The policies of the namespace and of the registry delete in %s again.\n", repository)
}

// exceptionsOf lists the exceptions of a namespace or repository.
func exceptionsOf(cmd *cobra.Command, c *api.Client, target string) ([]autoprune.Exception, error) {
	path := api.Path("organization", target, "autoprune", "exceptions")
	if strings.Contains(target, "/") {
		path = api.Path("repository", target, "autoprune", "exception")
	}
	list := []autoprune.Exception{}
	for query := (url.Values{}); ; {
		var page struct {
			Exceptions []autoprune.Exception `json:"exceptions"`
			Next       string                `json:"next_page"`
		}
		if err := c.Get(cmd.Context(), path, query, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Exceptions...)
		if page.Next == "" {
			return list, nil
		}
		query.Set("next_page", page.Next)
	}
}

func pruneExceptionsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "exceptions NAMESPACE", Short: "List the repositories in which only their own policies delete", Args: cobra.ExactArgs(1),
	}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		list, err := exceptionsOf(cmd, c, args[0])
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error { return table(w, exceptionColumns, exceptionRows(list), false) })
	})
	return cmd
}

var exceptionColumns = []string{"EXCEPTION", "SINCE", "UNTIL"}

func exceptionRows(list []autoprune.Exception) (rows [][]string) {
	for _, e := range list {
		until := "it is ended"
		if e.Until != nil {
			until = clock(e.Until)
		}
		rows = append(rows, []string{e.Repository, clock(&e.Since), until})
	}
	return rows
}

// printExceptions prints the exceptions of a namespace or repository, if there are any.
func printExceptions(cmd *cobra.Command, w io.Writer, c *api.Client, target string) error {
	list, err := exceptionsOf(cmd, c, target)
	if err != nil || len(list) == 0 {
		return err
	}
	return table(w, exceptionColumns, exceptionRows(list), false)
}
