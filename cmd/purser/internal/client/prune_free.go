package client

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

func pruneFreeCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "free SIZE [NAMESPACE]", Short: "Free bytes, the least recently used tags first", Args: cobra.RangeArgs(1, 2),
		Long: "Free bytes in a namespace or, without one, in the registry: delete the tags that weren't used for the longest time, until garbage\n" +
			"collection can free as much as is asked for. What is protected, deployed, kept by policies or exempted stays. Nothing is\n" +
			"freed while pull statistics are missing or younger than --unused-for. Shows first what it would delete, and asks. The next run of\n" +
			"each namespace deletes the tags; \"purser prune runs\" lists it, and \"purser prune undo\" undoes it.",
		Example: "  purser prune free 500GB\n  purser prune free 20GiB app --unused-for 90d --dry-run",
	}
	format, yes := command.AddFormat(cmd), command.AddYes(cmd)
	dry := cmd.Flags().Bool("dry-run", false, "only show what would be deleted")
	var age string
	textFlag(cmd, &age, "unused-for", "30d", "only tags that weren't used or pushed for `AGE`", checkAge)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		bytes, err := parseSize(args[0])
		if err != nil {
			return command.Usagef("SIZE: %v", err)
		}
		in := api.FreeInput{Body: api.FreeBody{Bytes: bytes, UnusedFor: age}}
		if len(args) > 1 {
			in.Namespace = args[1]
		}
		answer, err := api.FreeBytes.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		if *format != command.JSON || *dry {
			err := format.Print(cmd.OutOrStdout(), answer, func(w io.Writer) error { return printFreePlan(w, answer.Plan) })
			if err != nil || *dry {
				return err
			}
		}
		if answer.Plan.Plan == "" {
			return command.Refuse("nothing can be deleted")
		}
		err = command.Confirm(cmd, *yes, "Delete %s that weren't used or pushed for %s%s? The run can be undone until garbage collection deletes the manifests.",
			command.Count(answer.Plan.Tags, "tag"), age, shortAge(age))
		if err != nil {
			return err
		}
		in.Body = api.FreeBody{Plan: answer.Plan.Plan}
		started, err := api.FreeBytes.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		answer.Started = started.Started
		return format.Print(cmd.OutOrStdout(), answer, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "The next run of %s deletes them: \"purser prune runs\" lists it.\n", command.Count(int64(len(answer.Started.Namespaces)), "namespace"))
			return err
		})
	})
	return cmd
}

// parseSize returns the number of bytes that a text stands for, such as 500GB or "500 GB".
func parseSize(text string) (int64, error) {
	size, err := policy.ParseSize(strings.ReplaceAll(text, " ", ""))
	return int64(size), err
}

// shortAge says how long an age below an hour is, since m is minutes and not months; "" for others. It
// follows the age in a sentence.
func shortAge(text string) string {
	age, err := policy.ParseAge(text)
	if err != nil || age.Duration() >= time.Hour {
		return ""
	}
	return ", which is " + age.Duration().String() + " (m is minutes)"
}

// printFreePlan prints what would be deleted, and when its space comes back.
func printFreePlan(w io.Writer, p *autoprune.FreePlan) error {
	var rows [][]string
	for _, r := range p.Repositories {
		rows = append(rows, []string{r.Repository, humanize.Comma(r.Tags), clock(&r.Oldest), clock(&r.Newest)})
	}
	if len(rows) > 0 {
		if err := table(w, []string{"REPOSITORY", "TAGS", "LEAST RECENT USE", "MOST RECENT USE"}, rows, len(rows) == 1000); err != nil {
			return err
		}
	}
	for _, n := range p.Notices {
		fmt.Fprintf(w, "Not everything could be judged: %s.\n", n) //nolint:errcheck // an error shows up in the last write
	}
	for _, text := range []string{p.ShortAge, p.Unproved} {
		if text != "" {
			fmt.Fprintf(w, "Beware: %s.\n", text) //nolint:errcheck // an error shows up in the last write
		}
	}
	text := fmt.Sprintf("%s would be deleted. Garbage collection would then free %s of %s", command.Count(p.Tags, "tag"), command.Size(p.Freed), command.Size(p.Bytes))
	switch {
	case !p.Complete:
		text += "; there was no time to find the rest. Carry this out, and ask again"
	case !p.Enough:
		text += ", and not more, of what wasn't used for so long"
	}
	_, err := fmt.Fprintln(w, text+".\nThe space comes back when garbage collection deletes the manifests, a week after the run by default (tag_prune of gc.review_after_events), and their blobs, gc.review_after later.")
	return err
}
