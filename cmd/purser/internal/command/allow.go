package command

import (
	"errors"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/internal/api"
)

// wayOut is how a command says what a refusal of the registry offers to clients of the API in general.
type wayOut struct {
	flag         string // of the command, which has the way out; "": another command has it
	offered, say string
}

var waysOut = []wayOut{
	{"override-protection", "by the management API with override_protection", "with --override-protection"},
	{"as", "restore it under another one", "restore it under another one with --as NAME"},
	{"", "or let a maintainer undo that", "or let a maintainer undo that with \"purser tag immutable --undo\""},
	{"", ", or remove the rule", ", or remove the rule with \"purser protection remove\""},
	{"", "is sent to it; enable it first", "is sent to it; enable it first with \"purser webhook update --enable\""},
	{"tags", "tags, more than the ", "tags (--tags), more than the "},
}

// parameter is what may be the name of a parameter of the API.
var parameter = regexp.MustCompile(`\b[a-z]+(_[a-z]+)+\b( \(--[a-z-]+\))?`)

// NameFlags returns a refusal of the registry in the words of a command: with the flag that would allow
// what was refused, in place of the API's parameter.
func NameFlags(cmd *cobra.Command, text string) string {
	has := func(flag string) bool {
		f := cmd.Flags().Lookup(flag)
		return f != nil && !f.Hidden
	}
	for _, w := range waysOut {
		if w.flag == "" || has(w.flag) {
			text = strings.ReplaceAll(text, w.offered, w.say)
		}
	}
	return parameter.ReplaceAllStringFunc(text, func(found string) string {
		name, _, _ := strings.Cut(found, " ")
		if flag := strings.ReplaceAll(name, "_", "-"); has(flag) {
			return "--" + flag
		}
		return found
	})
}

// refusedCommand is the registry's refusal of a command, in the command's words.
type refusedCommand struct {
	text string
	err  error
}

func (e *refusedCommand) Error() string { return e.text }
func (e *refusedCommand) Unwrap() error { return e.err }

// inWordsOf returns the error of a command in its words, if the registry has refused something.
func inWordsOf(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*api.Error](err); !ok || cmd == nil {
		return err
	}
	return &refusedCommand{NameFlags(cmd, err.Error()), err}
}

// flagNames returns the names of the flags that a command has, also from the commands above it.
func flagNames(cmd *cobra.Command) (names []string) {
	cmd.InheritedFlags() // adds those of the commands above
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}
