package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/generate"
)

func newRevertCommand(env Env) *cobra.Command {
	var g generation
	cmd := &cobra.Command{
		Use:   "revert FILTER...",
		Short: "Restore foreign keys in the place of loose ones",
		Long: `Restore foreign keys in the place of loose ones: remove their definitions, and
write the migrations that add the keys without a long lock, check them, and take
the trigger from parents that no definition names any more. The database is not
changed: run the migrations yourself.

Each FILTER is a regular expression; all of them must be found in one of the child
table, the parent table and the column of a definition. Rows without a parent are
looked for first: while there are any, the key is refused. 'loosefk drain' removes
those that a worker still has to clean up, and 'loosefk audit' shows the rest.`,
		Example: `  loosefk revert -n ci_pipelines project_id
  loosefk revert '^packages$'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := generate.ParseFilter(args...)
			if err != nil {
				return usageOf(cmd, err)
			}
			if err := g.check(cmd); err != nil {
				return err
			}
			return env.with(cmd, func(ctx context.Context, app *App) error {
				return g.revert(ctx, cmd, app, filter, args)
			})
		},
	}
	cmd.Flags().StringVar(&g.onDelete, "on-delete", "", "ON DELETE of restored keys whose definition's action has no such form: cascade, nullify, restrict, no action or set default")
	cmd.Flags().StringVar(&g.testsDir, "tests", "tests", "the tests' directory")
	g.flags(cmd.Flags(), "brought back")
	return cmd
}

func (g *generation) revert(ctx context.Context, cmd *cobra.Command, app *App, filter generate.Filter, args []string) error {
	rows, err := app.keys(ctx, filter, false)
	if err != nil {
		return err
	}
	var keys []generate.ForeignKey
	for _, r := range rows {
		if !r.HasLooseForeignKey {
			keys = append(keys, r.ForeignKey)
		}
	}
	defs := matching(app.Definitions, filter)
	if len(defs)+len(keys) == 0 {
		return fmt.Errorf("no definition matches %s", strings.Join(args, " "))
	}
	g.tests = true
	gen, err := g.generator(app)
	if err != nil {
		return err
	}
	if forms := []string{"", "cascade", "nullify", "restrict", "no action", "set default"}; !slices.Contains(forms, g.onDelete) {
		return usage(cmd, "--on-delete %s: want %s", g.onDelete, strings.Join(forms[1:], ", "))
	}
	gen.Restore = g.onDelete
	plan, err := gen.Revert(ctx, defs, keys...)
	if err != nil {
		return err
	}
	return g.carryOut(ctx, cmd, app, plan, "Restore foreign keys in the place of loose ones", branchName("hard-fk", args))
}

// matching returns those of defs that match a filter.
func matching(defs loosefk.Definitions, filter generate.Filter) (list loosefk.Definitions) {
	for _, d := range defs {
		if filter.Match(d.Child, d.Parent, d.Column) {
			list = append(list, d)
		}
	}
	return list
}
