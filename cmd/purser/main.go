// Command purser is an OCI container registry. It keeps metadata in PostgreSQL and blobs on
// a disk or in S3. If no database is configured, it starts a PostgreSQL of its own.
//
// The packages in its directory internal have the commands: package serve runs the
// registry, package demo shows one at work, package operate works directly on the registry's database and blob store, and
// package client sends requests to a registry's management API. Only these packages and the
// packages that they share read the settings; packages elsewhere get options.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/client"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/demo"
	"github.com/purser-registry/purser/cmd/purser/internal/operate"
	"github.com/purser-registry/purser/cmd/purser/internal/serve"
)

// version is the release's version, which the linker sets: -ldflags "-X
// main.version=v1.2.3".
var version string

func main() {
	command.Version, command.Main = version, true
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal requests an orderly shutdown. After it, signals have their default
	// effect again, so that a second signal kills the process.
	context.AfterFunc(ctx, stop)
	root := newRoot(&command.Source{Environ: os.Environ(), Machine: command.MachineConfig})
	os.Exit(command.Execute(ctx, root, os.Args[1:], os.Stdout, os.Stderr))
}

func newRoot(src *command.Source) *cobra.Command {
	root := command.NewRoot(src, slices.Concat(
		[]*cobra.Command{serve.Command(src), demo.Command(), serve.HashCommand(), manualCommand(), command.VersionCommand()}, operate.Commands(src, client.ImportCommands(src)...),
		client.Commands(src, operate.RecoverCommand(src)))...)
	client.Complete(src, root)
	completeFlags(root)
	return root
}
