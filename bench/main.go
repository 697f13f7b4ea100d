// Command bench measures Purser, one scenario at a time:
//
//	go run ./bench SCENARIO [flags]
//
// Without a scenario it lists all scenarios; SCENARIO -h lists a scenario's flags. Package
// meter has the measuring functions of the scenarios. README.md explains the figures and has
// results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/purser-registry/purser/bench/auth"
	"github.com/purser-registry/purser/bench/gc"
	"github.com/purser-registry/purser/bench/holds"
	"github.com/purser-registry/purser/bench/idle"
	"github.com/purser-registry/purser/bench/loosefk"
	"github.com/purser-registry/purser/bench/prune"
	"github.com/purser-registry/purser/bench/pulls"
	"github.com/purser-registry/purser/bench/quota"
	"github.com/purser-registry/purser/bench/registries"
	"github.com/purser-registry/purser/bench/ui"
)

// scenarios are the benchmarks, by the name of their command.
var scenarios = []struct {
	name, about string
	run         func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}{
	{"registries", "the same workloads against any number of registries, side by side", registries.Run},
	{"gc", "reviews of garbage collection, beside one DELETE of as many rows", gc.Run},
	{"mass-delete", "pushes and pulls beside the deletion of many images", gc.MassDelete},
	{"triggers", "the SQL of pushes with and without garbage collection's triggers", gc.Triggers},
	{"collect", "from the deletion of images to a store without them", gc.Collect},
	{"prune", "auto-pruning, and pulls and pushes beside it", prune.Run},
	{"pulls", "counting pulls in Redis and from the audit log", pulls.Run},
	{"loosefk", "loose foreign keys, beside plain batched deletes", loosefk.Run},
	{"auth", "pulls with and without access control, and beside log-ins", auth.Run},
	{"holds", "reports of what is deployed, and pulls beside them", holds.Run},
	{"quota", "pushes to a namespace with a quota and to one without", quota.Run},
	{"ui", "every page of the web UI on a registry of 10,000 repositories", ui.Run},
	{"idle", "CPU time and wake-ups of a server without requests", idle.Run},
}

func main() {
	if ok, err := registries.Child(); ok {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// run runs the scenario that the first argument names.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		usage(stderr)
		return flag.ErrHelp
	}
	for _, s := range scenarios {
		if s.name == args[0] {
			if err := s.run(ctx, args[1:], stdout, stderr); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		}
	}
	usage(stderr)
	return fmt.Errorf("there is no scenario %q", args[0])
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Usage: go run ./bench SCENARIO [flags]; SCENARIO -h lists the flags\n\n")
	for _, s := range scenarios {
		fmt.Fprintf(w, "  %-12s %s\n", s.name, s.about)
	}
}
