package operate

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/loosefk/contrib/cli"
)

// looseCommand returns the command loosefk, whose subcommands work on the loose foreign
// keys of the registry's own databases.
func looseCommand(src *command.Source) *cobra.Command {
	var current *cobra.Command // the running command, which has the flags
	loose := cli.New(cli.Env{Open: func(ctx context.Context) (*cli.App, error) { return openLoose(src, ctx, current) }})
	for _, c := range loose.Commands() {
		if slices.Contains(looseDeletions, c.Name()) || c.Name() == looseAudit {
			addOwnSettings(c)
		}
	}
	loose.PersistentPreRun = func(cmd *cobra.Command, _ []string) { current = cmd }
	return loose
}

func openLoose(src *command.Source, ctx context.Context, cmd *cobra.Command) (*cli.App, error) {
	cfg, dsn, stop, err := openDSN(src, cmd, true)
	if err != nil {
		return nil, err
	}
	if err := backend.ForCommand(backend.CheckSchema(ctx, cfg, dsn)); err != nil {
		stop()
		return nil, backend.ExplainDatabase(cfg, err)
	}
	log, err := command.NewLogger(cmd.ErrOrStderr(), cfg.Log)
	if err != nil {
		stop()
		return nil, err
	}
	keys, err := backend.OpenLooseKeys(ctx, cfg, dsn, log)
	if err != nil {
		stop()
		return nil, err
	}
	end := func() { keys.Close(); stop() }
	if slices.Contains(looseDeletions, cmd.Name()) || repairsLoose(cmd) {
		if err := requireSameSettings(ctx, src, cmd, cfg, keys.Main); err != nil {
			end()
			return nil, err
		}
	}
	if err := logLooseCommand(ctx, keys, cmd); err != nil {
		end()
		return nil, err
	}
	return &cli.App{
		Databases: keys.Databases, Definitions: keys.Definitions, Options: keys.Options(cfg.LooseForeignKeys, log), Close: end,
	}, nil
}

// looseDeletions are the commands on loose foreign keys that delete rows.
var looseDeletions = []string{"run", "drain"}

// looseAudit is the command on loose foreign keys that has rows deleted if it has the flag --repair.
const looseAudit = "audit"

// repairsLoose says whether cmd is the command looseAudit with the flag --repair.
func repairsLoose(cmd *cobra.Command) bool {
	repair, _ := cmd.Flags().GetBool("repair") // the error only says that the command has no such flag
	return repair && cmd.Name() == looseAudit
}

// looseChanges are the commands on loose foreign keys that change a database.
var looseChanges = []string{"run", "drain", "install", "track", "untrack", "fix-default-partition"}

// logLooseCommand writes an audit entry if `cmd` is a command that changes a database. With
// --sql a command only prints statements, so it writes none.
func logLooseCommand(ctx context.Context, k *backend.LooseKeys, cmd *cobra.Command) error {
	onlyPrints, _ := cmd.Flags().GetBool("sql") // the error only says that the command has no such flag
	if onlyPrints || !slices.Contains(looseChanges, cmd.Name()) && !repairsLoose(cmd) {
		return nil
	}
	return audit.New(k.Main).Append(byCommand(ctx, cmd), audit.Entry{Kind: audit.RunLooseKeys})
}
