package operate

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/worker"
)

func gcCommand(src *command.Source) *cobra.Command {
	return command.Group("gc", "Look after garbage collection",
		gcStatusCommand(src), gcRunCommand(src), gcExplainCommand(src), gcRetryCommand(src))
}

// withMetadata runs `fn` on the metadata database and its catalog. A server may run on them
// at the same time: triggers notify its caches of fn's changes. The audit log names this
// command as the source of the changes.
func withMetadata(src *command.Source, cmd *cobra.Command, fn func(ctx context.Context, cfg *config.Config, metadata *db.DB, c *catalog.Catalog, log *audit.Log) error) error {
	return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
		if err := backend.ForCommand(backend.CheckMetadata(ctx, dsn)); err != nil {
			return err
		}
		log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
		if err != nil {
			return err
		}
		metadata, err := backend.OpenReviews(ctx, cfg, dsn, log)
		if err != nil {
			return err
		}
		defer metadata.Close()
		return fn(byCommand(ctx, cmd), cfg, metadata, catalog.New(catalog.Options{
			DB: metadata, CacheOff: true, MaxRequest: cfg.HTTP.MaxRequestTime, Log: log,
		}), audit.New(metadata))
	})
}

// withCollector is like withMetadata, for commands that need the garbage collector.
func withCollector(src *command.Source, cmd *cobra.Command, fn func(ctx context.Context, cfg *config.Config, c *gc.Collector, metadata *db.DB, log *audit.Log) error) error {
	return withMetadata(src, cmd, func(ctx context.Context, cfg *config.Config, metadata *db.DB, c *catalog.Catalog, log *audit.Log) error {
		stop, clocks, err := lookAtClocks(ctx, cfg, metadata)
		if err != nil {
			return err
		}
		defer stop()
		return fn(ctx, cfg, backend.NewCollector(cfg, c, metadata, metadata, clocks, nil), metadata, log)
	})
}

// lookAtClocks looks at the clocks again and again, as a server does, until stop is called. The command
// itself says what they are not fit for.
func lookAtClocks(ctx context.Context, cfg *config.Config, metadata *db.DB) (stop func(), clocks *clock.Guard, err error) {
	clocks, err = backend.NewClock(cfg, clock.Options{DB: metadata, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	if err := clocks.Check(ctx); err != nil && !errors.Is(err, worker.ErrRest) {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { clocks.Run(ctx) }) //nolint:errcheck // it ends with its context
	return func() { cancel(); looks.Wait() }, clocks, nil
}

// byCommand returns a context whose audit entries name the command `cmd` as their user
// agent.
func byCommand(ctx context.Context, cmd *cobra.Command) context.Context {
	return audit.WithSource(ctx, audit.Source{UserAgent: cmd.CommandPath()})
}
