package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/testtool"
)

// noCommands are texts that only look like command lines: what PostgreSQL calls sessions.
var noCommands = []string{"purser autoprune", "purser loose foreign keys", "purser listener", "purser heartbeat"}

// TestShownOwnCommands: whatever shows a command line of purser, be it a page of the documentation,
// the help of a command, an error message, a page of the UI or a file for deployments, shows a command
// that exists, with flags and a number of arguments that it takes.
func TestShownOwnCommands(t *testing.T) {
	t.Parallel()
	found, err := testtool.ShownCommands("purser")
	if err != nil || len(found) < 300 {
		t.Fatalf("%d command lines were found (%v)", len(found), err)
	}
	for _, s := range found {
		if err := takes(s); err != nil && !slices.Contains(noCommands, s.Line) {
			t.Errorf("%s: %s: %v", s.File, s.Line, err)
		}
	}
}

// TestShownOwnCommandsRefused: the test above would find a command line that is wrong.
func TestShownOwnCommandsRefused(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"purser tags list app", "purser tag lists app", "purser gc run --dry", "purser trash restore a b c d", "purser user recover a b", "purser gc explain --repo x", "purser copy 'old"} {
		if takes(testtool.Shown{Line: line}) == nil {
			t.Errorf("%s was taken", line)
		}
	}
	if takes(testtool.Shown{Line: "purser user create", Block: true}) == nil {
		t.Error("a block may leave out arguments")
	}
}

// takes says whether the command tree takes a command line. What it leaves out ("…") is taken as
// right, and so are its arguments then.
func takes(s testtool.Shown) error {
	words, err := shellWords(s.Line)
	if err != nil {
		return err
	}
	words = words[1:]
	if len(words) > 0 && strings.Contains(words[0], "|") { // one of several
		words = strings.Split(words[0], "|")[:1]
	}
	all := len(words)
	words = slices.DeleteFunc(words, func(w string) bool { return w == "…" || w == "COMMAND" || w == "help" })
	root := newRoot(new(command.Source))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(words...)
	cmd, args, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(args); err != nil && !strings.Contains(err.Error(), `invalid argument "X"`) {
		return err
	}
	args = cmd.Flags().Args()
	if cmd.HasSubCommands() && !cmd.Runnable() && len(args) > 0 {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), args[0])
	}
	// In a sentence, a command is often named without its arguments.
	if len(words) < all || len(args) == 0 && !s.Block {
		return nil
	}
	for i, a := range args {
		args[i] = strings.Trim(a, "[]")
	}
	return cmd.ValidateArgs(args)
}

// shellWords splits a command line as a shell does, up to where another command begins.
func shellWords(line string) (words []string, err error) {
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case !inWord && strings.ContainsRune("#|><;&", r):
			return words, nil
		case r == ' ' || r == ';':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			if inWord = false; r == ';' {
				return words, nil
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote isn't closed")
	}
	return words, nil
}
