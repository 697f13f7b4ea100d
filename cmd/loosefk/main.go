// Command loosefk provides the commands and the worker of loose foreign keys, for any
// application that uses PostgreSQL.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk/contrib/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks the program to finish in an orderly way. Then stop restores the
	// default handling of signals, so that a second signal kills the process.
	context.AfterFunc(ctx, stop)
	os.Exit(execute(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// version returns the version of the module that this program was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	root := newRoot(newSource(env, stderr))
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Report(stderr, "loosefk", root.ExecuteContext(ctx))
}

// newRoot returns the program's commands.
func newRoot(s *source) *cobra.Command {
	root := cli.New(cli.Env{Open: s.open, Tuning: s.tuning})
	root.Version = version()
	s.addFlags(root.PersistentFlags())
	root.AddCommand(newWorkerCommand(s))
	return root
}
