package operate

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/builtinpg"
)

func postgresCommand(src *command.Source) *cobra.Command {
	url := &cobra.Command{
		Use:     "url",
		Short:   "Print how to connect to the built-in PostgreSQL of a running server",
		Example: `  psql "$(purser postgres url)"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := src.LoadAndTell(cmd)
			if err != nil {
				return err
			}
			if cfg.Database.Main != "" {
				return errors.New("the metadata isn't in the built-in PostgreSQL: database.main (" +
					cfg.Source("database.main") + ") names the server; connect to that one")
			}
			dsn, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dsn)
			return err
		},
	}
	return command.Group("postgres", "Reach and upgrade the built-in PostgreSQL", url, postgresUpgradeCommand(src), postgresForgetCommand(src))
}
