package client

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/policy"
)

func pruneForecastCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "forecast TARGET", Short: "Show what policies would have deleted in the past, day by day",
		Long: "Show what policies would have deleted in a namespace (app) or a repository (app/web) over the last days, if\n" +
			"a run had taken place once a day. Without a policy: the policies that apply now. With one: that policy\n" +
			"alone; --settings then shows what would be stored now if the policy had other ages, numbers or sizes.",
		Example: "  purser prune forecast app\n  purser prune forecast app --older-than 30d --settings 7d,30d,90d\n" +
			"  purser prune forecast app/web --num-tags 100 --days 14",
		Args: cobra.ArbitraryArgs,
	}
	format, target, flags := command.AddFormat(cmd), addTarget(cmd, false), addPolicyFlags(cmd)
	days := 90
	cmd.Flags().Var(command.Number(&days, 1, forecast.MaxDays), "days", "forecast `N` days that end now; 365 at most")
	var settings string
	textFlag(cmd, &settings, "settings", "", "show what would be stored with each of these ages, numbers or sizes, `LIST` like 7d,30d,90d or 10,100 or 50GiB,1TB", checkSettings)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, _, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		in := api.ForecastInput{PolicyAt: api.PolicyAt(at), Days: days}
		if in.Body, err = flags.tried(); err != nil {
			return err
		}
		if in.Body == nil && settings != "" {
			return command.Usagef("--settings needs a policy: give --older-than AGE, --num-tags N, --max-bytes SIZE or --policy JSON")
		}
		if settings != "" {
			in.Settings = strings.Split(settings, ",")
		}
		f, err := api.ForecastPolicy.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		for _, policy := range f.Policies {
			warn(cmd, policy.Warnings)
		}
		return format.Print(cmd.OutOrStdout(), f, func(w io.Writer) error { return printForecast(w, f) })
	})
	return cmd
}

// checkSettings checks a list of ages, numbers or sizes.
func checkSettings(text string) error {
	list := strings.Split(text, ",")
	if len(list) > forecast.MaxSettings {
		return fmt.Errorf("it has %d elements; write at most %d", len(list), forecast.MaxSettings)
	}
	for _, s := range list {
		if _, err := policy.ParseSize(s); err == nil { // also a number
			continue
		}
		if _, err := policy.ParseAge(s); err != nil {
			return err
		}
	}
	return nil
}

// barWidth is the number of characters of the longest bar.
const barWidth = 30

// bar returns a bar whose length shows n, compared with the greatest number of all bars. It has
// at least one character if n isn't 0.
func bar(n, most int64) string {
	if n <= 0 || most <= 0 {
		return " "
	}
	return strings.Repeat("█", max(1, int(math.Round(float64(n)/float64(most)*barWidth))))
}

func printForecast(w io.Writer, f forecast.Forecast) error {
	if len(f.Policies) == 0 {
		fmt.Fprintln(w, "No policy applies.") //nolint:errcheck // an error shows up in the last write
	}
	for _, policy := range f.Policies {
		if policy.Notice != "" && policy.Policy != nil {
			fmt.Fprintf(w, "Policy %s can't be applied in full: %s.\n", policy.Policy, policy.Notice) //nolint:errcheck // an error shows up in the last write
		}
	}
	var most int64
	for _, d := range f.Days {
		most = max(most, d.Deleted)
	}
	rows := make([][]string, len(f.Days))
	for i, d := range f.Days {
		rows[i] = []string{d.At.Local().Format(time.DateOnly), humanize.Comma(d.Tags), humanize.Comma(d.Deleted), forecastSize(d.Freed), bar(d.Deleted, most)}
	}
	if err := table(w, []string{"DAY", "TAGS", "DELETED", "FREED", " "}, rows, false); err != nil {
		return err
	}
	fmt.Fprintln(w) //nolint:errcheck // an error shows up in the last write
	if err := printSettings(w, f); err != nil {
		return err
	}
	for _, note := range f.Notes {
		fmt.Fprintf(w, "Note: %s.\n", note) //nolint:errcheck // an error shows up in the last write
	}
	if !f.Complete {
		fmt.Fprintln(w, "The forecast isn't complete: it ran out of time, or something is too large.") //nolint:errcheck // an error shows up in the last write
	}
	freed := ""
	if f.Bytes != nil && f.Freed != nil {
		freed = fmt.Sprintf(" Of the %s that are stored now, %s would be gone.", command.Size(*f.Bytes), command.Size(*f.Freed))
	}
	_, err := fmt.Fprintf(w, "%s would have been deleted in %s, in %s.%s\n",
		command.Count(f.Deleted, "tag"), command.Count(int64(len(f.Days)), "day"), repositories(f.Repositories), freed)
	return err
}

// printSettings prints what would be stored at each setting.
func printSettings(w io.Writer, f forecast.Forecast) error {
	if len(f.Settings) == 0 {
		return nil
	}
	rows := make([][]string, len(f.Settings))
	for i, s := range f.Settings {
		length := bar(s.Tags, f.Tags)
		if s.Bytes != nil && f.Bytes != nil {
			length = bar(*s.Bytes, *f.Bytes)
		}
		rows[i] = []string{s.Value, humanize.Comma(s.Tags), humanize.Comma(s.Deleted), forecastSize(s.Bytes), length}
	}
	if err := table(w, []string{"SETTING", "TAGS STAY", "GO", "STORED", " "}, rows, false); err != nil {
		return err
	}
	fmt.Fprintln(w) //nolint:errcheck // an error shows up in the last write
	return nil
}

func forecastSize(bytes *int64) string {
	if bytes == nil {
		return ""
	}
	return command.Size(*bytes)
}

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
