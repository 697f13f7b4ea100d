// Package demo implements the command demo, a tour of a registry with generated images. It
// runs the registry in its own process, in a temporary directory, and uses it as anybody
// would: it pushes and pulls over the OCI API, and everything else goes over the management
// API. The numbers that it prints come from the answers of these APIs and from a listing of
// the blob store.
//
// The temporary directory is removed whenever the command ends by itself: after the tour,
// after an error, when it is interrupted, when its terminal is closed, and when nobody reads
// its output any more. It is removed only after the registry and its PostgreSQL have ended.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/memory"
)

// Command returns the command demo.
func Command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a registry at work, in a temporary directory that is removed at the end",
		Long: "Show a registry at work. A new registry with a PostgreSQL of its own starts in a temporary\n" +
			"directory, with delays of seconds instead of days. Two teams have used it for half a year, by dates and\n" +
			"pulls that are made up. Images with shared layers, signatures and SBOMs\n" +
			"are pushed, some are pulled, policies prune tags, and garbage collection deletes what they\n" +
			"leave. At the end the registry is checked against its store. On a terminal it goes on until an interrupt;\n" +
			"then it is stopped and removed. Meanwhile look at it in a browser and with other commands. No other\n" +
			"registry is touched.\n\n" +
			"An interrupt stops and removes everything. A second interrupt ends the command at once: then the\n" +
			"directory, whose name is printed at the start, stays. The exit code is 0 when all is well, 1 after\n" +
			"an error or an interrupt of the tour, and 4 when the check finds something.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range []string{"config", "data-dir"} {
				if cmd.Flags().Changed(flag) {
					return command.Usagef("--%s isn't for the demo, which has a configuration and a directory of its own", flag)
				}
			}
			if !onLoopback(o.addr) {
				return command.Usagef("--addr: %s isn't on loopback, as in 127.0.0.1:5000: everybody may do everything in the demo's registry, so other machines mustn't reach it", o.addr)
			}
			if !cmd.Flags().Changed("keep") { // somebody is there to look at it
				o.keep = newLine(cmd.OutOrStdout()).OnTerminal()
			}
			ctx, stop := endOfTerminal(cmd.Context())
			defer stop()
			return run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), o)
		},
	}
	cmd.Flags().StringVar(&o.addr, "addr", "127.0.0.1:0", "serve the registry on `HOST:PORT` of this machine; port 0: a free one")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "go on after the tour, until an interrupt (default on a terminal)")
	return cmd
}

type options struct {
	addr string
	keep bool
}

// onLoopback says whether only this machine reaches the address HOST:PORT.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// endOfTerminal returns a context that ends also when the terminal is closed (SIGHUP), unless
// the program was started with this signal ignored (nohup). Until `stop` is called, writing to
// a closed pipe is an error and doesn't end the process (SIGPIPE), which then removes its
// directory.
func endOfTerminal(ctx context.Context) (_ context.Context, stop func()) {
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	end := func() {}
	if !signal.Ignored(syscall.SIGHUP) {
		ctx, end = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	return ctx, func() {
		end()
		signal.Stop(pipes)
	}
}

// errInterrupted is the error of a tour that was interrupted.
var errInterrupted = errors.New("interrupted")

// run makes a temporary directory, starts a registry there, gives the tour, stops the registry
// and removes the directory.
func run(ctx context.Context, stdout, stderr io.Writer, o options) (err error) {
	began := time.Now()
	memory.SetLimit(true)
	dir, err := os.MkdirTemp("", "purser-demo-")
	if err != nil {
		return fmt.Errorf("making a temporary directory: %w", err)
	}
	line := newLine(stdout)
	defer func() {
		line.Clear()
		if failed := os.RemoveAll(dir); failed != nil {
			err = join(err, fmt.Errorf("removing the temporary directory: %w", failed))
			return
		}
		_, failed := fmt.Fprintf(stdout, "\nStopped the registry and removed %s. That took %s in all.\n", dir, time.Since(began).Round(100*time.Millisecond))
		err = join(err, failed)
	}()
	if err := line.say("Starting a registry with a PostgreSQL of its own in %s.\n", dir); err != nil {
		return err
	}
	r, err := startRegistry(ctx, dir, o.addr, line, logTo{line, stderr})
	if err != nil {
		return orInterrupted(ctx, err)
	}
	defer func() {
		line.Clear()
		err = join(err, r.stop())
	}()
	t, err := newTour(r, line)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	err = t.give(r.context)
	_, told := errors.AsType[command.ExitCode](err)
	switch {
	case o.keep && (err == nil || told):
		return join(err, t.keep(r.context))
	case r.context.Err() != nil && ctx.Err() == nil:
		return nil // the registry has ended by itself, and stop returns why
	}
	return orInterrupted(ctx, err)
}

// join joins err and `further`. A further error replaces an exit code, since nobody prints an
// error that is joined with an exit code.
func join(err, further error) error {
	if _, told := errors.AsType[command.ExitCode](err); told && further != nil {
		return further
	}
	return errors.Join(err, further)
}

// orInterrupted returns errInterrupted if err isn't nil and ctx has ended, else err.
func orInterrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// logTo is where the registry's log goes: to stderr, after the line of progress was removed
// from the terminal.
type logTo struct {
	line   *line
	stderr io.Writer
}

func (l logTo) Write(b []byte) (int, error) {
	l.line.Clear()
	return l.stderr.Write(b)
}
