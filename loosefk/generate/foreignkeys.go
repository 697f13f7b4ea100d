// Package generate turns foreign keys into loose foreign keys, and back. It lists the
// foreign keys of an application's databases, and plans the definitions, migrations and
// tests as files.
package generate

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// ForeignKey is a foreign key, which PostgreSQL itself enforces. Its fields From and To name
// the child and the parent as definitions do: without the schema if it is the field Schema
// of the loosefk.Database where the key was found.
type ForeignKey struct {
	Database   string `json:"database"` // where the key was found
	Constraint string `json:"constraint"`
	From       string `json:"from"`   // child table
	To         string `json:"to"`     // parent table
	Column     string `json:"column"` // the child's column; several are separated by commas
	// ToColumn is the parent's column; several are separated by commas.
	ToColumn string `json:"to_column"`
	// OnDelete is cascade, nullify, restrict, no action or set default.
	OnDelete string `json:"on_delete"`
	// HasLooseForeignKey says that a definition for the same child, column and parent
	// exists.
	HasLooseForeignKey bool `json:"has_lfk"`
	// Clause is the SQL of the foreign key, beginning with FOREIGN KEY; it names all tables
	// with their schema.
	Clause string `json:"clause"`
	// NotConvertible is the reason why the columns of this foreign key don't allow a loose
	// foreign key in its place. Empty: they allow it.
	NotConvertible string `json:"not_convertible,omitempty"`

	child, parent pg.Table
	partitioned   bool // the child table is partitioned
	valid         bool // PostgreSQL has checked all rows against the key
}

// String returns the key in one line.
func (k ForeignKey) String() string {
	if k.OnDelete == "" {
		return fmt.Sprintf("%s.%s → %s", k.From, k.Column, k.To)
	}
	return fmt.Sprintf("%s.%s → %s (%s)", k.From, k.Column, k.To, k.OnDelete)
}

// Crosses returns whether the child and the parent of k are in different databases
// according to m, a map read by LoadMap or an application's Databases. Tables that m
// doesn't name count as being in one database.
func (k ForeignKey) Crosses(m loosefk.Databases) bool { return m.Of(k.From) != m.Of(k.To) }

// ForeignKeys lists the foreign keys in the databases, ordered by child, parent and column.
// It leaves out those that a partition inherits from its partitioned table. If several
// elements of dbs lead to the same database, each key is listed once.
func ForeignKeys(ctx context.Context, dbs loosefk.Databases, defs loosefk.Definitions) ([]ForeignKey, error) {
	if err := dbs.Check(); err != nil {
		return nil, err
	}
	type identity struct {
		place string
		oid   uint32
	}
	seen := map[identity]bool{}
	var list []ForeignKey
	add := func(db *loosefk.Database, place string, oid uint32, k ForeignKey) {
		if id := (identity{place, oid}); !seen[id] {
			seen[id] = true
			list = append(list, k.in(db, dbs, defs))
		}
	}
	// A foreign key is listed for the Database whose Schema contains its child, so first add
	// the foreign keys in each Database's own schema, and then those in other schemas.
	for _, own := range []bool{true, false} {
		for i := range dbs {
			db := &dbs[i]
			place, err := place(ctx, db)
			if err != nil {
				return nil, fmt.Errorf("listing the foreign keys of database %s: %w", db.Name, err)
			}
			if err := eachForeignKey(ctx, db, func(oid uint32, k ForeignKey) {
				if (k.child.Schema == in(db).Schema()) == own {
					add(db, place, oid, k)
				}
			}); err != nil {
				return nil, fmt.Errorf("listing the foreign keys of database %s: %w", db.Name, err)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b ForeignKey) int {
		return strings.Compare(a.From+"\x00"+a.To+"\x00"+a.Column, b.From+"\x00"+b.To+"\x00"+b.Column)
	})
	return list, nil
}

// place returns a text that identifies a database whatever address it is reached by: the
// database's oid and the start time of its PostgreSQL server.
func place(ctx context.Context, d *loosefk.Database) (place string, err error) {
	err = in(d).Catalog().QueryRow(ctx, `
		SELECT oid::text || '/' || EXTRACT(epoch FROM pg_postmaster_start_time())::text
		FROM pg_database WHERE datname = current_database()`).Scan(&place)
	return place, err
}

// eachForeignKey calls `fn` with each foreign key in a database and its oid in
// pg_constraint.
func eachForeignKey(ctx context.Context, d *loosefk.Database, fn func(oid uint32, k ForeignKey)) error {
	return pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// With an empty search path, pg_get_constraintdef qualifies all names.
		if _, err := tx.Exec(ctx, pg.PinPath); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT k.oid, k.conname, cn.nspname, c.relname, c.relkind = 'p', pn.nspname, p.relname,
				ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (num, place)
					JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.num ORDER BY u.place),
				ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (num, place)
					JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.num ORDER BY u.place),
				CASE k.confdeltype WHEN 'c' THEN 'cascade' WHEN 'n' THEN 'nullify' WHEN 'r' THEN 'restrict'
					WHEN 'd' THEN 'set default' ELSE 'no action' END,
				pg_get_constraintdef(k.oid), k.convalidated, COALESCE((`+pg.KeyColumnOf("k.confrelid")+`), '')
			FROM pg_constraint k
			JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
			JOIN pg_class p ON p.oid = k.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
			WHERE k.contype = 'f' AND k.conparentid = 0
				AND cn.nspname NOT LIKE 'pg\_%' AND cn.nspname <> 'information_schema'`)
		if err != nil {
			return err
		}
		var oid uint32
		var k ForeignKey
		var columns, keys []string
		var parentKey string
		_, err = pgx.ForEachRow(rows, []any{&oid, &k.Constraint, &k.child.Schema, &k.child.Name, &k.partitioned,
			&k.parent.Schema, &k.parent.Name, &columns, &keys, &k.OnDelete, &k.Clause, &k.valid, &parentKey}, func() error {
			k.Column, k.ToColumn = strings.Join(columns, ", "), strings.Join(keys, ", ")
			k.Clause = strings.TrimSuffix(k.Clause, " NOT VALID")
			k.NotConvertible = notConvertible(columns, keys, parentKey)
			fn(oid, k)
			return nil
		})
		return err
	})
}

// notConvertible returns the reason why a foreign key can't become a loose foreign key, or
// "". `columns` are the child's columns, `keys` the parent's columns, and `parentKey` is
// the column of the parent whose values deleted records contain.
func notConvertible(columns, keys []string, parentKey string) string {
	switch {
	case len(columns) > 1:
		return fmt.Sprintf("it has %d columns: a loose foreign key has one, which holds the parent's key", len(columns))
	case parentKey == "":
		return "its parent has no key that deleted records can hold: a single column of an integer type, uuid, text or varchar, which is called id and unique or is the primary key"
	case keys[0] != parentKey:
		return fmt.Sprintf("it refers to the parent's column %s, and deletions from the parent are recorded by its key %s", keys[0], parentKey)
	}
	return ""
}

// in returns a copy of k, in which it sets the fields that depend on the database and the
// definitions: Database, From, To and HasLooseForeignKey.
func (k ForeignKey) in(db *loosefk.Database, dbs loosefk.Databases, defs loosefk.Definitions) ForeignKey {
	k.Database = db.Name
	k.From, k.To = in(db).Plain(k.child), in(db).Plain(k.parent)
	k.HasLooseForeignKey = len(k.Definitions(dbs, defs)) > 0
	return k
}

// Definitions returns those of `defs` that can replace the foreign key: those of the same
// child, column and parent.
func (k ForeignKey) Definitions(dbs loosefk.Databases, defs loosefk.Definitions) loosefk.Definitions {
	return slices.DeleteFunc(slices.Clone(defs), func(d loosefk.Definition) bool {
		return k.NotConvertible != "" || d.Column != k.Column || named(dbs, d.Child) != k.child || named(dbs, d.Parent) != k.parent
	})
}

// named returns the table to which a name in a definition refers.
func named(dbs loosefk.Databases, table string) pg.Table {
	if db := dbs.Of(table); db != nil {
		return in(db).Table(table)
	}
	return pg.New("", nil, "").Table(table)
}

func in(d *loosefk.Database) pg.Database { return pg.New(d.Name, d.Pool, string(d.Schema)) }

// Filter selects foreign keys and definitions by regular expressions; see Match.
type Filter []*regexp.Regexp

// ParseFilter compiles regular expressions (RE2) into a filter.
func ParseFilter(patterns ...string) (Filter, error) {
	var f Filter
	for _, p := range patterns {
		re, err := regexp.Compile(p)
		if err != nil {
			return nil, fmt.Errorf("filter %q is no regular expression: %w", p, err)
		}
		f = append(f, re)
	}
	return f, nil
}

// Match returns whether each of the expressions matches the child table, the parent table
// or the column. An empty filter matches everything.
func (f Filter) Match(child, parent, column string) bool {
	for _, re := range f {
		if !re.MatchString(child) && !re.MatchString(parent) && !re.MatchString(column) {
			return false
		}
	}
	return true
}
