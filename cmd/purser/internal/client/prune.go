package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/worker"
)

func pruneCommand(src *command.Source) *cobra.Command {
	return addServer(command.Group("prune", "See what auto-pruning would do, does and did",
		prunePreviewCommand(src), pruneForecastCommand(src), pruneRunCommand(src), pruneStatusCommand(src), pruneRunsCommand(src), pruneShowCommand(src),
		pruneUndoCommand(src), pruneExemptionsCommand(src), pruneExceptCommand(src), pruneExceptionsCommand(src), pruneFreeCommand(src), pruneAsksCommand(src), pruneApproveCommand(src), pruneConfirmCommand(src), pruneDefaultsCommand(src)))
}

func prunePreviewCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "preview TARGET", Short: "Show which tags would be deleted, and why, and change nothing",
		Long: "Show which tags of a namespace (app) or a repository (app/web) would be deleted, which stay and why, and how\n" +
			"much garbage collection would free. Without a policy: under the policies that apply now. With one:\n" +
			"under that policy alone. A pattern is searched for in names: anchor it, as in '^v[0-9]+$', for whole names.",
		Example: "  purser prune preview app\n  purser prune preview app --policy '{\"method\": \"number_of_tags\", \"numTags\": 100}'\n" +
			"  purser prune preview app/web --older-than 2w",
		Args: cobra.ArbitraryArgs,
	}
	format, target, flags := command.AddFormat(cmd), addTarget(cmd, false), addPolicyFlags(cmd)
	limit := 100
	cmd.Flags().Var(command.Number(&limit, 1, api.MaxPreviewed), "limit", "list at most `N` tags to delete, and as many that stay; 10000 at most")
	stay := cmd.Flags().Bool("staying", false, "list the tags that stay, too")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		at, _, _, err := target.at(args, 0)
		if err != nil {
			return err
		}
		in := api.PreviewInput{PolicyAt: api.PolicyAt(at), Limit: limit}
		if in.Body, err = flags.tried(); err != nil {
			return err
		}
		p, err := api.PreviewPolicy.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		if in.Body == nil {
			for _, policy := range p.Policies {
				warn(cmd, policy.Warnings)
			}
		}
		warn(cmd, policy.Sentences(p.Found))
		return format.Print(cmd.OutOrStdout(), p, func(w io.Writer) error {
			if err := printPreview(w, p.Preview, *stay); err != nil || len(args) == 0 {
				return err
			}
			return printExceptions(cmd, w, c, args[0])
		})
	})
	return cmd
}

// tried returns the policy that the flags try out, nil if none was given.
func (f *policyFlags) tried() (*api.PolicyText, error) {
	if f.json == "" && !f.given() {
		return nil, nil
	}
	body, err := f.body()
	return &body, err
}

func printPreview(w io.Writer, p autoprune.Preview, stay bool) error {
	if len(p.Policies) == 0 {
		_, err := fmt.Fprintln(w, "No policy applies.")
		return err
	}
	for _, policy := range p.Policies {
		if policy.Notice == "" {
			continue
		}
		what := policy.ID
		if policy.Policy != nil {
			what = policy.Policy.String()
		}
		fmt.Fprintf(w, "Policy %s can't be applied in full: %s.\n", what, policy.Notice) //nolint:errcheck // an error shows up in the last write
	}
	lists := []struct {
		verb string
		tags []autoprune.PreviewTag
		of   int64
	}{{"GOES", p.Going, p.Deleted}}
	if p.WouldDelete > 0 {
		lists = append(lists, struct {
			verb string
			tags []autoprune.PreviewTag
			of   int64
		}{"WOULD GO", p.Would, p.WouldDelete})
	}
	if stay {
		lists = append(lists, struct {
			verb string
			tags []autoprune.PreviewTag
			of   int64
		}{"STAYS", p.Staying, p.Tags - p.Deleted})
	}
	for _, l := range lists {
		if len(l.tags) == 0 {
			continue
		}
		rows := make([][]string, len(l.tags))
		for i, t := range l.tags {
			rows[i] = []string{t.Repository + ":" + t.Tag, clock(&t.Pushed), t.Reason}
		}
		if err := table(w, []string{l.verb, "PUSHED", "WHY"}, rows, false); err != nil {
			return err
		}
		if more := l.of - int64(len(l.tags)); more > 0 {
			fmt.Fprintf(w, "… and %s more: see --limit.\n", humanize.Comma(more)) //nolint:errcheck // an error shows up in the last write
		}
		fmt.Fprintln(w) //nolint:errcheck // an error shows up in the last write
	}
	if err := printUntagged(w, p); err != nil {
		return err
	}
	for _, code := range slices.Sorted(maps.Keys(p.Reasons)) {
		fmt.Fprintf(w, "%10s  %s\n", humanize.Comma(p.Reasons[code]), code.Words()) //nolint:errcheck // an error shows up in the last write
	}
	if !p.Complete {
		fmt.Fprintln(w, "The preview ran out of time before it had looked at everything.") //nolint:errcheck // an error shows up in the last write
	}
	if p.WouldDelete > 0 {
		fmt.Fprintf(w, "%s more would go if no policy observed or waited.\n", command.Count(p.WouldDelete, "tag")) //nolint:errcheck // an error shows up in the last write
	}
	freed := ""
	if p.Bytes != nil {
		freed = " Garbage collection would then free " + command.Size(*p.Bytes) + "."
	}
	_, err := fmt.Fprintf(w, "%s of %s in %s would be deleted.%s\n", humanize.Comma(p.Deleted), command.Count(p.Tags, "tag"), repositories(p.Repositories), freed)
	return err
}

func repositories(n int64) string {
	if n == 1 {
		return "1 repository"
	}
	return humanize.Comma(n) + " repositories"
}

// pruneState is the state of auto-pruning in a namespace, in the API's format.
type pruneState api.PruneState

func (s pruneState) print(w io.Writer, namespace string) error {
	if s.Task == nil {
		_, err := fmt.Fprintf(w, "No policy applies to %s, or no worker has looked at the namespace yet.\n", namespace)
		return err
	}
	defaults := "apply as long as the namespace has no policies of its own"
	if !s.UsesDefaults {
		defaults = "refused"
	}
	return fields(w, "namespace", namespace, "status", s.Task.Status, "resting", s.Task.Resting, "policies that rest", s.restTexts(), "last ran", clock(s.Task.LastRan), "run", s.Task.Run, "defaults", defaults)
}

func pruneStatusCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "status NAMESPACE", Short: "Show the state of auto-pruning in a namespace", Args: cobra.ExactArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		s, err := api.GetPruneState.Call(cmd.Context(), c, api.PruneNamespace{Namespace: args[0]})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), s, func(w io.Writer) error {
			if err := pruneState(s).print(w, args[0]); err != nil {
				return err
			}
			return printExceptions(cmd, w, c, args[0])
		})
	})
	return cmd
}

func pruneRunCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "run NAMESPACE", Short: "Prune a namespace now", Args: cobra.ExactArgs(1),
		Long: "Put a namespace at the head of the queue, for a run under the policies that apply, and wait for its end.\n" +
			"If a run is under way, another follows it, and the command waits for that one. An interrupt ends the waiting\n" +
			"and not the run. The exit code is 1 when the run failed, and 3 when no policy applies.",
	}
	format := command.AddFormat(cmd)
	wait := cmd.Flags().Bool("wait", true, "wait for the end of the run")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := api.PruneNamespace{Namespace: args[0]}
		queued, err := api.PruneNow.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		s := pruneState(queued)
		if *wait {
			if err := waitForRun(cmd.Context(), c, in, &s, command.NewProgressLine(cmd.ErrOrStderr())); err != nil {
				return err
			}
		}
		err = format.Print(cmd.OutOrStdout(), s, func(w io.Writer) error { return s.print(w, args[0]) })
		if err == nil && *wait {
			err = s.failed(args[0])
		}
		return err
	})
	return cmd
}

// failed returns an error if the namespace's last pruning run failed, or was stopped since
// no policy applies any more.
func (s pruneState) failed(namespace string) error {
	switch {
	case s.Task == nil:
		return fmt.Errorf("the run was stopped: no policy applies to %s any more", namespace)
	case strings.HasPrefix(s.Task.Status, "failure"):
		return fmt.Errorf("the run failed: \"purser prune runs %s\" lists it, and \"purser prune show RUN\" tells more", namespace)
	}
	return nil
}

// queuedLong is the longest time that a requested pruning run usually waits for a worker.
const queuedLong = 15 * time.Second

// progress says how far a pruning run of a namespace with so many repositories (0: unknown) has got. `since`
// is the time at which the user requested this run.
func (s pruneState) progress(ctx context.Context, c *api.Client, since time.Time, all int64) command.Measured {
	switch waited := time.Since(since); {
	case s.Task.Status == "queued" && waited > queuedLong:
		return command.Measured{Text: fmt.Sprintf("queued for %s: workers are busy, or autoprune.enabled is false on all servers", waited.Round(time.Second))}
	case s.Task.Run == "":
		return command.Measured{Text: s.Task.Status}
	}
	r, err := api.GetPruneRun.Call(ctx, c, api.PruneRunItem{Run: s.Task.Run})
	if err != nil { // the run may have ended meanwhile
		return command.Measured{Text: s.Task.Status}
	}
	m := command.Measured{
		Text:  fmt.Sprintf("%s: deleted %s of %s in %s so far", s.Task.Status, humanize.Comma(r.Deleted), command.Count(r.Tags, "tag"), repositories(r.Repositories)),
		Share: command.Share(r.Repositories, all), Count: r.Tags, Unit: "tag",
	}
	if r.Failed > 0 {
		m.Text += ", " + repositories(r.Failed) + " failed"
	}
	return m
}

// repositoriesOf returns how many repositories a namespace has; 0 if that can't be known now.
func repositoriesOf(ctx context.Context, c *api.Client, namespace string) int64 {
	page, err := api.ListNamespaces.Call(ctx, c, api.NamespaceQuery{NameFilter: api.NameFilter{Prefix: namespace}, Limit: 1})
	if err != nil || len(page.Namespaces) == 0 || page.Namespaces[0].Name != namespace || !page.Namespaces[0].Repositories.Exact {
		return 0
	}
	return page.Namespaces[0].Repositories.Rows
}

// waitForRun polls the namespace's state into `s` until its pruning run is neither queued
// nor running, and shows the run's progress on `line`.
func waitForRun(ctx context.Context, c *api.Client, in api.PruneNamespace, s *pruneState, line *command.ProgressLine) error {
	defer line.Clear()
	began, all := time.Now(), int64(-1) // all: not asked yet
	for pause := 50 * time.Millisecond; s.Task != nil && (s.Task.Status == "queued" || s.Task.Status == "running"); pause = min(2*pause, 2*time.Second) {
		if s.Task.Resting != "" {
			return fmt.Errorf("the run waits, since nothing is pruned now: %s", s.Task.Resting)
		}
		if worker.Sleep(ctx, pause) != nil {
			return errors.New("interrupted: the run goes on in the registry")
		}
		if line.Due() {
			if all < 0 {
				all = repositoriesOf(ctx, c, in.Namespace)
			}
			line.Measure(s.progress(ctx, c, began, all))
		}
		now, err := api.GetPruneState.Call(ctx, c, in)
		if err != nil {
			return err
		}
		*s = pruneState(now)
	}
	return nil
}

func pruneRunsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "runs [NAMESPACE]", Short: "List runs, newest first", Args: cobra.MaximumNArgs(1)}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		var in api.PruneRunQuery
		if len(args) == 1 {
			in.Namespace = args[0]
		}
		list, more, err := api.List(cmd.Context(), c, api.ListPruneRuns, in, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(r autoprune.RunSummary) string { return r.ID }, func(w io.Writer) error { return printRuns(w, list, more) })
	})
	return cmd
}

func printRuns(w io.Writer, list []autoprune.RunSummary, more bool) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "There are no runs.")
		return err
	}
	rows := make([][]string, len(list))
	for i, r := range list {
		state := r.State
		if r.Times > 1 {
			state += fmt.Sprintf(" (%d times)", r.Times)
		}
		rows[i] = []string{
			r.ID, r.Namespace, state, clock(&r.Started), took(r.Took), humanize.Comma(r.Deleted) + " of " + humanize.Comma(r.Tags),
			humanize.Comma(r.Restored), r.Error,
		}
	}
	return table(w, []string{"RUN", "NAMESPACE", "STATE", "STARTED", "TOOK", "DELETED", "RESTORED", "ERROR"}, rows, more)
}

// wouldText returns the number of tags that a run would have deleted; "" for none.
func wouldText(n int64) string {
	if n == 0 {
		return ""
	}
	return command.Count(n, "tag")
}

func took(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

func pruneShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show RUN", Short: "Show what a run did, by repository", Args: cobra.ExactArgs(1)}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		run, err := identifyRun(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		r, err := api.GetPruneRun.Call(cmd.Context(), c, api.PruneRunItem{Run: run})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), r, func(w io.Writer) error { return printRun(w, r) })
	})
	return cmd
}

func printRun(w io.Writer, r autoprune.RunDetails) error {
	err := fields(w, "run", r.ID, "namespace", r.Namespace, "state", r.State, "started", clock(&r.Started), "ended", clock(r.Ended),
		"took", took(r.Took), "deleted", fmt.Sprintf("%s of %s in %s", humanize.Comma(r.Deleted), command.Count(r.Tags, "tag"), repositories(r.Repositories)),
		"would be deleted", wouldText(r.Would), "restored", humanize.Comma(r.Restored), "error", r.Error)
	for _, policy := range slices.Sorted(maps.Keys(r.Notices)) {
		if err == nil {
			_, err = fmt.Fprintf(w, "Policy %s couldn't be applied in full: %s.\n", policy, r.Notices[policy])
		}
	}
	for _, a := range r.Asks {
		if err == nil {
			_, err = fmt.Fprintf(w, "To let it delete them: purser prune approve %s %s\n", r.Namespace, a.Policy)
		}
	}
	if err == nil && len(r.Observed) > 0 {
		rows := make([][]string, len(r.Observed))
		for i, t := range r.Observed {
			rows[i] = []string{t.Repository + ":" + t.Tag, t.Policy, t.Reason}
		}
		err = table(w, []string{"WOULD GO", "POLICY", "WHY"}, rows, r.Would > int64(len(rows)))
	}
	if err != nil || len(r.PerRepository) == 0 {
		return err
	}
	rows := make([][]string, len(r.PerRepository))
	for i, p := range r.PerRepository {
		by := ""
		for _, policy := range slices.Sorted(maps.Keys(p.Policies)) {
			by += fmt.Sprintf("%s by %s ", humanize.Comma(p.Policies[policy]), policy)
		}
		rows[i] = []string{p.Repository, humanize.Comma(p.Deleted), by, p.Error}
	}
	return table(w, []string{"REPOSITORY", "DELETED", "BY POLICY", "ERROR"}, rows, false)
}

func pruneUndoCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "undo RUN", Short: "Restore the tags that a run has deleted", Args: cobra.ExactArgs(1),
		Long: "Restore the tags that a run has deleted, as they were, as long as garbage collection hasn't deleted\n" +
			"their manifests: for a week by default (tag_prune of gc.review_after_events). Tags that were made since stay as\n" +
			"they are. A policy that deleted a tag doesn't delete it again until the policy gets another rule, somebody ends\n" +
			"the exemption (purser prune exemptions REPOSITORY --end), or the tag is deleted otherwise.",
	}
	format := command.AddFormat(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		run, err := identifyRun(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		total := autoprune.Undone{Run: run, GoneTags: []string{}, TrashNames: []string{}}
		for in := (api.PruneRunUndo{PruneRunItem: api.PruneRunItem{Run: run}}); ; {
			part, err := api.UndoPruneRun.Call(cmd.Context(), c, in)
			if err != nil {
				return err
			}
			total.Restored += part.Restored
			total.Exists += part.Exists
			total.Gone += part.Gone
			total.GoneTags = append(total.GoneTags, part.GoneTags...)
			total.InTrash += part.InTrash
			total.TrashNames = append(total.TrashNames, part.TrashNames...)
			if part.Next == "" {
				break
			}
			in.Cursor = part.Next
		}
		return format.Print(cmd.OutOrStdout(), total, func(w io.Writer) error {
			for _, t := range total.GoneTags {
				fmt.Fprintf(w, "can't be restored: %s\n", t) //nolint:errcheck // an error shows up in the last write
			}
			_, err := fmt.Fprintf(w, "Restored %s; left %s that were made since; %s can't be restored.\n",
				command.Count(total.Restored, "tag"), humanize.Comma(total.Exists), humanize.Comma(total.Gone))
			if total.InTrash > 0 {
				_, err = fmt.Fprintf(w, "%s are in the trash with %s: restore these (purser trash restore), and undo the run again.\n",
					command.Count(total.InTrash, "tag"), strings.Join(slices.Compact(slices.Sorted(slices.Values(total.TrashNames))), ", "))
			}
			return err
		})
	})
	return cmd
}

func pruneDefaultsCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "defaults NAMESPACE on|off", Short: "Let the default policies apply to a namespace, or not", Args: cobra.ExactArgs(2),
		Long: "Let the registry's default policies apply to a namespace, or not. They apply as long as it has no\n" +
			"policies of its own. What policies would delete then and leave now is shown first, and the command asks.",
	}
	yes := command.AddYes(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if args[1] != "on" && args[1] != "off" {
			return command.Usagef("%q is neither on nor off", args[1])
		}
		question := "Let the default policies apply?"
		if args[1] == "off" {
			question = "Refuse the default policies?"
		}
		_, err := confirmed(cmd, *yes, question, func(confirm api.PolicyConfirmation) (api.None, error) {
			return api.SetPruneState.Call(cmd.Context(), c, api.PruneStateChange{
				PruneNamespace: api.PruneNamespace{Namespace: args[0]}, DefaultsConfirmation: api.DefaultsConfirmation(confirm),
				Body: api.PruneSetting{UsesDefaults: args[1] == "on"},
			})
		})
		return err
	})
	return cmd
}

// printUntagged prints the untagged manifests of a preview.
func printUntagged(w io.Writer, p autoprune.Preview) error {
	if len(p.Untagged) == 0 {
		return nil
	}
	rows := make([][]string, len(p.Untagged))
	for i, m := range p.Untagged {
		rows[i] = []string{m.Repository + "@" + m.Digest, clock(&m.Deleted), m.Reason}
	}
	if err := table(w, []string{"UNTAGGED", "GOES AFTER", "STAYS UNTIL THEN BECAUSE OF"}, rows, false); err != nil {
		return err
	}
	if p.UntaggedMore {
		fmt.Fprintln(w, "… and more: see --limit.") //nolint:errcheck // an error shows up in the last write
	}
	_, err := fmt.Fprintln(w)
	return err
}
