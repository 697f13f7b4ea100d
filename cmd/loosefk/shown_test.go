package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/testtool"
)

// TestShownCommands: the command lines of loosefk that the documentation, the help and messages show
// are commands that exist, with flags and a number of arguments that they take.
func TestShownCommands(t *testing.T) {
	t.Parallel()
	found, err := testtool.ShownCommands("loosefk")
	if err != nil || len(found) < 80 {
		t.Fatalf("%d command lines were found (%v)", len(found), err)
	}
	for _, s := range found {
		words := strings.Fields(s.Line)[1:]
		if i := slices.IndexFunc(words, func(w string) bool { return strings.ContainsAny(w, "|>&") }); i >= 0 {
			words = words[:i]
		}
		if err := takes(words); err != nil {
			t.Errorf("%s: %s: %v", s.File, s.Line, err)
		}
	}
	for _, wrong := range []string{"drains", "run --all-of-it", "worker now"} {
		if takes(strings.Fields(wrong)) == nil {
			t.Errorf("loosefk %s was taken", wrong)
		}
	}
}

// takes says whether the command tree takes words. What they leave out ("…") is taken as right.
func takes(words []string) error {
	all := len(words)
	words = slices.DeleteFunc(words, func(w string) bool { return w == "…" })
	root := newRoot(newSource(func(string) string { return "" }, new(strings.Builder)))
	cmd, args, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	return takesArgs(cmd, len(words) < all)
}

func takesArgs(cmd *cobra.Command, more bool) error {
	args := cmd.Flags().Args()
	if cmd.HasSubCommands() && len(args) > 0 {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), args[0])
	}
	if more || len(args) == 0 { // in a sentence, a command is often named without its arguments
		return nil
	}
	return cmd.ValidateArgs(args)
}
