package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk/doctor"
)

func newAuditCommand(env Env) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "audit [CHILD]...",
		Short: "Look for orphans: children whose parent doesn't exist",
		Long: `Look for children whose parent doesn't exist, in all child tables or in those that
are named, also where the parent is on another server. It tells children that a
pending record is going to clean up from orphans that nothing will: they came
into being before the trigger, without it, or while their parent went.

With --repair it writes deleted records for the orphans' parents, and the worker
cleans them up. Exit code 3: there are orphans that weren't repaired.`,
		Example: `  loosefk audit
  loosefk audit --repair ci_pipelines && loosefk run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				worker, err := app.worker()
				if err != nil {
					return err
				}
				found, failed := doctor.Audit(ctx, worker, doctor.AuditOptions{Repair: repair, Children: args})
				if found == nil && failed != nil {
					return failed
				}
				if found == nil {
					found = []doctor.Orphans{}
				}
				if err := show(cmd, found, func(w io.Writer) { printOrphans(w, found, repair) }); err != nil {
					return err
				}
				if failed != nil {
					return failed
				}
				for _, o := range found {
					if o.Parents > 0 && !repair {
						return errFound
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "write deleted records for the orphans, so that the worker cleans them up")
	return cmd
}

func printOrphans(w io.Writer, found []doctor.Orphans, repair bool) {
	fmt.Fprintln(w, "DATABASE\tCHILD\tCOLUMN\tPARENT\tPENDING\tORPHANS\tOF_PARENTS\tREPAIRED\tEXAMPLES")
	for _, o := range found {
		repaired := "-"
		if repair {
			repaired = fmt.Sprint(o.Repaired)
		}
		examples := strings.Trim(strings.ReplaceAll(fmt.Sprint(append(strings.Fields(strings.Trim(fmt.Sprint(o.Examples), "[]")), o.ExampleKeys...)), " ", ","), "[]")
		examples = cmp.Or(examples, "-")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", o.Database, o.Child, o.Column, o.Parent,
			o.Pending, o.Rows, o.Parents, repaired, examples)
	}
}
