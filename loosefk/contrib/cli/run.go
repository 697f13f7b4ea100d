package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
)

func newRunCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "run [DATABASE]...",
		Short: "Clean up now, as one run of the worker does",
		Long: `Clean up after the parents of each database, or of those that are named: one run
of the worker, with its limits, and its partitions brought up to date. It takes
the same locks as the worker, so both may run at the same time.`,
		Example: `  loosefk run
  loosefk run main -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				list, err := app.choose(args)
				if err != nil {
					return err
				}
				worker, err := app.worker()
				if err != nil {
					return err
				}
				results := []loosefk.Result{}
				var failed []error
				for _, db := range list {
					r, err := worker.RunOnce(ctx, db.Name)
					if err != nil {
						failed = append(failed, fmt.Errorf("database %s: %w", db.Name, err))
					}
					results = append(results, r)
				}
				err = show(cmd, results, func(w io.Writer) {
					for _, r := range results {
						fmt.Fprintf(w, "database %s: %s\n", r.Database, told(r))
					}
				})
				return errors.Join(append(failed, err)...)
			})
		},
	}
}

// told returns a line of text for the result of a run.
func told(r loosefk.Result) string {
	parts := []string{fmt.Sprintf("%d of %d records processed, %d rows deleted, %d updated",
		r.Processed, r.Records, r.Deletes, r.Updates)}
	count := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	count(r.Again, "waiting for the second look")
	count(r.Incremented, "not finished")
	count(r.Rescheduled, "postponed")
	count(r.Failed, "failed, because they name no table")
	count(r.Locked, "tables locked by another worker")
	if r.OverLimit != "" {
		parts = append(parts, "stopped at the limit of "+r.OverLimit)
	}
	return strings.Join(append(parts, rotationText(r.Rotation)...), "; ")
}

// rotationText returns texts that say how a rotation changed the partitions.
func rotationText(s loosefk.Rotation) (parts []string) {
	if s.Added != "" {
		parts = append(parts, "added partition "+s.Added)
	}
	switch {
	case s.Repaired > 0:
		parts = append(parts, fmt.Sprintf("set the column's default, which was %d, to the newest partition", s.Repaired))
	case s.Repaired < 0:
		parts = append(parts, "set the column's default, which was no number, to the newest partition")
	}
	if s.Moved > 0 {
		parts = append(parts, fmt.Sprintf("moved %d rows out of the default partition", s.Moved))
	}
	if len(s.Detached) > 0 {
		parts = append(parts, "detached "+strings.Join(s.Detached, ", "))
	}
	if len(s.Dropped) > 0 {
		parts = append(parts, "dropped "+strings.Join(s.Dropped, ", "))
	}
	if s.Busy {
		parts = append(parts, "left partitions for the next run: open transactions have locked the table")
	}
	return parts
}

func newDrainCommand(env Env) *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use:   "drain --table T",
		Short: "Clean up after a parent table until nothing of it is pending",
		Long: `Clean up after one parent table until none of its records is pending, whatever
their time and without the limits of a run: afterwards a migration may bring a
foreign key back. A worker that has the table is waited for. Progress is printed to
standard error.`,
		Example: `  loosefk drain --table projects && ./migrate`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if table == "" {
				return usage(cmd, "which table? give --table")
			}
			return env.with(cmd, func(ctx context.Context, app *App) error {
				worker, err := app.worker()
				if err != nil {
					return err
				}
				r, err := worker.Drain(ctx, table, func(r loosefk.Result) {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", table, told(r))
				})
				if err != nil {
					return err
				}
				return show(cmd, r, func(w io.Writer) {
					fmt.Fprintf(w, "nothing of %s is pending: %s\n", table, told(r))
				})
			})
		},
	}
	cmd.Flags().StringVar(&table, "table", "", "the parent table")
	return cmd
}

func newFixDefaultPartitionCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "fix-default-partition [DATABASE]...",
		Short: "Make new records go to the newest partition",
		Long: `Make sure that deleted records have a partition to go to: add a missing default
partition, set the default of the column partition to the newest partition, and
move the rows that the default partition caught meanwhile. Each run of the
worker does so too; this is for when none runs.`,
		Example: `  loosefk fix-default-partition`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				list, err := app.choose(args)
				if err != nil {
					return err
				}
				type repaired struct {
					Database string           `json:"database"`
					Did      loosefk.Rotation `json:"partitions"`
				}
				done := []repaired{}
				for _, db := range list {
					s, err := db.RepairDefault(ctx)
					if err != nil {
						return err
					}
					done = append(done, repaired{db.Name, s})
				}
				return show(cmd, done, func(w io.Writer) {
					for _, r := range done {
						did := rotationText(r.Did)
						if len(did) == 0 {
							did = []string{"there was nothing to repair"}
						}
						fmt.Fprintf(w, "database %s: %s\n", r.Database, strings.Join(did, "; "))
					}
				})
			})
		},
	}
}
