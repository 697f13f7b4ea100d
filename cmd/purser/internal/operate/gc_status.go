package operate

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
)

func gcStatusCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what garbage collection has to do and what it reclaimed",
		Long: "Show what garbage collection has to do and what it reclaimed. What is due is reviewed next;\n" +
			"what waits is within the delay after the event that queued it; failed reviews are not tried again.\n" +
			"Pending deletions are objects of the store that belong to nothing any more. A number\n" +
			"with ~ is PostgreSQL's estimate, where there is too much to count.",
		Args: cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	command.AddInsecure(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withGC(src, cmd, func(ctx context.Context, g gcAccess) error {
			s, err := g.status(ctx)
			if err != nil {
				return err
			}
			return out.Print(cmd.OutOrStdout(), s, func(w io.Writer) error { return writeGCStatus(w, s) })
		})
	}
	return cmd
}

func writeGCStatus(w io.Writer, s gc.GCStatus) error {
	if s.Resting != "" {
		fmt.Fprintf(w, "Nothing is deleted: %s.\n\n", s.Resting)
	}
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "QUEUE\tDUE\tWAITING\tFAILED\tOLDEST OVERDUE\tNEXT DUE")
	for _, q := range []struct {
		name string
		gc.QueueStatus
	}{{"manifests", s.Manifests}, {"blobs", s.Blobs}} {
		overdue, next := "-", "-"
		if q.OldestOverdueSeconds > 0 {
			overdue = explain.Age(time.Duration(q.OldestOverdueSeconds) * time.Second)
		}
		if q.NextDue != nil {
			next = "in " + explain.Age(q.NextDue.Sub(s.AsOf))
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\n", q.name, number(q.Due), number(q.Waiting), number(q.Failed), overdue, next)
	}
	fmt.Fprintf(out, "\nstored\t%s (%s)\n", number(s.Stored.Blobs), command.Size(s.Stored.Bytes))
	fmt.Fprintf(out, "  shared\t%s (%s), in several repositories\n", number(s.Stored.Shared.Blobs), command.Size(s.Stored.Shared.Bytes))
	fmt.Fprintf(out, "reclaimable\t%s (%s), unused, which the next reviews delete\n", number(s.Reclaimable.Blobs), command.Size(s.Reclaimable.Bytes))
	fmt.Fprintf(out, "pending deletions\t%s (%s), %s due\n", number(s.Doomed.Objects), command.Size(s.Doomed.Bytes), number(s.Doomed.Due))
	if s.Doomed.SecondSweeps.Rows > 0 {
		fmt.Fprintf(out, "second deletions\t%s: deleted, and to be deleted once more in case a request wrote late\n", number(s.Doomed.SecondSweeps))
	}
	if s.Doomed.Kept.Rows > 0 {
		fmt.Fprintf(out, "  kept\t%s (%s)\n", number(s.Doomed.Kept), command.Size(s.Doomed.KeptBytes))
	}
	if s.Doomed.Foreign.Rows > 0 {
		fmt.Fprintf(out, "imported\t%s (%s) of another registry, kept until \"purser import --finish\"\n", number(s.Doomed.Foreign), command.Size(s.Doomed.ForeignBytes))
	}
	if s.Doomed.FailingSince != nil {
		fmt.Fprintf(out, "  failing\t%s, the oldest for %s: %s\n",
			number(s.Doomed.Failing), explain.Age(s.AsOf.Sub(*s.Doomed.FailingSince)), s.Doomed.LastError)
	}
	if s.Lost.Rows > 0 {
		fmt.Fprintf(out, "lost blobs\t%s: \"purser check\" lists them\n", number(s.Lost))
	}
	fmt.Fprintf(out, "uploads\t%s in progress (%s)\n", number(s.Uploads.Uploads), command.Size(s.Uploads.Bytes))
	fmt.Fprintln(out, "\nRECLAIMED\tMANIFESTS\tBLOBS\tOBJECTS\tSIZE")
	for _, r := range []struct {
		in string
		gc.Reclaimed
	}{{"last hour", s.LastHour}, {"last day", s.LastDay}} {
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", r.in,
			humanize.Comma(r.Manifests), humanize.Comma(r.Blobs), humanize.Comma(r.Objects), command.Size(r.Bytes))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return writeFailedReviews(w, s)
}

func writeFailedReviews(w io.Writer, s gc.GCStatus) error {
	if len(s.Failed) == 0 {
		return nil
	}
	text := "\nFAILED REVIEWS (\"purser gc retry\" makes all due again)\n"
	for _, r := range s.Failed {
		what := r.Digest.String()
		if r.Kind == gc.ReviewOfManifests {
			what = r.Repository + "@" + what
		}
		text += fmt.Sprintf("%s %s, %s ago: %s\n", r.Kind, what, explain.Age(s.AsOf.Sub(r.FailedAt)), r.LastError)
	}
	if more := s.Manifests.Failed.Rows + s.Blobs.Failed.Rows - int64(len(s.Failed)); more > 0 {
		text += fmt.Sprintf("… and %s more\n", humanize.Comma(more))
	}
	_, err := io.WriteString(w, text)
	return err
}

// number formats a count with commas. It puts a tilde in front of an estimate.
func number(n catalog.Count) string {
	if n.Exact {
		return humanize.Comma(n.Rows)
	}
	return "~" + humanize.Comma(n.Rows)
}
