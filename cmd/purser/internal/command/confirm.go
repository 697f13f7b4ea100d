package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/worker"
)

// AddYes adds the flag --yes to a command that destroys something.
func AddYes(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("yes", "y", false, "don't ask for confirmation")
}

// Confirm asks the user to confirm an action that can't be undone. It returns an error
// unless the user answers yes. If stdin or stderr isn't a terminal, nobody can answer, and
// it returns an error without asking. If `yes` is set, it returns nil without asking.
func Confirm(cmd *cobra.Command, yes bool, format string, args ...any) error {
	return ConfirmBy(cmd, "--yes", yes, format, args...)
}

// NamesServer says that the questions of a command name the registry themselves.
func NamesServer(cmd *cobra.Command) { delete(cmd.Annotations, unnamedServer) }

// ConfirmBy is like Confirm, for a command where `flag` answers yes beforehand.
func ConfirmBy(cmd *cobra.Command, flag string, yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	question := fmt.Sprintf(format, args...)
	if server := cmd.Annotations[unnamedServer]; server != "" {
		question = "At " + server + ": " + question
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !IsTerminal(in) || !IsTerminal(cmd.ErrOrStderr()) {
		return Refuse(question + " There is no terminal to ask for confirmation: add " + flag + " to go on")
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
var errDeclined = Refuse("nothing was done")

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
