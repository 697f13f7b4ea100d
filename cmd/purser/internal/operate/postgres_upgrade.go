package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
)

func postgresUpgradeCommand(src *command.Source) *cobra.Command {
	to := 0
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Bring the built-in PostgreSQL to another major version, while the registry is stopped",
		Long: "Copy all of Purser's rows from the built-in PostgreSQL into a new cluster of another major version, and\n" +
			"put that in its place. Stop \"purser serve\" before. The old cluster is kept until \"purser postgres\n" +
			"forget-old\" deletes it; only Purser's own tables are copied. It needs programs of both versions. Those of\n" +
			"versions 15 to 17 are downloaded if the system has none. If the upgrade is interrupted, run it again.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().Var(command.Number(&to, 15, 99), "to", "the major `VERSION` (default: the newest that is installed or can be downloaded)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := src.LoadAndTell(cmd)
		if err != nil {
			return err
		}
		if cfg.Database.Main == "" {
			if err := builtinpg.UndoReplace(backend.PostgresDir(cfg)); errors.Is(err, builtinpg.ErrInUse) {
				return command.Refuse("the registry is running: stop \"purser serve\" first")
			} else if err != nil {
				return err
			}
		}
		cfg, old, err := stoppedBuiltIn(src, cmd)
		if err != nil {
			return err
		}
		return upgradePostgres(cmd, cfg, old, to)
	}
	return cmd
}

// upgradePostgres copies the rows from the server `old`, which it stops, into a new cluster of
// the major version `to` (0: the newest), and replaces the cluster.
func upgradePostgres(cmd *cobra.Command, cfg *config.Config, old *backend.Postgres, to int) error {
	defer old.Stop()
	ctx, dir := cmd.Context(), backend.PostgresDir(cfg)
	log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
	if err != nil {
		return err
	}
	began := time.Now()
	from, err := builtinpg.ClusterMajor(dir)
	if err != nil {
		return err
	}
	if to == 0 {
		if to, err = builtinpg.NewestMajor(ctx, builtinpg.Options{DataDir: dir, Log: log}); err != nil {
			return err
		}
	}
	if to == from {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "The built-in PostgreSQL has version %d already.\n", to)
		return err
	}
	fresh := filepath.Join(cfg.DataDir, "postgres-upgrade")
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("removing what an interrupted upgrade has left: %w", err)
	}
	done, err := fillCluster(cmd, cfg, old.DSN, builtinpg.Options{DataDir: fresh, Major: to, Log: log.With("component", "postgres")})
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	old.Stop()
	kept, err := builtinpg.Replace(dir, fresh)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "The built-in PostgreSQL went from version %d to %d: %s in %s, during which the registry was stopped.\n"+
		"Start the registry. The old cluster is in %s; when all is well, \"purser postgres forget-old\" deletes it.\n",
		from, to, command.Count(done.Rows, "row"), time.Since(began).Round(time.Millisecond), kept)
	return err
}

// fillCluster makes a cluster and copies all rows into it.
func fillCluster(cmd *cobra.Command, cfg *config.Config, from string, o builtinpg.Options) (done backup.Transferred, err error) {
	server, err := builtinpg.Start(cmd.Context(), o)
	if err != nil {
		return done, fmt.Errorf("starting a new PostgreSQL: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Minute)
		defer cancel()
		err = errors.Join(err, server.Stop(ctx))
	}()
	return transfer(cmd, cfg, from, server.DSN(backend.DatabaseName), nil)
}

func postgresForgetCommand(src *command.Source) *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "forget-old",
		Short: "Delete the clusters that upgrades of the built-in PostgreSQL have replaced",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "delete them; without it they are only listed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := src.LoadAndTell(cmd)
		if err != nil {
			return err
		}
		old, err := builtinpg.OldClusters(backend.PostgresDir(cfg))
		if err != nil {
			return err
		}
		switch list := strings.Join(old, "\n"); {
		case len(old) == 0:
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "There are no old clusters.")
		case !yes:
			return command.Refuse("these would be deleted: add --yes\n" + list)
		default:
			if err := builtinpg.ForgetOld(backend.PostgresDir(cfg)); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Deleted:\n%s\n", list)
		}
		return err
	}
	return cmd
}
