package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
)

// pendingRow counts the pending deleted records of one parent table in one partition.
type pendingRow struct {
	Database string `json:"database"`
	loosefk.Pending
	OldestSeconds float64 `json:"oldest_seconds"`
}

func newStatusCommand(env Env) *cobra.Command {
	var over time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the deleted records that are not processed yet",
		Long: `Show the deleted records that are not processed yet, by partition and parent
table: how many, the age of the oldest, the most attempts of any, how many are
done but for the second look at another server, how many wait for a later time,
and whether the table is untracked, so that no worker processes them.

Several partitions of a table mean that some records have been pending for days.`,
		Example: `  loosefk status
  loosefk status --fail-over 6h || alert   # exit code 3 if a record is older`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				rows, err := app.pending(ctx)
				if err != nil {
					return err
				}
				if err := show(cmd, rows, func(w io.Writer) { printPending(w, rows) }); err != nil {
					return err
				}
				for _, r := range rows {
					if over > 0 && r.OldestAge > over {
						return errFound
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().DurationVar(&over, "fail-over", 0, "exit with code 3 if a pending record is older than this (0: never)")
	return cmd
}

// pending counts the pending deleted records in all databases. A database that has parents
// must have the table of deleted records; other databases may lack it.
func (a *App) pending(ctx context.Context) ([]pendingRow, error) {
	rows := []pendingRow{}
	needed, err := a.choose(nil)
	if err != nil {
		return nil, err
	}
	must := map[*loosefk.Database]bool{}
	for _, db := range needed {
		must[db] = true
	}
	for i := range a.Databases {
		db := &a.Databases[i]
		installed, err := db.Installed(ctx)
		if err != nil {
			return nil, err
		}
		if !installed && must[db] {
			return nil, fmt.Errorf("database %s has no table %s: run 'loosefk install'", db.Name, loosefk.RecordsTable)
		}
		if !installed {
			continue
		}
		list, err := db.Pending(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			rows = append(rows, pendingRow{db.Name, p, p.OldestAge.Seconds()})
		}
	}
	return rows, nil
}

func printPending(w io.Writer, rows []pendingRow) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "nothing is pending")
		return
	}
	fmt.Fprintln(w, "DATABASE\tPARTITION\tTABLE\tCOUNT\tOLDEST\tATTEMPTS\tSECOND_LOOK\tWAITING\tTRACKED")
	for _, r := range rows {
		tracked := "Y"
		if r.Untracked {
			tracked = "N"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%d\t%d\t%d\t%s\n", r.Database, r.Partition, r.Table, r.Count,
			rounded(r.OldestAge), r.MaxAttempts, r.SecondLook, r.Waiting, tracked)
	}
}
