package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Reference is a definition together with its resolved tables: their databases, names,
// columns and the parent's key.
type Reference struct {
	Definition
	ChildDatabase, ParentDatabase *Database
	ChildTable, ParentTable       pg.Table
	// Rows describes which children of a parent are cleaned up, and the parent's key.
	Rows pg.Rows
}

// Local returns whether parent and child are in the same database.
func (r Reference) Local() bool { return r.ChildDatabase == r.ParentDatabase }

// references are definitions in order.
type references []Reference

// of returns the references to a parent.
func (rs references) of(db *Database, parent pg.Table) references {
	return slices.DeleteFunc(slices.Clone(rs), func(r Reference) bool { return r.ParentDatabase != db || r.ParentTable != parent })
}

// parents returns the distinct parent tables in a database, in the order of their first
// definition.
func (rs references) parents(db *Database) []pg.Table {
	var list []pg.Table
	for _, r := range rs {
		if r.ParentDatabase == db && !slices.Contains(list, r.ParentTable) {
			list = append(list, r.ParentTable)
		}
	}
	return list
}

// tables describes, for each database, the tables there that definitions name.
type tables map[*Database]map[pg.Table]pg.TableInfo

// lookUp looks up the tables and columns of the definitions. It returns the definitions
// with their tables, and the descriptions of all tables found. It returns Problems if a
// table belongs to no database, or if a table or column doesn't exist or is of the wrong
// kind.
func lookUp(ctx context.Context, dbs Databases, defs Definitions) (references, tables, error) {
	var rs references
	var problems Problems
	wanted := map[*Database][]pg.Table{}
	for _, d := range defs {
		r := Reference{Definition: d, ChildDatabase: dbs.Of(d.Child), ParentDatabase: dbs.Of(d.Parent)}
		for name, db := range map[string]*Database{d.Child: r.ChildDatabase, d.Parent: r.ParentDatabase} {
			if db == nil {
				problems = append(problems, d.problem("table %s belongs to no database", name))
			}
		}
		if r.ChildDatabase == nil || r.ParentDatabase == nil {
			continue
		}
		r.ChildTable, r.ParentTable = r.ChildDatabase.table(d.Child), r.ParentDatabase.table(d.Parent)
		wanted[r.ChildDatabase] = append(wanted[r.ChildDatabase], r.ChildTable)
		wanted[r.ParentDatabase] = append(wanted[r.ParentDatabase], r.ParentTable)
		rs = append(rs, r)
	}
	found := tables{}
	for db, names := range wanted {
		var err error
		if found[db], err = pg.Describe(ctx, db.catalog(), names); err != nil {
			return nil, nil, fmt.Errorf("looking up the tables of database %s: %w", db.Name, err)
		}
	}
	for i := range rs {
		problems = append(problems, rs[i].complete(found)...)
	}
	return rs, found, problems.or()
}

func (d Definition) problem(format string, args ...any) Problem {
	return Problem{d.File, d.Line, fmt.Sprintf(format, args...)}
}

// complete fills in r.Rows from `found`, the descriptions of the tables. It returns a
// problem for each table or column that doesn't exist or is of the wrong kind.
func (r *Reference) complete(found tables) (problems Problems) {
	fail := func(format string, args ...any) {
		problems = append(problems, r.problem(format, args...))
	}
	child, ok := found[r.ChildDatabase][r.ChildTable]
	if !ok {
		fail("there is no table %s in database %s", r.ChildTable, r.ChildDatabase.Name)
	} else if child.Kind != "r" && child.Kind != "p" {
		fail("%s is no table: rows of views and foreign tables can't be cleaned up", r.ChildTable)
	}
	parent, ok2 := found[r.ParentDatabase][r.ParentTable]
	if !ok2 {
		fail("there is no table %s in database %s", r.ParentTable, r.ParentDatabase.Name)
	} else if parent.Kind != "r" && parent.Kind != "p" {
		fail("%s is no table: a trigger can't record what is deleted from views and foreign tables", r.ParentTable)
	}
	if !ok || !ok2 || len(problems) > 0 {
		return problems
	}
	key := pg.Key{Column: parent.Key, Kind: parent.Columns[parent.Key].Kind}
	r.Rows = pg.Rows{Table: r.ChildTable, Column: r.Column, Key: key}
	if parent.Key == "" {
		fail("table %s has no key that deleted records can hold: a single column of an integer type, uuid, text or varchar, which is called id and unique or is the primary key", r.ParentTable)
	}
	column := func(name string) pg.Column {
		c, ok := child.Columns[name]
		if !ok {
			fail("table %s has no column %s", r.ChildTable, name)
		}
		return c
	}
	c := column(r.Column)
	if len(problems) == 0 && c.Kind != key.Kind {
		fail("column %s of %s is %s: it can't hold the key %s of %s, which is %s", r.Column, r.ChildTable, c.Type, parent.Key, r.ParentTable, parent.Columns[parent.Key].Type)
	}
	if r.OnDelete == AsyncNullify && c.NotNull {
		fail("column %s of %s is NOT NULL: async_nullify can't clear it", r.Column, r.ChildTable)
	}
	if r.OnDelete == UpdateColumnTo {
		t := column(r.TargetColumn)
		r.Rows.Target = &pg.Values{Column: r.TargetColumn, Type: t.Type, Equals: t.Equals, List: []*string{r.TargetValue}}
		if t.NotNull && r.TargetValue == nil {
			fail("column %s of %s is NOT NULL: target_value can't be null", r.TargetColumn, r.ChildTable)
		}
		if moves(t.Type, r.TargetValue) {
			fail("target_value %s is another time in each query: give one that stays", *r.TargetValue)
		}
	}
	for _, cond := range r.Conditions {
		c := column(cond.Column)
		r.Rows.Conditions = append(r.Rows.Conditions, pg.Values{Column: cond.Column, Type: c.Type, Equals: c.Equals, List: cond.Values})
	}
	return problems
}

// moves returns whether a target_value, such as the text "now" for a timestamp, stands for a
// time that changes. Rows that the worker has set to such a value would differ from the
// value in its next query, and it would update them for ever.
func moves(typ string, value *string) bool {
	if value == nil || !strings.HasPrefix(typ, "date") && !strings.HasPrefix(typ, "time") {
		return false
	}
	return slices.ContainsFunc(strings.Fields(strings.ToLower(*value)), func(word string) bool {
		return slices.Contains([]string{"now", "today", "tomorrow", "yesterday"}, word)
	})
}

// Validate checks definitions against the databases. Their tables and columns must exist
// and be of the right kind, each child's column needs an index that begins with it, and
// each parent needs a key of a single column. A table may be its own child, and definitions
// may form a cycle: cleaning up ends when no rows are left. Validate returns Problems with
// all mistakes, or the error of a database. It also returns an error if a pool prepares
// statements although a connection pooler shares its sessions among clients, since prepared
// statements get lost there.
func Validate(ctx context.Context, dbs Databases, defs Definitions) error {
	if err := dbs.Check(); err != nil {
		return err
	}
	if err := dbs.sessions(ctx); err != nil {
		return err
	}
	rs, found, problems, err := examine(ctx, dbs, defs)
	if err != nil {
		return explain(err)
	}
	problems = append(problems, rs.indexes(found)...)
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return problems.or()
}

// Resolve looks up the tables of definitions. It returns the definitions whose tables and
// columns exist, and the problems that Validate would report, except for missing indexes.
func Resolve(ctx context.Context, dbs Databases, defs Definitions) ([]Reference, Problems, error) {
	rs, found, problems, err := examine(ctx, dbs, defs)
	if err != nil {
		return nil, nil, err
	}
	return slices.DeleteFunc(rs, func(r Reference) bool { return len(r.complete(found)) > 0 }), problems, nil
}

// examine looks up the tables of definitions and returns all problems with the definitions,
// except for missing indexes.
func examine(ctx context.Context, dbs Databases, defs Definitions) (references, tables, Problems, error) {
	rs, found, err := lookUp(ctx, dbs, defs)
	problems, bad := errors.AsType[Problems](err)
	if err != nil && !bad {
		return nil, nil, nil, err
	}
	unfit, err := rs.unfit(ctx, found)
	if err != nil {
		return nil, nil, nil, err
	}
	partitions, err := rs.parentPartitions(ctx)
	return rs, found, slices.Concat(problems, unfit, rs.duplicates(), partitions), err
}

// unfit returns a problem for each definition whose columns exist but can't be compared or
// changed as the definition says, or whose values don't fit their columns. It finds out by
// having the server parse the definition's query and cast each value.
func (rs references) unfit(ctx context.Context, found tables) (problems Problems, err error) {
	for _, r := range rs {
		if len(r.complete(found)) > 0 {
			continue
		}
		err := r.ChildDatabase.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return r.fits(ctx, conn) })
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code[:2] != "57" && !lostStatement(err) {
			problems = append(problems, r.problem("%s can't be cleaned up in this way: %s", r.ChildTable, e.Message))
		} else if err != nil {
			return nil, fmt.Errorf("checking the definitions: %w", err)
		}
	}
	return problems, nil
}

func (r Reference) fits(ctx context.Context, conn *pgxpool.Conn) error {
	all := r.Rows.Conditions
	if r.Rows.Target != nil {
		all = append([]pg.Values{*r.Rows.Target}, all...)
	}
	for _, values := range all {
		for _, v := range values.List {
			if _, err := conn.Exec(ctx, "SELECT CAST($1::text AS "+values.Type+")", v); err != nil {
				return err
			}
		}
	}
	sql, _ := r.statement(1, 1, true)
	_, err := conn.Conn().PgConn().Prepare(ctx, "", sql, nil)
	return err
}

// duplicates returns a problem for each definition whose child, column, parent and
// conditions equal those of an earlier definition. A table counts as equal whether
// definitions name it with its schema or without.
func (rs references) duplicates() (problems Problems) {
	first := map[string]Reference{}
	for _, r := range rs {
		key := fmt.Sprintf("%s %s %s %s", r.ChildTable, r.Column, r.ParentTable, conditionKey(r.Definition))
		if other, ok := first[key]; ok {
			problems = append(problems, r.problem("column %s of %s is defined at line %d already", r.Column, r.ChildTable, other.Line))
			continue
		}
		first[key] = r
	}
	return problems
}

// parentPartitions returns a problem for each definition whose parent is a partition of
// another table. A delete that names the partitioned table fires only that table's trigger,
// so a trigger on the partition would not record it.
func (rs references) parentPartitions(ctx context.Context) (problems Problems, err error) {
	for _, r := range rs {
		root, err := r.ParentDatabase.in().Root(ctx, r.ParentTable)
		if err != nil {
			return nil, fmt.Errorf("looking at table %s: %w", r.ParentTable, err)
		}
		if root != r.ParentTable {
			problems = append(problems, r.problem("%s is a partition of %s and can't be a parent by itself: what is deleted through %[2]s would not be recorded for it. Name %[2]s", r.ParentTable, root))
		}
	}
	return problems, nil
}

// indexes returns a problem for each child's column without an index that begins with it,
// and for each parent's key without a unique index on the key alone.
func (rs references) indexes(found tables) (problems Problems) {
	for _, r := range rs {
		child, ok := found[r.ChildDatabase][r.ChildTable]
		if _, has := child.Columns[r.Column]; ok && has && !child.Indexed(r.Column) {
			problems = append(problems, r.problem("column %s of %s has no index that begins with it: each clean-up would read the whole table. CREATE INDEX CONCURRENTLY ON %s (%s)",
				r.Column, r.ChildTable, r.ChildTable.Quoted(), pg.Quote(r.Column)))
		}
		parent, ok := found[r.ParentDatabase][r.ParentTable]
		if ok && parent.Key != "" && !parent.HasKey() {
			problems = append(problems, r.problem("the key of %s must be a single column: it has no unique index on %s alone", r.ParentTable, parent.Key))
		}
	}
	return problems
}
