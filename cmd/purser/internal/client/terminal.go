package client

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/spf13/cobra"
)

// addServer adds the flags --server and --insecure to a command and its subcommands.
func addServer(cmd *cobra.Command) *cobra.Command {
	command.AddClientFlags(cmd.PersistentFlags())
	return cmd
}

// withClient returns a RunE function that makes an API client from the flags and the
// environment, and passes it to `run`.
func withClient(src *command.Source, run func(cmd *cobra.Command, c *api.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := src.Client(cmd)
		if err != nil {
			return err
		}
		return run(cmd, c, args)
	}
}

// addLimit adds the flag --limit to a command that lists.
func addLimit(cmd *cobra.Command) *int {
	limit := 100
	cmd.Flags().Var(command.Number(&limit, 0, command.MaxListed), "limit", "list at most `N`; 0: all")
	return &limit
}

// table prints `rows` under a header, and a note if the registry has more rows than were
// asked for (`more`). It replaces control characters in cells.
func table(w io.Writer, header []string, rows [][]string, more bool) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, strings.Join(header, "\t"))
	for _, row := range rows {
		for i, cell := range row {
			if row[i] = command.Printable(cell); cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(out, strings.Join(row, "\t"))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	if more {
		if _, err := fmt.Fprintln(w, "… and more: --limit 0 lists all."); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	return nil
}

// fields prints pairs of name and value, one pair per line. It leaves out pairs whose value
// is empty.
func fields(w io.Writer, pairs ...string) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(out, "%s\t%s\n", pairs[i], command.Printable(pairs[i+1]))
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// clock formats a time in the local zone; "" for nil.
func clock(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
