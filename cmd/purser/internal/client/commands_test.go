package client

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/loosefk/cli"
)

// execute runs a command line of the commands for clients, and returns its exit code.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "purser", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Commands(&command.Source{Environ: environ})...)
	command.CheckUsage(root)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	return command.ExitCodeOf(err, cli.Report(stderr, "purser", err))
}

// purser runs a command line with an empty environment.
func purser(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = execute(t.Context(), args, nil, &out, &errOut)
	return code, out.String(), errOut.String()
}
