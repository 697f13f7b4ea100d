package loosefk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Database is one of the databases that contain the application's tables.
type Database struct {
	Name string // in logs, metrics and locks; required, unique
	Pool *pgxpool.Pool
	// Schema contains the table of deleted records, and the tables that definitions name
	// without a schema. Default DefaultSchema.
	Schema Schema
	// Tables lists the tables in this database, by name or by a pattern of path.Match
	// ("ci_*"). A table that matches no database's list belongs to the first database
	// without a list.
	Tables []string
}

func (d *Database) in() pg.Database { return pg.New(d.Name, d.Pool, string(d.Schema)) }

func (d *Database) table(name string) pg.Table { return d.in().Table(name) }

// records returns the name of the table of deleted records, quoted.
func (d *Database) records() string { return d.in().Records() }

func (d *Database) catalog() DB { return d.in().Catalog() }

// Databases are all databases of an application.
type Databases []Database

// Check returns an error if there is no database, if a database lacks a name or pool, if two
// databases have the same name, or if a pattern in Tables is invalid.
func (ds Databases) Check() error {
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

// Of returns the database of a table. That is the database whose list contains the table's
// name, else the first one with a pattern that matches the name, else the first one without
// a list. It returns nil if there is no such database.
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

// DB runs SQL: it is a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// LoadMap reads a YAML file that says which tables belong to which database:
//
//	main: [projects, users]
//	ci: ["ci_*"]
//
// The names may be patterns of path.Match. A database with an empty list has all tables that
// no other database names. The Databases that LoadMap returns have no connection pools. Pass
// them to generate.ForeignKey.Crosses, to learn which foreign keys will cross databases while
// all tables of an application are still in one database.
func LoadMap(name string) (Databases, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading the map of databases: %w", err)
	}
	defer f.Close()
	var doc yaml.Node
	if err := yaml.NewDecoder(f).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading the map of databases %s: %w", name, err)
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, Problems{{File: name, Text: "want a mapping from databases to lists of table patterns"}}
	}
	var dbs Databases
	var problems Problems
	for i := 0; i < len(doc.Content[0].Content); i += 2 {
		key, value := doc.Content[0].Content[i], doc.Content[0].Content[i+1]
		db := Database{Name: key.Value}
		if err := value.Decode(&db.Tables); err != nil {
			problems = append(problems, Problem{name, key.Line, fmt.Sprintf("database %s: want a list of table patterns", key.Value)})
		}
		for _, pattern := range db.Tables {
			if _, err := path.Match(pattern, ""); err != nil {
				problems = append(problems, Problem{name, key.Line, fmt.Sprintf("database %s: table pattern %q: %v", key.Value, pattern, err)})
			}
		}
		dbs = append(dbs, db)
	}
	return dbs, problems.or()
}
