package operate

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

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
	list, _, err := catalog.New(catalog.Options{DB: d, CacheOff: true, Log: log}).BrowseRepositories(ctx, catalog.Everyone, catalog.RepositoryQuery{NameFilter: catalog.NameFilter{Prefix: word}, Limit: 100})
	if err != nil {
		return nil, goesOn
	}
	var names []string
	for _, r := range list {
		names = append(names, r.Path+"@")
	}
	return names, goesOn
}
