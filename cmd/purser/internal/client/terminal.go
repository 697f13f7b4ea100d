package client

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/worker"

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

// addYes adds the flag --yes to a command that destroys something.
func addYes(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("yes", "y", false, "don't ask for confirmation")
}

// confirm asks the user to confirm an action that can't be undone. It returns an error
// unless the user answers yes. If stdin or stderr isn't a terminal, nobody can answer, and
// it returns an error without asking. If `yes` is set, it returns nil without asking.
func confirm(cmd *cobra.Command, yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	question := fmt.Sprintf(format, args...)
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !command.IsTerminal(in) || !command.IsTerminal(cmd.ErrOrStderr()) {
		return command.Refuse(question + " There is no terminal to ask for confirmation: add --yes to go on")
	}
	_, err := worker.Await(cmd.Context(), func() (struct{}, error) {
		return struct{}{}, ask(in, cmd.ErrOrStderr(), question)
	})
	if err != nil && cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()) {
		fmt.Fprintln(cmd.ErrOrStderr()) //nolint:errcheck // ends the line of the question
		return errDeclined
	}
	return err
}

// errDeclined is the error of a command whose question the user answered with no.
var errDeclined = command.Refuse("nothing was done")

func ask(in io.Reader, out io.Writer, question string) error {
	if _, err := fmt.Fprintf(out, "%s [y/N] ", question); err != nil {
		return fmt.Errorf("asking: %w", err)
	}
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}
