package loosefk

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Database is one of the databases over which tables are spread.
type Database struct {
	Name string // in logs, metrics and locks; required, unique
	Pool *pgxpool.Pool
	// Schema is where tables are that are named without one, and where the
	// table of deleted records is. Default "public".
	Schema string
	// Tables are the tables that live here, as names or patterns of path.Match
	// ("ci_*"). A table that no database names lives in the first one without
	// a list.
	Tables []string
}

func (d *Database) schema() string {
	if d.Schema == "" {
		return "public"
	}
	return d.Schema
}

// table is the name of a table with its schema.
func (d *Database) table(name string) tableName {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return tableName{schema, table}
	}
	return tableName{d.schema(), name}
}

// records is the table of deleted records, quoted.
func (d *Database) records() string { return d.table(RecordsTable).quoted() }

// tableName is a table and its schema.
type tableName struct{ schema, table string }

// String is the name as deleted records have it.
func (t tableName) String() string { return t.schema + "." + t.table }

func (t tableName) quoted() string { return pgx.Identifier{t.schema, t.table}.Sanitize() }

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// literal quotes a text for SQL.
func literal(s string) string {
	if strings.Contains(s, `\`) {
		return `E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + `'`
	}
	return `'` + strings.ReplaceAll(s, `'`, `''`) + `'`
}

// Databases are all databases of an application.
type Databases []Database

// check finds what is wrong with the databases themselves.
func (ds Databases) check() error {
	if len(ds) == 0 {
		return fmt.Errorf("loose foreign keys: there is no database")
	}
	names := map[string]bool{}
	for _, d := range ds {
		switch {
		case d.Name == "":
			return fmt.Errorf("loose foreign keys: a database has no name")
		case names[d.Name]:
			return fmt.Errorf("loose foreign keys: two databases are called %s", d.Name)
		case d.Pool == nil:
			return fmt.Errorf("loose foreign keys: database %s has no pool", d.Name)
		}
		names[d.Name] = true
		for _, pattern := range d.Tables {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("loose foreign keys: database %s: table pattern %q: %w", d.Name, pattern, err)
			}
		}
	}
	return nil
}

// Of is the database in which a table lives: the one that names it, else one
// with a pattern for it, else the first without a list. It is nil when there is
// none.
func (ds Databases) Of(table string) *Database {
	for i := range ds {
		if slices.Contains(ds[i].Tables, table) {
			return &ds[i]
		}
	}
	for i := range ds {
		for _, pattern := range ds[i].Tables {
			if ok, err := path.Match(pattern, table); ok && err == nil {
				return &ds[i]
			}
		}
	}
	for i := range ds {
		if len(ds[i].Tables) == 0 {
			return &ds[i]
		}
	}
	return nil
}

// DB is what runs SQL: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
