package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
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

// measured describes the progress of garbage collection.
func measured(done gc.Progress) command.Measured {
	reviewed := done.ManifestsReviewed + done.BlobsReviewed
	return command.Measured{
		Text: fmt.Sprintf("reviewed %s, %s left; deleted %s, %s; reclaimed %s", humanize.Comma(reviewed),
			humanize.Comma(done.Due), command.Count(done.ManifestsDeleted, "manifest"), command.Count(done.BlobsDeleted, "blob"), command.Size(done.Bytes)),
		Share: command.Share(reviewed, reviewed+done.Due), Count: reviewed, Unit: "review",
	}
}

func gcRetryCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry",
		Short: "Try reviews again that failed too often",
		Args:  cobra.NoArgs,
	}
	out := command.AddFormat(cmd)
	command.AddInsecure(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withGC(src, cmd, func(ctx context.Context, g gcAccess) error {
			retried, err := g.retry(ctx)
			if err != nil {
				return err
			}
			n := struct {
				Manifests int64 `json:"manifests"`
				Blobs     int64 `json:"blobs"`
			}{retried.Manifests, retried.Blobs}
			return out.Print(cmd.OutOrStdout(), n, func(w io.Writer) error {
				if n.Manifests+n.Blobs == 0 {
					_, err := fmt.Fprintln(w, "There are no failed reviews.")
					return err
				}
				_, err := fmt.Fprintf(w, "Reviews of %s and %s are due again.\n",
					command.Count(n.Manifests, "manifest"), command.Count(n.Blobs, "blob"))
				return err
			})
		})
	}
	return cmd
}

// completeExplainable completes the repository in an argument REPOSITORY@DIGEST with names
// from the configured database or, if none is configured, from the built-in one. If the
// built-in PostgreSQL isn't running, there are no completions: completeExplainable doesn't
// start it.
func completeExplainable(src *command.Source, cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const goesOn = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	cfg, err := src.Load(cmd)
	if err != nil || len(args) > 0 || strings.Contains(word, "@") {
		return nil, goesOn
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), command.CompletionTime)
	defer cancel()
	dsn := string(cfg.Database.Main)
	if dsn == "" {
		if dsn, err = builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName); err != nil {
			return nil, goesOn
		}
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	d, err := db.Open(ctx, db.Options{DSN: dsn, MaxConns: 2, ApplicationName: "purser completion", Log: log})
	if err != nil {
		return nil, goesOn
	}
	defer d.Close()
	list, _, err := browse.New(catalog.New(catalog.Options{DB: d, CacheOff: true, Log: log})).Repositories(ctx, browse.Everyone, browse.RepositoryQuery{NameFilter: browse.NameFilter{Prefix: word}, Limit: 100})
	if err != nil {
		return nil, goesOn
	}
	var names []string
	for _, r := range list {
		names = append(names, r.Path+"@")
	}
	return names, goesOn
}
