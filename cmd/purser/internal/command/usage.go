// Package command has what all commands of purser share: reading the configuration, the
// client of the management API with the user's credentials, usage errors and exit codes, output
// as text or JSON, logging, and the display of progress. It contains no command except version.
//
// A token can get into no other hands by this package: no flag and no argument takes one, so none
// is in the list of processes. The file of log-ins can be read only by its owner. A token is sent
// only to the registry for which it was stored, or which the command names, and never
// unencrypted to another machine unless the user allows that. No error has the text of a token.
//
// The configuration of a machine is one file at one place, /etc/purser/config.yaml (MachineConfig),
// which commands read as the service does. A file in the working directory isn't looked for:
// whoever types a command there needn't have written the file.
package command

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/purser-registry/purser/internal/api"

	"github.com/spf13/cobra"
)

// These are the exit codes of commands, besides 0 for success and 1 for any other failure.
const (
	ExitUsage    = 2 // the command line is wrong
	ExitRefused  = 3 // the registry, or the user who was asked, refused
	ExitFindings = 4 // the command has done its work and found problems that need somebody
)

// foundOfLoose is the exit code with which package loosefk/contrib/cli reports that a command on
// loose foreign keys has found problems. exitCodeOf turns it into ExitFindings.
const foundOfLoose = 3

// usageError says that a command line is wrong.
type usageError struct {
	command string
	err     error
}

// Usagef returns a usageError with this text. The command's name is added later, by the
// function that checkUsage wraps around the command.
func Usagef(format string, args ...any) error { return &usageError{err: fmt.Errorf(format, args...)} }

func (e *usageError) Error() string {
	if e.command == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%v\nSee '%s --help'", e.err, e.command)
}
func (e *usageError) Unwrap() error { return e.err }

// refusal is the error of an action that the user, when asked, or Purser itself declined.
type refusal struct{ text string }

// Refuse returns a refusal with this text.
func Refuse(text string) error { return &refusal{text} }

func (e *refusal) Error() string { return e.text }

// exitCodeOf returns the exit code for `err`; `otherwise` is the code that cli.Report chose
// for it.
func exitCodeOf(err error, otherwise int) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return ExitUsage
	}
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status >= 400 && e.Status < 500 {
		return ExitRefused
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		return ExitRefused
	}
	if otherwise == foundOfLoose {
		return ExitFindings
	}
	return otherwise
}

// TakesArguments is an annotation of a command that has subcommands, and also does something
// itself with its arguments.
const TakesArguments = "takes arguments"

// checkUsage changes `cmd` and its subcommands so that errors about their flags and
// arguments are usage errors, with suggestions for misspelt names of subcommands.
func checkUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{cmd.CommandPath(), flagError(cmd, err)} })
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if e, ok := errors.AsType[*usageError](err); ok && e.command == "" {
				e.command = cmd.CommandPath()
			}
			return err
		}
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && cmd.HasSubCommands() && cmd.Annotations[TakesArguments] == "" {
			return &usageError{cmd.CommandPath(), unknownCommand(cmd, args[0])}
		}
		if err := flagGroups(cmd); err != nil {
			return &usageError{cmd.CommandPath(), err}
		}
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			if strings.Contains(err.Error(), " arg(s)") { // cobra's own checks don't name the arguments
				err = fmt.Errorf("%w: write \"%s\"", err, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
			}
			return &usageError{cmd.CommandPath(), err}
		}
		return nil
	}
	for _, c := range cmd.Commands() {
		checkUsage(c)
	}
}

// given are the flags that cobra names in an error about flags that exclude each other.
var given = regexp.MustCompile(`none of the others can be; \[(.+)\] were all set$`)

// flagGroups returns an error about flags that exclude each other or are required. Cobra looks at them only
// after the arguments, and its errors are none of usage.
func flagGroups(cmd *cobra.Command) error {
	err := cmd.ValidateRequiredFlags()
	if err == nil {
		err = cmd.ValidateFlagGroups()
	}
	if err == nil {
		return nil
	}
	if found := given.FindStringSubmatch(err.Error()); found != nil {
		return fmt.Errorf("--%s are given: leave all but one out", strings.Join(strings.Fields(found[1]), " and --"))
	}
	return err
}

// ExitCode is the error of a command that has already printed everything. It only sets the
// exit code of the program.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Group makes a command that only has subcommands.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	g.AddCommand(commands...)
	return g
}
