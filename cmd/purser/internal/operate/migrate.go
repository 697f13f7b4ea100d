package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

func migrateCommand(src *command.Source) *cobra.Command {
	up := &cobra.Command{
		Use:   "up",
		Short: "Bring the database's schema up to date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAnyDSN(src, cmd, false, func(ctx context.Context, cfg *config.Config, dsn string) error {
				n, err := backend.Migrate(ctx, cfg, dsn)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "Migrations applied: %d. The schema is up to date.\n", n)
				return err
			})
		},
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "List migrations and when they were applied",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withDSN(src, cmd, func(ctx context.Context, cfg *config.Config, dsn string) error {
				list, err := backend.Migrations(ctx, cfg, dsn)
				if err != nil {
					return err
				}
				return writeStatus(cmd.OutOrStdout(), list)
			})
		},
	}
	return command.Group("migrate", "Bring the database's schema up to date", up, status)
}

func writeStatus(w io.Writer, list []db.MigrationStatus) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "VERSION\tAPPLIED\tNAME")
	for _, m := range list {
		applied := "pending"
		if !m.Applied.IsZero() {
			applied = m.Applied.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(out, "%d\t%s\t%s\n", m.Version, applied, m.Name)
	}
	return out.Flush()
}

// withDSN runs `fn` on the metadata database. If none is configured, that is the built-in
// one: withDSN uses a running built-in PostgreSQL, or starts it until fn returns. It
// returns an error if the data directory has no built-in PostgreSQL yet.
func withDSN(src *command.Source, cmd *cobra.Command, fn func(ctx context.Context, cfg *config.Config, dsn string) error) error {
	return withAnyDSN(src, cmd, true, fn)
}

// withAnyDSN is like withDSN. But unless `existing` is set, it creates the built-in
// PostgreSQL if the data directory has none.
func withAnyDSN(src *command.Source, cmd *cobra.Command, existing bool, fn func(ctx context.Context, cfg *config.Config, dsn string) error) error {
	cfg, dsn, stop, err := openDSN(src, cmd, existing)
	if err != nil {
		return err
	}
	defer stop()
	return backend.ExplainDatabase(cfg, fn(cmd.Context(), cfg, dsn))
}

// openDSN returns the configuration and the DSN of the metadata database, which it finds or
// starts like withAnyDSN. The caller must call `stop` when it no longer uses the database.
func openDSN(src *command.Source, cmd *cobra.Command, existing bool) (cfg *config.Config, dsn string, stop func(), err error) {
	if cfg, err = src.LoadAndTell(cmd); err != nil {
		return nil, "", nil, err
	}
	log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
	if err != nil {
		return nil, "", nil, err
	}
	if dsn, stop, err = findDSN(cmd.Context(), cfg, existing, log); err != nil {
		return nil, "", nil, err
	}
	return cfg, dsn, stop, nil
}

// findDSN is openDSN for a configuration that was loaded. `stop` is never nil.
func findDSN(ctx context.Context, cfg *config.Config, existing bool, log *slog.Logger) (dsn string, stop func(), err error) {
	stop = func() {}
	if cfg.Database.Main != "" {
		return string(cfg.Database.Main), stop, nil
	}
	pg, err := backend.StartPostgres(ctx, cfg, existing, log)
	if errors.Is(err, builtinpg.ErrInUse) {
		dsn, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName)
		return dsn, stop, err
	}
	if err != nil {
		return "", stop, err
	}
	return pg.DSN, func() { pg.Stop() }, nil
}
