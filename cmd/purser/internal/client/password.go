package client

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/worker"
)

// passwordInput says from where a command reads a password: from the terminal without echo or,
// with --password-stdin, from standard input. No flag and no argument takes a password, since
// other users of the machine could see it in the list of processes.
type passwordInput struct{ stdin bool }

func addPasswordStdin(cmd *cobra.Command) *passwordInput {
	p := new(passwordInput)
	cmd.Flags().BoolVar(&p.stdin, "password-stdin", false, "read the password from standard input")
	return p
}

// maxPassword limits the length of what a user gives as a password, in bytes. It may also be the
// token of a pipeline, which is longer than passwords are.
const maxPassword = 32 << 10

// read reads a password. On a terminal it asks with the given prompt. Error: there is neither
// --password-stdin nor a terminal, or the password is empty or too long.
func (p *passwordInput) read(cmd *cobra.Command, prompt string) (string, error) {
	if p.stdin {
		raw, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxPassword+3)) // a line break, and a byte too many
		if err != nil {
			return "", fmt.Errorf("reading the password: %w", err)
		}
		return acceptable(string(bytes.TrimSuffix(bytes.TrimSuffix(raw, []byte("\n")), []byte("\r"))), maxPassword)
	}
	in, err := terminal(cmd, "the password: add --password-stdin, and give it on standard input")
	if err != nil {
		return "", err
	}
	text, err := hidden(cmd, in, prompt)
	if err != nil {
		return "", err
	}
	return acceptable(text, maxPassword)
}

// readNew is like read, for a new password. On a terminal it asks twice.
func (p *passwordInput) readNew(cmd *cobra.Command) (string, error) {
	text, err := p.read(cmd, "New password: ")
	if err == nil {
		text, err = acceptable(text, password.MaxLength)
	}
	if err != nil || p.stdin {
		return text, err
	}
	again, err := p.read(cmd, "The same again: ")
	if err == nil && again != text {
		err = command.Refuse("the two passwords differ: nothing was done")
	}
	return text, err
}

// acceptable returns an error if a password is empty or has more than `most` bytes.
func acceptable(text string, most int) (string, error) {
	switch {
	case text == "":
		return "", command.Usagef("the password is empty")
	case len(text) > most:
		return "", command.Usagef("the password has more than %d bytes", most)
	}
	return text, nil
}

// terminal returns the terminal on which the user can be asked. `what` ends the error's text.
func terminal(cmd *cobra.Command, what string) (*os.File, error) {
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !command.IsTerminal(in) || !command.IsTerminal(cmd.ErrOrStderr()) {
		return nil, command.Usagef("there is no terminal to ask for %s", what)
	}
	return in, nil
}

// hidden asks for a password on a terminal, which doesn't show it. If the context ends, hidden
// restores the terminal and returns an error.
func hidden(cmd *cobra.Command, in *os.File, prompt string) (string, error) {
	fd := int(in.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("asking for the password: %w", err)
	}
	text, err := whenAsked(cmd, prompt, func() (string, error) {
		raw, err := term.ReadPassword(fd)
		fmt.Fprintln(cmd.ErrOrStderr()) //nolint:errcheck // ends the line of the prompt
		return string(raw), err
	})
	if errors.Is(err, errInterrupted) {
		_ = term.Restore(fd, before)
	}
	return text, err
}

var errInterrupted = errors.New("interrupted")

// whenAsked prints a prompt and returns what `read` returns, or errInterrupted if the command's
// context ends first.
func whenAsked(cmd *cobra.Command, prompt string, read func() (string, error)) (string, error) {
	fmt.Fprint(cmd.ErrOrStderr(), prompt) //nolint:errcheck // the user sees it or not
	text, err := worker.Await(cmd.Context(), read)
	switch {
	case err != nil && cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()):
		fmt.Fprintln(cmd.ErrOrStderr()) //nolint:errcheck // ends the line of the prompt
		return "", errInterrupted
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	return text, nil
}

// askName asks for the name of an account on the terminal.
func askName(cmd *cobra.Command) (string, error) {
	in, err := terminal(cmd, "the account: give --username")
	if err != nil {
		return "", err
	}
	name, err := whenAsked(cmd, "Username: ", func() (string, error) { return bufio.NewReader(in).ReadString('\n') })
	if name = strings.TrimSpace(name); err == nil && name == "" {
		err = command.Usagef("the name is empty")
	}
	return name, err
}
