package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/generate"
)

// keyRow is a foreign key with its number in the output of "loosefk list".
type keyRow struct {
	ID int `json:"id"`
	generate.ForeignKey
	Crosses bool `json:"crosses"`
}

func newListCommand(env Env) *cobra.Command {
	var cross bool
	cmd := &cobra.Command{
		Use:   "list [FILTER]...",
		Short: "Show the foreign keys, and which have a loose form",
		Long: `Show the foreign keys that the databases enforce, and which have a definition
already. Each FILTER is a regular expression; all of them must be found in one of
FROM, TO and COLUMN.`,
		Example: `  loosefk list
  loosefk list -c                 # those that cross databases
  loosefk list '^events$'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			filter, err := generate.ParseFilter(args...)
			if err != nil {
				return usageOf(cmd, err)
			}
			return env.with(cmd, func(ctx context.Context, app *App) error {
				rows, err := app.keys(ctx, filter, cross)
				if err != nil {
					return err
				}
				return show(cmd, rows, func(w io.Writer) { printKeys(w, rows, cross) })
			})
		},
	}
	cmd.Flags().BoolVarP(&cross, "cross-schema", "c", false, "only keys whose tables belong to different databases, by the map if there is one")
	return cmd
}

// keys returns the foreign keys that match a filter, with the numbers that "loosefk list"
// shows. If `cross` is set, it returns only keys whose tables are in different databases.
func (a *App) keys(ctx context.Context, filter generate.Filter, cross bool) ([]keyRow, error) {
	list, err := generate.ForeignKeys(ctx, a.Databases, a.Definitions)
	if err != nil {
		return nil, err
	}
	places := a.Map
	if places == nil {
		places = a.Databases
	}
	rows := []keyRow{}
	for _, k := range list {
		crosses := k.Crosses(places)
		if filter.Match(k.From, k.To, k.Column) && (crosses || !cross) {
			rows = append(rows, keyRow{len(rows), k, crosses})
		}
	}
	return rows, nil
}

// withoutKey returns the definitions that match a filter and whose foreign key no longer
// exists. If `cross` is set, it returns only those whose tables are in different databases.
func (a *App) withoutKey(ctx context.Context, filter generate.Filter, cross bool) (loosefk.Definitions, error) {
	places := a.Map
	if places == nil {
		places = a.Databases
	}
	defs := matching(a.Definitions, filter)
	keys, err := generate.ForeignKeys(ctx, a.Databases, defs)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(defs, func(d loosefk.Definition) bool {
		return cross && places.Of(d.Child) == places.Of(d.Parent) || slices.ContainsFunc(keys, func(k generate.ForeignKey) bool {
			return len(k.Definitions(a.Databases, loosefk.Definitions{d})) > 0
		})
	}), nil
}

func printKeys(w io.Writer, rows []keyRow, cross bool) {
	kind := "foreign keys"
	if cross {
		kind = "cross-schema foreign keys"
	}
	fmt.Fprintf(w, "Showing %s (%d):\n", kind, len(rows))
	from, to, column, action := 40, 20, 30, 15
	for _, r := range rows {
		from, to = max(from, utf8.RuneCountInString(r.From)), max(to, utf8.RuneCountInString(r.To))
		column, action = max(column, utf8.RuneCountInString(r.Column)), max(action, len(r.OnDelete))
	}
	line := func(id, has, f, t, c, a string) {
		fmt.Fprintf(w, "%5s | %7s | %*s | %*s | %*s | %*s\n", id, has, from, f, to, t, column, c, action, a)
	}
	line("ID", "HAS_LFK", "FROM", "TO", "COLUMN", "ON_DELETE")
	for _, r := range rows {
		has := "N"
		if r.HasLooseForeignKey {
			has = "Y"
		}
		line(fmt.Sprint(r.ID), has, r.From, r.To, r.Column, r.OnDelete)
	}
	for _, r := range rows {
		if r.NotConvertible != "" {
			fmt.Fprintf(w, "%d can't be converted: %s\n", r.ID, r.NotConvertible)
		}
	}
}
