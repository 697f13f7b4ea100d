package serve

import (
	"os"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth/password"
)

// hashCommand is the name of a command that hashes passwords for serve, in a process of its own.
const hashCommand = "hash-passwords"

// HashCommand makes the command that serve runs to hash passwords. Help doesn't list it.
func HashCommand() *cobra.Command {
	return &cobra.Command{
		Use:    hashCommand,
		Short:  "Hash the passwords that purser serve gives on standard input",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return password.Work(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// openHasher makes the Hasher of the registry. Its processes get neither arguments with secrets
// nor the environment.
func openHasher(p dependencies) *password.Hasher {
	o := password.HasherOptions{Metrics: p.metrics, Log: p.log}
	if command.Main && runtime.GOOS == "linux" {
		o.Command = func() *exec.Cmd {
			// This file is the running program, also after an upgrade has replaced it on disk.
			cmd := exec.Command("/proc/self/exe", hashCommand)
			cmd.Args[0] = os.Args[0]
			cmd.Env = []string{"GOMAXPROCS=1"} // it computes one hash at a time
			return cmd
		}
	}
	return password.NewHasher(o)
}
