package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of commands, besides 1 of a failure.
const (
	exitUsage   = 2 // what was typed isn't a command
	exitRefused = 3 // the registry says no
)

// usageError is the error of a command that was typed in a wrong way.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return fmt.Sprintf("%v\nSee '%s --help'", e.err, e.command) }
func (e *usageError) Unwrap() error { return e.err }

// exitCodeOf is the code that a command ends with after an error.
func exitCodeOf(err error, otherwise int) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if e, ok := errors.AsType[*serverError](err); ok && e.Status >= 400 && e.Status < 500 {
		return exitRefused
	}
	return otherwise
}

// checkUsage makes wrong flags and arguments of a command, and of those below it, errors
// of usage, which come with the names that may have been meant.
func checkUsage(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{cmd.CommandPath(), err} })
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && cmd.HasSubCommands() {
			return &usageError{cmd.CommandPath(), unknownCommand(cmd, args[0])}
		}
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			if strings.Contains(err.Error(), " arg(s)") { // cobra's own checks don't name them
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

func unknownCommand(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2
	likely := cmd.SuggestionsFor(name)
	for i, s := range likely {
		likely[i] = fmt.Sprintf("%q", cmd.CommandPath()+" "+s)
	}
	err := fmt.Errorf("unknown command %q for %q", name, cmd.CommandPath())
	if len(likely) > 0 {
		return fmt.Errorf("%w: did you mean %s?", err, strings.Join(likely, " or "))
	}
	return err
}
