package loosefk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// reference is a definition with what the databases know of its tables.
type reference struct {
	Definition
	childDB, parentDB *Database
	child, parent     tableName
	targetType        string   // SQL type of the target column
	conditionTypes    []string // of the conditions' columns
	// targetEquals and conditionEquals are the operators that compare their values.
	targetEquals    string
	conditionEquals []string
	key             key // of the parent
}

// local returns whether parent and child live in one database.
func (r reference) local() bool { return r.childDB == r.parentDB }

// references are definitions in order.
type references []reference

// of returns the references to a parent.
func (rs references) of(db *Database, parent tableName) references {
	return slices.DeleteFunc(slices.Clone(rs), func(r reference) bool { return r.parentDB != db || r.parent != parent })
}

// parents returns the parents that live in a database, in the order of their first
// definition.
func (rs references) parents(db *Database) []tableName {
	var list []tableName
	for _, r := range rs {
		if r.parentDB == db && !slices.Contains(list, r.parent) {
			list = append(list, r.parent)
		}
	}
	return list
}

// column is a column as a database describes it.
type column struct {
	typ     string
	equals  string  // the operator for its values, by its schema's name
	kind    keyKind // "" if no key can have the type
	notNull bool
}

// table is a table as a database describes it.
type table struct {
	kind    string // of pg_class: r, p, v, …
	columns map[string]column
	indexes []index
	key     string // the column that deleted records name, or ""
}

// index is a valid index of a table.
type index struct {
	columns   []string // leading columns that are plain ones
	keys      int      // number of its columns
	unique    bool
	predicate string // of a partial index
}

// tables are the tables of all databases that definitions name.
type tables map[*Database]map[tableName]table

// lookUp looks up the tables of the definitions. Error: Problems, when a table
// or column is not there or of the wrong kind.
func lookUp(ctx context.Context, dbs Databases, defs Definitions) (references, tables, error) {
	var rs references
	var problems Problems
	wanted := map[*Database][]tableName{}
	for _, d := range defs {
		r := reference{Definition: d, childDB: dbs.Of(d.Child), parentDB: dbs.Of(d.Parent)}
		for name, db := range map[string]*Database{d.Child: r.childDB, d.Parent: r.parentDB} {
			if db == nil {
				problems = append(problems, d.problem("table %s belongs to no database", name))
			}
		}
		if r.childDB == nil || r.parentDB == nil {
			continue
		}
		r.child, r.parent = r.childDB.table(d.Child), r.parentDB.table(d.Parent)
		wanted[r.childDB] = append(wanted[r.childDB], r.child)
		wanted[r.parentDB] = append(wanted[r.parentDB], r.parent)
		rs = append(rs, r)
	}
	found := tables{}
	for db, names := range wanted {
		var err error
		if found[db], err = describe(ctx, db.catalog(), names); err != nil {
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

// complete fills in the types and finds what isn't there.
func (r *reference) complete(found tables) (problems Problems) {
	fail := func(format string, args ...any) {
		problems = append(problems, r.problem(format, args...))
	}
	child, ok := found[r.childDB][r.child]
	if !ok {
		fail("there is no table %s in database %s", r.child, r.childDB.Name)
	} else if child.kind != "r" && child.kind != "p" {
		fail("%s is no table: rows of views and foreign tables can't be cleaned up", r.child)
	}
	parent, ok2 := found[r.parentDB][r.parent]
	if !ok2 {
		fail("there is no table %s in database %s", r.parent, r.parentDB.Name)
	} else if parent.kind != "r" && parent.kind != "p" {
		fail("%s is no table: a trigger can't record what is deleted from views and foreign tables", r.parent)
	}
	if !ok || !ok2 || len(problems) > 0 {
		return problems
	}
	r.key = key{parent.key, parent.columns[parent.key].kind}
	if parent.key == "" {
		fail("table %s has no key that deleted records can hold: a single column of an integer type, uuid, text or varchar, which is called id and unique or is the primary key", r.parent)
	}
	column := func(name string) column {
		c, ok := child.columns[name]
		if !ok {
			fail("table %s has no column %s", r.child, name)
		}
		return c
	}
	c := column(r.Column)
	if len(problems) == 0 && c.kind != r.key.keyKind {
		fail("column %s of %s is %s: it can't hold the key %s of %s, which is %s", r.Column, r.child, c.typ, parent.key, r.parent, parent.columns[parent.key].typ)
	}
	if r.OnDelete == AsyncNullify && c.notNull {
		fail("column %s of %s is NOT NULL: async_nullify can't clear it", r.Column, r.child)
	}
	if r.OnDelete == UpdateColumnTo {
		t := column(r.TargetColumn)
		r.targetType, r.targetEquals = t.typ, t.equals
		if t.notNull && r.TargetValue == nil {
			fail("column %s of %s is NOT NULL: target_value can't be null", r.TargetColumn, r.child)
		}
		if moves(t.typ, r.TargetValue) {
			fail("target_value %s is another time in each query: give one that stays", *r.TargetValue)
		}
	}
	r.conditionTypes, r.conditionEquals = nil, nil
	for _, cond := range r.Conditions {
		c := column(cond.Column)
		r.conditionTypes, r.conditionEquals = append(r.conditionTypes, c.typ), append(r.conditionEquals, c.equals)
	}
	return problems
}

// moves returns whether a value stands for a changing time, such as now: rows set to it
// would be found again for ever.
func moves(typ string, value *string) bool {
	if value == nil || !strings.HasPrefix(typ, "date") && !strings.HasPrefix(typ, "time") {
		return false
	}
	return slices.ContainsFunc(strings.Fields(strings.ToLower(*value)), func(word string) bool {
		return slices.Contains([]string{"now", "today", "tomorrow", "yesterday"}, word)
	})
}

// describe reads tables, their columns and their valid indexes from the
// catalogue. Tables that are not there are left out.
func describe(ctx context.Context, db DB, names []tableName) (map[tableName]table, error) {
	schemas, relations := make([]string, len(names)), make([]string, len(names))
	for i, n := range names {
		schemas[i], relations[i] = n.schema, n.table
	}
	found := map[tableName]table{}
	rows, err := db.Query(ctx, `
		SELECT n.nspname, c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod),
			COALESCE(`+kindSQL+`, ''), a.attnotnull, COALESCE((`+keyColumnOf("c.oid")+`), ''),
			COALESCE((SELECT o.nspname FROM pg_type b JOIN pg_namespace o ON o.oid = b.typnamespace
				WHERE b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END AND b.typtype = 'b' AND b.typcategory <> 'A'), 'pg_catalog')
		FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[])) AS w (schema, name)
		JOIN pg_namespace n ON n.nspname = w.schema
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
		LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_type t ON t.oid = a.atttypid`, schemas, relations)
	if err != nil {
		return nil, err
	}
	var n tableName
	var kind, keyColumn, operators string
	var name, typ *string
	var columnKind keyKind
	var notNull *bool
	_, err = pgx.ForEachRow(rows, []any{&n.schema, &n.table, &kind, &name, &typ, &columnKind, &notNull, &keyColumn, &operators}, func() error {
		t, ok := found[n]
		if !ok {
			t = table{kind: kind, columns: map[string]column{}, key: keyColumn}
		}
		if name != nil {
			t.columns[*name] = column{*typ, "OPERATOR(" + quote(operators) + ".=)", columnKind, *notNull}
		}
		found[n] = t
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, describeIndexes(ctx, db, schemas, relations, found)
}

func describeIndexes(ctx context.Context, db DB, schemas, relations []string, found map[tableName]table) error {
	rows, err := db.Query(ctx, `
		SELECT n.nspname, c.relname, i.indisunique, i.indnkeyatts, COALESCE(pg_get_expr(i.indpred, i.indrelid), ''),
			ARRAY(SELECT COALESCE(a.attname::text, '')
				FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
				LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
				WHERE k.place <= i.indnkeyatts ORDER BY k.place)
		FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[])) AS w (schema, name)
		JOIN pg_namespace n ON n.nspname = w.schema
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
		JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indisready
		JOIN pg_class x ON x.oid = i.indexrelid
		JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'`, schemas, relations)
	if err != nil {
		return err
	}
	var n tableName
	var x index
	_, err = pgx.ForEachRow(rows, []any{&n.schema, &n.table, &x.unique, &x.keys, &x.predicate, &x.columns}, func() error {
		if t, ok := found[n]; ok {
			t.indexes = append(t.indexes, index{slices.Clone(x.columns), x.keys, x.unique, x.predicate})
			found[n] = t
		}
		return nil
	})
	return err
}

// beginsWith says whether the index finds rows by these columns.
func (x index) beginsWith(columns ...string) bool {
	if len(x.columns) < len(columns) || !slices.Equal(x.columns[:len(columns)], columns) {
		return false
	}
	// A partial index serves if it leaves out only what is never looked for.
	p := strings.Trim(x.predicate, "()")
	return p == "" || p == columns[0]+" IS NOT NULL" || p == quote(columns[0])+" IS NOT NULL"
}

// Validate checks definitions against the databases: tables and columns must exist and be
// of the right kind, each child column needs an index that begins with it, and each parent
// a single key. A table may be its own child, and deletes may form a cycle: they end when
// no rows are left. Error: Problems, all of them at once, or the error of a database. A
// pool that prepares statements behind a pooler which shares sessions is a problem too,
// even before it fails.
func Validate(ctx context.Context, dbs Databases, defs Definitions) error {
	if err := dbs.check(); err != nil {
		return err
	}
	if err := dbs.sessions(ctx); err != nil {
		return err
	}
	rs, found, err := lookUp(ctx, dbs, defs)
	var problems Problems
	if err != nil && !errors.As(err, &problems) {
		return explain(err)
	}
	unfit, err := rs.unfit(ctx, found)
	if err != nil {
		return explain(err)
	}
	problems = append(problems, unfit...)
	problems = append(problems, rs.duplicates()...)
	problems = append(problems, rs.indexes(found)...)
	partitions, err := rs.parentPartitions(ctx)
	if err != nil {
		return explain(err)
	}
	problems = append(problems, partitions...)
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return problems.or()
}

// unfit finds definitions whose columns exist but can't be compared or changed as the
// definition wants, or whose values don't fit their columns. It has the server check the
// query and each value.
func (rs references) unfit(ctx context.Context, found tables) (problems Problems, err error) {
	for _, r := range rs {
		if len(r.complete(found)) > 0 {
			continue
		}
		err := r.childDB.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return r.fits(ctx, conn) })
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code[:2] != "57" && !lostStatement(err) {
			problems = append(problems, r.problem("%s can't be cleaned up so: %s", r.child, e.Message))
		} else if err != nil {
			return nil, fmt.Errorf("looking at the definitions: %w", err)
		}
	}
	return problems, nil
}

func (r reference) fits(ctx context.Context, conn *pgxpool.Conn) error {
	type value struct {
		typ  string
		text *string
	}
	var values []value
	if r.OnDelete == UpdateColumnTo {
		values = append(values, value{r.targetType, r.TargetValue})
	}
	for i, cond := range r.Conditions {
		for _, v := range cond.Values {
			values = append(values, value{r.conditionTypes[i], v})
		}
	}
	for _, v := range values {
		if _, err := conn.Exec(ctx, "SELECT CAST($1::text AS "+v.typ+")", v.text); err != nil {
			return err
		}
	}
	sql, _ := r.statement(1, 1, true)
	_, err := conn.Conn().PgConn().Prepare(ctx, "", sql, nil)
	return err
}

// duplicates finds definitions that name the same tables with and without a schema.
func (rs references) duplicates() (problems Problems) {
	first := map[string]reference{}
	for _, r := range rs {
		key := fmt.Sprintf("%s %s %s %s", r.child, r.Column, r.parent, conditionKey(r.Definition))
		if other, ok := first[key]; ok {
			problems = append(problems, r.problem("column %s of %s is defined at line %d already", r.Column, r.child, other.Line))
			continue
		}
		first[key] = r
	}
	return problems
}

// parentPartitions finds parents that are partitions. A delete through the partitioned
// table fires that table's trigger and not theirs.
func (rs references) parentPartitions(ctx context.Context) (problems Problems, err error) {
	for _, r := range rs {
		root, err := r.parentDB.root(ctx, r.parent)
		if err != nil {
			return nil, fmt.Errorf("looking at table %s: %w", r.parent, err)
		}
		if root != r.parent {
			problems = append(problems, r.problem("%s is a partition of %s and can't be a parent by itself: what is deleted through %[2]s would not be recorded for it. Name %[2]s", r.parent, root))
		}
	}
	return problems, nil
}

// root is the partitioned table to which a table belongs, or the table itself.
func (d *Database) root(ctx context.Context, t tableName) (tableName, error) {
	root := t
	err := d.catalog().QueryRow(ctx, `
		SELECT n.nspname, r.relname FROM pg_class c
		JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
		JOIN pg_namespace n ON n.oid = r.relnamespace
		WHERE c.oid = to_regclass($1) AND c.relispartition`, t.quoted()).Scan(&root.schema, &root.table)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return root, err
}

func (rs references) indexes(found tables) (problems Problems) {
	for _, r := range rs {
		child, ok := found[r.childDB][r.child]
		if _, has := child.columns[r.Column]; ok && has && !child.indexed(r.Column) {
			problems = append(problems, r.problem("column %s of %s has no index that begins with it: each clean-up would read the whole table. CREATE INDEX CONCURRENTLY ON %s (%s)",
				r.Column, r.child, r.child.quoted(), quote(r.Column)))
		}
		parent, ok := found[r.parentDB][r.parent]
		if ok && parent.key != "" && !parent.hasKey() {
			problems = append(problems, r.problem("the key of %s must be a single column: it has no unique index on %s alone", r.parent, parent.key))
		}
	}
	return problems
}

func (t table) indexed(columns ...string) bool {
	return slices.ContainsFunc(t.indexes, func(x index) bool { return x.beginsWith(columns...) })
}

// hasKey returns whether the key is unique. The unique index of a partitioned table must
// also contain the partition column.
func (t table) hasKey() bool {
	return slices.ContainsFunc(t.indexes, func(x index) bool {
		return x.unique && x.predicate == "" && (x.keys == 1 || t.kind == "p") && slices.Contains(x.columns, t.key)
	})
}
