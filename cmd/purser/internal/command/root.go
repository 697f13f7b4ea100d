package command

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk/contrib/cli"
)

// NewRoot makes the command purser, with the given commands as subcommands.
func NewRoot(src *Source, commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:           "purser",
		Short:         "An OCI container registry with garbage collection, retention and pull statistics",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = ReadBuild().Version
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = false
	src.addFlags(root.PersistentFlags())
	root.AddCommand(commands...)
	checkUsage(root)
	return root
}

// Execute runs the command line `args` on `root` and returns the exit code: 0 for success,
// the code of an ExitCode error, or the code for any other error, which it prints to
// stderr.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	err = inWordsOf(cmd, err)
	if code, ok := errors.AsType[ExitCode](err); ok {
		return int(code)
	}
	return exitCodeOf(err, cli.Report(stderr, "purser", err))
}
