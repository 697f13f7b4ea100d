package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/loosefk"
)

func newInstallCommand(env Env) *cobra.Command {
	var sql bool
	cmd := &cobra.Command{
		Use:   "install [DATABASE]...",
		Short: "Make the table of deleted records and the trigger functions",
		Long: `Make the table of deleted records with its partitions, and the functions of the
triggers, in the databases in which parents live, or in those that are named.
It may be run again. Triggers come next: see track.`,
		Example: `  loosefk install
  loosefk install --sql main > migrations/0042_loose_foreign_keys.sql`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				list, err := app.choose(args)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					return usage(cmd, "no definition names a parent in any database: name the database to install in")
				}
				return eachChange(ctx, cmd, sql, list, func(db *loosefk.Database) change {
					return change{
						Database: db.Name, Done: "installed", SQL: db.Schema.InstallSQL(),
						do: patient(db, func(ctx context.Context, tx pgx.Tx) error { return db.Schema.Install(ctx, tx) }),
					}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&sql, "sql", false, "print the SQL and change nothing")
	return cmd
}

// change is the change that a command makes to one database or table.
type change struct {
	Database string `json:"database"`
	Table    string `json:"table,omitempty"`
	Done     string `json:"done,omitempty"` // one word for what was done; "" when the SQL was only printed
	SQL      string `json:"sql,omitempty"`
	do       func(ctx context.Context) error
}

// eachChange calls `make` for each item, carries out the change that `make` returns, and
// prints what was done. If `sql` is set, eachChange changes nothing and prints the SQL of the
// changes instead.
func eachChange[T any](ctx context.Context, cmd *cobra.Command, sql bool, items []T, make func(T) change) error {
	var changes []change
	for _, item := range items {
		c := make(item)
		if sql {
			c.Done = ""
		} else {
			c.SQL = ""
			if err := c.do(ctx); err != nil {
				return fmt.Errorf("database %s: %w", c.Database, err)
			}
		}
		changes = append(changes, c)
	}
	return show(cmd, changes, func(w io.Writer) {
		for i, c := range changes {
			switch {
			case !sql:
				fmt.Fprintf(w, "database %s: %s\n", c.Database, joined(c.Done, c.Table))
				continue
			case i > 0:
				fmt.Fprintln(w)
			}
			if len(changes) > 1 && (i == 0 || changes[i-1].Database != c.Database) {
				fmt.Fprintf(w, "-- database %s\n", c.Database)
			}
			fmt.Fprintln(w, c.SQL)
		}
	})
}

// patient returns a function that runs fn in a transaction. The transaction waits for each
// lock only for a moment, because other users of a table queue behind it while it waits;
// see loosefk.Database.Change.
func patient(db *loosefk.Database, fn func(ctx context.Context, tx pgx.Tx) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		err := db.Change(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) })
		if errors.Is(err, loosefk.ErrBusy) {
			return fmt.Errorf("%w; nothing was changed here: end them (see pg_stat_activity) or try again", err)
		}
		return err
	}
}

func joined(done, table string) string {
	if table == "" {
		return done
	}
	return done + " " + table
}

// parentTable is a parent table on which a command creates or drops triggers.
type parentTable struct {
	name        string
	db          *loosefk.Database
	partitioned bool
}

// parents returns the tables of the given names. Without names it returns the parents of
// all definitions.
func (a *App) parents(ctx context.Context, names []string) ([]parentTable, error) {
	if len(names) == 0 {
		names = a.Definitions.Parents()
	}
	var list []parentTable
	for _, name := range names {
		t := parentTable{name: name, db: a.Databases.Of(name)}
		if t.db == nil {
			return nil, fmt.Errorf("table %s belongs to no database", name)
		}
		var err error
		if t.partitioned, err = t.db.IsPartitioned(ctx, name); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

func newTrackCommand(env Env) *cobra.Command {
	var sql bool
	cmd := &cobra.Command{
		Use:   "track [TABLE]...",
		Short: "Put the triggers that record deletions on parent tables",
		Long: `Put the trigger that records deletions on tables, or on all parents of the
definitions. On a partitioned table each partition gets one too, all of which
record the partitioned table's name; run it again after adding partitions.

The table of deleted records has to be there: see install.`,
		Example: `  loosefk track
  loosefk track projects --sql`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				list, err := app.parents(ctx, args)
				if err != nil {
					return err
				}
				return eachChange(ctx, cmd, sql, list, func(t parentTable) change {
					c := change{Database: t.db.Name, Table: t.name, Done: "tracking deletions from"}
					s := t.db.Schema
					if t.partitioned {
						c.SQL = s.TrackRecordDeletionsOverrideTableNameSQL(t.name)
						c.do = patient(t.db, func(ctx context.Context, tx pgx.Tx) error {
							return s.TrackRecordDeletionsOverrideTableName(ctx, tx, t.name)
						})
						return c
					}
					c.SQL = s.TrackRecordDeletionsSQL(t.name)
					c.do = patient(t.db, func(ctx context.Context, tx pgx.Tx) error { return s.TrackRecordDeletions(ctx, tx, t.name) })
					return c
				})
			})
		},
	}
	cmd.Flags().BoolVar(&sql, "sql", false, "print the SQL and change nothing")
	return cmd
}

func newUntrackCommand(env Env) *cobra.Command {
	var sql, force bool
	cmd := &cobra.Command{
		Use:   "untrack TABLE...",
		Short: "Take the triggers off tables and remove their leftover records",
		Long: `Take the triggers off tables that are no longer parents, and remove the records
that are still pending: no worker processes them any more.

Remove the table's definitions first. If their children are still to be cleaned
up, drain before you remove the definitions. A table that is gone is no error.`,
		Example: `  loosefk drain --table projects   # then remove its definitions, then:
  loosefk untrack projects`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.with(cmd, func(ctx context.Context, app *App) error {
				if err := app.unused(args); err != nil && !force {
					return err
				}
				list, err := app.parents(ctx, args)
				if err != nil {
					return err
				}
				return eachChange(ctx, cmd, sql, list, func(t parentTable) change {
					return untrack(t)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&sql, "sql", false, "print the SQL and change nothing; it has to run outside a transaction")
	cmd.Flags().BoolVar(&force, "force", false, "even if definitions name the table as a parent")
	return cmd
}

func untrack(t parentTable) change {
	s := t.db.Schema
	return change{
		Database: t.db.Name, Table: t.name, Done: "no longer tracking deletions from",
		SQL: s.UntrackRecordDeletionsSQL(t.name) + "\n\n" + s.RemoveDeletedRecordsSQL(t.name),
		do: func(ctx context.Context) error {
			err := patient(t.db, func(ctx context.Context, tx pgx.Tx) error { return s.UntrackRecordDeletions(ctx, tx, t.name) })(ctx)
			if err != nil {
				return err
			}
			_, err = s.RemoveDeletedRecords(ctx, t.db.Pool, t.name)
			return err
		},
	}
}

// unused returns an error if a definition names one of the tables as its parent.
func (a *App) unused(tables []string) error {
	for _, d := range a.Definitions {
		if slices.ContainsFunc(tables, func(t string) bool { return a.same(t, d.Parent) }) {
			return fmt.Errorf("%s is still a parent: remove the definition %s first, or say --force", d.Parent, d)
		}
	}
	return nil
}

// same returns whether two names mean the same table.
func (a *App) same(one, other string) bool {
	db := a.Databases.Of(one)
	if db == nil || db != a.Databases.Of(other) {
		return one == other
	}
	return db.FullName(one) == db.FullName(other)
}
