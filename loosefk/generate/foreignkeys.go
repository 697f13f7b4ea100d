package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"
)

// ForeignKey is a foreign key that PostgreSQL enforces. Tables are named as
// definitions name them: without a schema in the database's own.
type ForeignKey struct {
	Database   string `json:"database"` // in which it was found
	Constraint string `json:"constraint"`
	From       string `json:"from"`   // child table
	To         string `json:"to"`     // parent table
	Column     string `json:"column"` // of the child; several with commas
	// ToColumn is the parent's column; several with commas.
	ToColumn string `json:"to_column"`
	// OnDelete is cascade, nullify, restrict, no action or set default.
	OnDelete string `json:"on_delete"`
	// HasLooseForeignKey says that a definition for it exists already.
	HasLooseForeignKey bool `json:"has_lfk"`
	// Clause is the key in SQL, from FOREIGN KEY on, with all names qualified.
	Clause string `json:"clause"`
	// NotConvertible is why no loose foreign key can replace it, where its
	// columns alone say so.
	NotConvertible string `json:"not_convertible,omitempty"`

	child, parent tableName
	partitioned   bool // the child is
	valid         bool // all rows were checked
}

// String is the key in one line.
func (k ForeignKey) String() string {
	if k.OnDelete == "" {
		return fmt.Sprintf("%s.%s → %s", k.From, k.Column, k.To)
	}
	return fmt.Sprintf("%s.%s → %s (%s)", k.From, k.Column, k.To, k.OnDelete)
}

// Crosses says whether child and parent belong to different databases by a map,
// as LoadMap reads it or as the application's Databases are. Tables that the map
// doesn't name belong together.
func (k ForeignKey) Crosses(m Databases) bool { return m.Of(k.From) != m.Of(k.To) }

// ForeignKeys lists the foreign keys of the databases, by child, parent and
// column. Those of partitions that come from the partitioned table are left out,
// and a database that two entries of dbs lead to is read once.
func ForeignKeys(ctx context.Context, dbs Databases, defs Definitions) ([]ForeignKey, error) {
	if err := dbs.check(); err != nil {
		return nil, err
	}
	type identity struct {
		place string
		oid   uint32
	}
	seen := map[identity]bool{}
	var list []ForeignKey
	add := func(db *Database, place string, oid uint32, k ForeignKey) {
		if id := (identity{place, oid}); !seen[id] {
			seen[id] = true
			list = append(list, k.in(db, dbs, defs))
		}
	}
	// A key belongs to the database whose schema its child is in, so these come
	// before those of other schemas.
	for _, own := range []bool{true, false} {
		for i := range dbs {
			db := &dbs[i]
			place, err := db.place(ctx)
			if err != nil {
				return nil, fmt.Errorf("listing the foreign keys of database %s: %w", db.Name, err)
			}
			if err := db.foreignKeys(ctx, func(oid uint32, k ForeignKey) {
				if (k.child.schema == db.schema()) == own {
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

// place tells one database from all others, by whatever address it is reached.
func (d *Database) place(ctx context.Context) (place string, err error) {
	err = d.catalog().QueryRow(ctx, `
		SELECT oid::text || '/' || EXTRACT(epoch FROM pg_postmaster_start_time())::text
		FROM pg_database WHERE datname = current_database()`).Scan(&place)
	return place, err
}

// foreignKeys hands each foreign key of a database to fn, with its oid.
func (d *Database) foreignKeys(ctx context.Context, fn func(oid uint32, k ForeignKey)) error {
	return pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// PostgreSQL qualifies the names that it can't see.
		if _, err := tx.Exec(ctx, pinPath); err != nil {
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
				pg_get_constraintdef(k.oid), k.convalidated, COALESCE((`+keyColumnOf("k.confrelid")+`), '')
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
		_, err = pgx.ForEachRow(rows, []any{&oid, &k.Constraint, &k.child.schema, &k.child.table, &k.partitioned,
			&k.parent.schema, &k.parent.table, &columns, &keys, &k.OnDelete, &k.Clause, &k.valid, &parentKey}, func() error {
			k.Column, k.ToColumn = strings.Join(columns, ", "), strings.Join(keys, ", ")
			k.Clause = strings.TrimSuffix(k.Clause, " NOT VALID")
			k.NotConvertible = notConvertible(columns, keys, parentKey)
			fn(oid, k)
			return nil
		})
		return err
	})
}

// notConvertible is why a key of these columns can't become a loose one, or "".
// parentKey is the column by which deletions from the parent are recorded.
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

// in is the key with what its database and the definitions say of it.
func (k ForeignKey) in(db *Database, dbs Databases, defs Definitions) ForeignKey {
	k.Database = db.Name
	k.From, k.To = db.plain(k.child), db.plain(k.parent)
	k.HasLooseForeignKey = len(k.Definitions(dbs, defs)) > 0
	return k
}

// Definitions are those of defs that are the loose form of the key.
func (k ForeignKey) Definitions(dbs Databases, defs Definitions) Definitions {
	return slices.DeleteFunc(slices.Clone(defs), func(d Definition) bool {
		return k.NotConvertible != "" || d.Column != k.Column || dbs.named(d.Child) != k.child || dbs.named(d.Parent) != k.parent
	})
}

// plain is a table's name as definitions have it.
func (d *Database) plain(t tableName) string {
	if t.schema == d.schema() {
		return t.table
	}
	return t.String()
}

// named is the table that a definition means.
func (ds Databases) named(table string) tableName {
	if db := ds.Of(table); db != nil {
		return db.table(table)
	}
	return (&Database{}).table(table)
}

// Filter is a list of regular expressions.
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

// Match says whether each expression is found in one of the child table, the
// parent table and the column. An empty filter matches everything.
func (f Filter) Match(child, parent, column string) bool {
	for _, re := range f {
		if !re.MatchString(child) && !re.MatchString(parent) && !re.MatchString(column) {
			return false
		}
	}
	return true
}

// LoadMap reads a YAML file that says which tables belong to which database:
//
//	main: [projects, users]
//	ci: ["ci_*"]
//
// Patterns are those of path.Match. A database with an empty list has all tables
// that no other names. The result has no pools: it serves Of and
// ForeignKey.Crosses, for an application whose tables are still in one database.
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
