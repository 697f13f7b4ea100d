// Command purser is an OCI container registry. It keeps metadata in PostgreSQL, which
// it starts itself if none is configured, and blobs on a disk or in S3.
//
// Each command has its own file. serve.go has all the wiring; no package but this one
// reads configuration, environment or flags.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/client"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/loosefk/cli"
)

// version is set by the linker in releases: -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	command.Version = version
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal requests an orderly shutdown. After it, the default handling is
	// restored, so that a second one kills the process.
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// execute runs a command line and returns the exit code: 0, the code for an error,
// which it prints to stderr, or the code that the command asks for.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := newRoot(environ)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if code, ok := errors.AsType[command.ExitCode](err); ok {
		return int(code)
	}
	return command.ExitCodeOf(err, cli.Report(stderr, "purser", err))
}

func newRoot(environ []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "purser",
		Short:         "An OCI container registry that keeps its own books and clears its own shelves",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = command.ReadBuild().Version
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = false
	src := &command.Source{Environ: environ}
	src.AddFlags(root.PersistentFlags())
	root.AddCommand(serveCommand(src), postgresCommand(src), migrateCommand(src), gcCommand(src), looseCommand(src), checkCommand(src), storeCommand(src), configCommand(src), command.VersionCommand())
	root.AddCommand(client.Commands(src)...)
	command.CheckUsage(root)
	client.Complete(src, root)
	completeFlags(root)
	return root
}
