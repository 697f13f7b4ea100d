package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk/doctor"
)

func newDoctorCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look for reasons why loose foreign keys don't work",
		Long: `Look for reasons why loose foreign keys don't work, or soon won't: definitions that
don't fit, missing indexes and triggers, partitions that don't rotate, records that
stay pending, foreign keys underneath that block or cascade, missing rights, and
orphans. Each finding comes with its remedy: a command of this tool, or SQL for
the database that is named. Nothing is changed.

Exit code 3: there is an error or a warning. What is marked info is well as it is.`,
		Example: `  loosefk doctor
  loosefk doctor -o json | jq -r '.[] | select(.severity == "error") | .remedy'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				worker, err := app.worker()
				if err != nil {
					return err
				}
				findings, err := doctor.Examine(ctx, worker)
				if err != nil {
					return err
				}
				for i, f := range findings {
					if args, ok := strings.CutPrefix(f.Remedy, "loosefk "); ok {
						findings[i].Remedy = cmd.Parent().CommandPath() + " " + args
					}
				}
				if findings == nil {
					findings = []doctor.Finding{}
				}
				if err := show(cmd, findings, func(w io.Writer) { printFindings(w, findings) }); err != nil {
					return err
				}
				if slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Severity != doctor.SeverityInfo }) {
					return errFound
				}
				return nil
			})
		},
	}
}

func printFindings(w io.Writer, findings []doctor.Finding) {
	if len(findings) == 0 {
		fmt.Fprintln(w, "all is well")
	}
	for _, f := range findings {
		where := ""
		if f.Database != "" {
			where = fmt.Sprintf(" (database %s)", f.Database)
		}
		fmt.Fprintf(w, "%s: %s%s\n", f.Severity, f.Text, where)
		for line := range strings.Lines(f.Remedy) {
			fmt.Fprintf(w, "    %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
}
