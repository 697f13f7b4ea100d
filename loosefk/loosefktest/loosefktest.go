// Package loosefktest helps to test an application's loose foreign keys in the
// application's own database. [HasLooseForeignKeys] tests that deletions from a parent
// table are recorded, and [CleanedUp] that the children of a deleted parent are cleaned up.
// Both need a database with all migrations applied, and nothing else. They insert rows with
// made-up values, or by functions of the application ([NewParent], [NewChild]), and remove
// these rows at the end.
//
// HasLooseForeignKeys and CleanedUp commit the rows that they insert, since the worker couldn't
// see uncommitted rows. They also process all other pending deleted records of the same parent
// table.
package loosefktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/doctor"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// patience is how long a test waits for the database, and for a worker that has the parent
// table locked.
const patience = time.Minute

// Child names the child table and the column of a definition.
type Child struct {
	Table  string // as the definition names it
	Column string
	// Parent is the parent table. It is needed only if definitions for this column name
	// several parents.
	Parent string
}

// Option says how a test makes its rows, and in which databases.
type Option func(*setup)

// In passes the databases of the tables. It is needed if there are several databases, or if
// the schema isn't public. The argument pool of the test isn't used then and may be nil.
func In(dbs loosefk.Databases) Option { return func(s *setup) { s.dbs = dbs } }

// NewParent makes the test create the parent by calling `create`, which returns the
// parent's key. Without NewParent the test inserts a row, with made-up values for columns
// that need one.
func NewParent[K KeyValue](create func(ctx context.Context, db loosefk.DB) (key K, err error)) Option {
	return func(s *setup) {
		s.newParent = func(ctx context.Context, db loosefk.DB) (string, error) {
			key, err := create(ctx, db)
			return keyString(key), err
		}
	}
}

// NewChild makes the test create the child by calling `create` with the parent's key. The
// child has to be one that the definition cleans up. Without NewChild the test inserts a
// row, with made-up values for columns that need one.
func NewChild[K KeyValue](create func(ctx context.Context, db loosefk.DB, parent K) error) Option {
	return func(s *setup) {
		s.newChild = func(ctx context.Context, db loosefk.DB, parent string) error {
			key, err := keyOf[K](parent)
			if err != nil {
				return err
			}
			return create(ctx, db, key)
		}
	}
}

// setup holds what one test works with: its parent table, databases, definitions and
// options.
type setup struct {
	t         testing.TB
	dbs       loosefk.Databases
	defs      loosefk.Definitions // of the parent
	parent    string
	db        *loosefk.Database // of the parent
	key       pg.Key            // likewise
	newParent func(ctx context.Context, db loosefk.DB) (string, error)
	newChild  func(ctx context.Context, db loosefk.DB, parent string) error
}

func newSetup(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions, parent string, opts []Option) *setup {
	t.Helper()
	s := &setup{t: t, parent: parent, dbs: loosefk.Databases{{Name: "test", Pool: pool}}}
	for _, opt := range opts {
		opt(s)
	}
	s.db = s.dbs.Of(parent)
	if s.db == nil || s.db.Pool == nil {
		t.Fatalf("loose foreign keys of %s: the table is in no database: pass a pool, or In(databases)", parent)
	}
	for _, d := range defs {
		if s.dbs.Of(d.Parent) == s.db && s.db.FullName(d.Parent) == s.db.FullName(parent) {
			s.defs = append(s.defs, d)
		}
	}
	if len(s.defs) == 0 {
		t.Fatalf("loose foreign keys of %s: no definition names it as a parent; add one with \"table: %s\" under each child table", parent, parent)
	}
	return s
}

// fatal ends the test if err isn't nil. The text `what` says what the test was doing.
func (s *setup) fatal(err error, what string) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("loose foreign keys of %s: %s: %v", s.parent, what, err)
	}
}

// context returns a context that ends with the test, or after the time `patience`.
func (s *setup) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
	s.t.Cleanup(cancel)
	return ctx
}

// HasLooseForeignKeys tests that deletions from a parent table are recorded and processed.
// Definitions must name the table and fit the database, and all its triggers must exist.
// The test deletes a parent and rolls back: that transaction must see the deleted record.
// Then it deletes a parent and commits: the deleted record must be pending, and processed
// after a worker has run.
func HasLooseForeignKeys(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions, parent string, opts ...Option) {
	t.Helper()
	s := newSetup(t, pool, defs, parent, opts)
	ctx := s.context()
	s.examine(ctx)
	s.lookUpKey(ctx)
	s.rolledBack(ctx)
	id := s.createParent(ctx)
	s.deleteParent(ctx, s.db.Pool, id)
	if n := s.records(ctx, s.db.Pool, id, "status = 1"); n != 1 {
		t.Fatalf("loose foreign keys of %s: deleting %s left %d pending records, want 1", parent, s.is(id), n)
	}
	s.drain(ctx)
	if n := s.records(ctx, s.db.Pool, id, "status = 2"); n != 1 {
		t.Fatalf("loose foreign keys of %s: the record of the deleted row with %s wasn't marked processed", parent, s.is(id))
	}
}

// examine ends the test with the errors that doctor.Examine finds in the database.
func (s *setup) examine(ctx context.Context) {
	s.t.Helper()
	findings, err := doctor.Examine(ctx, s.worker())
	s.fatal(err, "examining the database")
	failed := false
	for _, f := range findings {
		if f.Severity == doctor.SeverityError {
			failed = true
			s.t.Errorf("loose foreign keys of %s: %s; remedy: %s", s.parent, f.Text, f.Remedy)
		}
	}
	if failed {
		s.t.FailNow()
	}
}

func (s *setup) worker() *loosefk.Worker {
	s.t.Helper()
	w, err := loosefk.New(loosefk.Options{Databases: s.dbs, Definitions: s.defs, SecondLook: -1})
	s.fatal(err, "making a worker")
	return w
}

// rolledBack deletes a parent in a transaction, tests that the transaction sees exactly one
// deleted record of this parent, and rolls back.
func (s *setup) rolledBack(ctx context.Context) {
	s.t.Helper()
	tx, err := s.db.Pool.Begin(ctx)
	s.fatal(err, "beginning a transaction")
	defer tx.Rollback(ctx) //nolint:errcheck // the deletion must not be committed
	id, err := s.makeParent(ctx, tx, nil)
	s.fatal(err, "making a parent")
	s.deleteParent(ctx, tx, id)
	if n := s.records(ctx, tx, id, "status = 1"); n != 1 {
		s.t.Fatalf("loose foreign keys of %s: deleting %s recorded it %d times, want once: is the trigger on the table that rows are deleted from?", s.parent, s.is(id), n)
	}
}

// createParent creates a parent, and the rows to which the parent has to refer. It returns the
// parent's key. The rows that it has inserted itself are removed when the test ends.
func (s *setup) createParent(ctx context.Context) string {
	s.t.Helper()
	f := s.factory(s.db)
	id, err := s.makeParent(ctx, s.db.Pool, f)
	s.fatal(err, "making a parent")
	return id
}

func (s *setup) makeParent(ctx context.Context, db loosefk.DB, f *factory) (key string, err error) {
	if s.newParent != nil {
		if key, err = s.newParent(ctx, db); err != nil {
			return "", err
		}
		// Convert the key to the form in which PostgreSQL writes it.
		err = db.QueryRow(ctx, fmt.Sprintf("SELECT CAST($1::text AS %s)::text", s.key.SQLType()), key).Scan(&key)
		return key, err
	}
	if f == nil {
		f = &factory{}
	}
	f.db = db
	row, err := f.insert(ctx, s.db.FullName(s.parent), nil)
	if err != nil {
		return "", fmt.Errorf("%w; say how it is made with NewParent", err)
	}
	return row.text(ctx, db, s.key.Column)
}

// lookUpKey looks up the key of the parent.
func (s *setup) lookUpKey(ctx context.Context) {
	s.t.Helper()
	var err error
	db := pg.New(s.db.Name, s.db.Pool, string(s.db.Schema))
	s.key, err = db.Key(ctx, db.Table(s.parent))
	s.fatal(err, "looking up its key")
}

// is returns the name and value of a key, such as "id 5", for messages.
func (s *setup) is(key string) string { return s.key.Column + " " + key }

// factory returns a factory for rows of a database. It removes the rows when the test ends.
func (s *setup) factory(db *loosefk.Database) *factory {
	f := &factory{db: db.Pool}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), patience)
		defer cancel()
		f.db = db.Pool
		if err := f.remove(ctx); err != nil {
			s.t.Errorf("loose foreign keys of %s: removing made-up rows: %v", s.parent, err)
		}
	})
	return f
}

func (s *setup) deleteParent(ctx context.Context, db loosefk.DB, key string) {
	s.t.Helper()
	tag, err := db.Exec(ctx, "DELETE FROM "+quoted(s.db.FullName(s.parent))+fmt.Sprintf(" WHERE %s = CAST($1::text AS %s)", quote(s.key.Column), s.key.SQLType()), key)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "23503" {
		s.t.Fatalf("loose foreign keys of %s: the parent can't be deleted: the foreign key %s is still there: %v", s.parent, e.ConstraintName, err)
	}
	s.fatal(err, "deleting a parent")
	if tag.RowsAffected() != 1 {
		s.t.Fatalf("loose foreign keys of %s: there is no row with the %s to delete", s.parent, s.is(key))
	}
}

// records counts the deleted records of a parent.
func (s *setup) records(ctx context.Context, db loosefk.DB, key string, condition string) (n int) {
	s.t.Helper()
	column := "primary_key_text"
	if s.key.SQLType() == "bigint" {
		column = "primary_key_value::text"
	}
	err := db.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM %s WHERE fully_qualified_table_name = $1 AND %s = $2 AND %s",
		quoted(s.db.FullName(loosefk.RecordsTable)), column, condition), s.db.FullName(s.parent), key).Scan(&n)
	s.fatal(err, "counting deleted records")
	return n
}

// drain processes the pending deleted records of the parent table.
func (s *setup) drain(ctx context.Context) {
	s.t.Helper()
	_, err := s.worker().Drain(ctx, s.parent, nil)
	s.fatal(err, "cleaning up after it")
}

// CleanedUp tests one definition. It creates a child, deletes the child's parent, and runs
// a worker: then the child must be deleted, lose its reference, or have the new value, as
// the definition says. Before the worker runs, the child must be unchanged; otherwise a
// foreign key or trigger that still exists does the work, and the test fails and names it.
func CleanedUp(t testing.TB, pool *pgxpool.Pool, defs loosefk.Definitions, child Child, opts ...Option) {
	t.Helper()
	d := find(t, defs, child)
	s := newSetup(t, pool, defs, d.Parent, opts)
	c := s.cleanUp(d)
	ctx := s.context()
	s.lookUpKey(ctx)
	parent := s.createParent(ctx)
	if s.newChild != nil || len(c.rows(ctx, parent)) == 0 { // else NewParent has made one
		s.createChild(ctx, c, parent)
	}
	before := c.rows(ctx, parent)
	if len(before) == 0 {
		t.Fatalf("loose foreign key %s: there is no row with %s = %s that the definition would clean up%s: say how one is made with NewChild", d, d.Column, parent, c.wants())
	}
	s.deleteParent(ctx, s.db.Pool, parent)
	if left := c.rows(ctx, parent); len(left) != len(before) {
		t.Fatalf("loose foreign key %s: %d of %d children went with their parent: a foreign key or a trigger is still there and does the work%s",
			d, len(before)-len(left), len(before), c.hardKeys(ctx))
	}
	s.drain(ctx)
	if left := c.rows(ctx, parent); len(left) > 0 {
		t.Fatalf("loose foreign key %s: %d of %d children weren't cleaned up", d, len(left), len(before))
	}
	if d.OnDelete != loosefk.AsyncDelete {
		c.stillThere(ctx, before)
	}
}

// find returns the definition of the child's column. It ends the test if there is none, or if
// definitions for the column name several parents and child.Parent is empty.
func find(t testing.TB, defs loosefk.Definitions, child Child) loosefk.Definition {
	t.Helper()
	var found loosefk.Definitions
	for _, d := range defs {
		if d.Child == child.Table && d.Column == child.Column && (child.Parent == "" || child.Parent == d.Parent) {
			found = append(found, d)
		}
	}
	if len(found) == 0 {
		t.Fatalf("loose foreign key of %s.%s: there is no definition of it; under %s there are %s", child.Table, child.Column, child.Table, of(defs, child.Table))
	}
	if parents := found.Parents(); len(parents) > 1 {
		t.Fatalf("loose foreign key of %s.%s: it refers to %s: say which in Child.Parent", child.Table, child.Column, strings.Join(parents, " and "))
	}
	return found[0]
}

func of(defs loosefk.Definitions, child string) string {
	var list []string
	for _, d := range defs {
		if d.Child == child {
			list = append(list, d.Column)
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

// cleanUp holds a definition under test and what is known of its child table.
type cleanUp struct {
	s     *setup
	def   loosefk.Definition
	db    *loosefk.Database
	key   []string          // primary key of the child, if it has one
	types map[string]string // of the child's columns
}

func (s *setup) cleanUp(d loosefk.Definition) *cleanUp {
	s.t.Helper()
	c := &cleanUp{s: s, def: d, db: s.dbs.Of(d.Child)}
	if c.db == nil || c.db.Pool == nil {
		s.t.Fatalf("loose foreign key %s: table %s is in no database: pass a pool, or In(databases)", d, d.Child)
	}
	s.fatal(loosefk.Validate(s.context(), s.dbs, loosefk.Definitions{d}), "holding the definition against the database")
	var err error
	c.key, err = primaryKey(s.context(), c.db.Pool, c.db.FullName(d.Child))
	s.fatal(err, "looking up the key of "+d.Child)
	columns, err := describe(s.context(), c.db.Pool, c.db.FullName(d.Child))
	s.fatal(err, "looking up the columns of "+d.Child)
	c.types = map[string]string{}
	for _, column := range columns {
		c.types[column.Name] = column.Type
	}
	return c
}

func (s *setup) createChild(ctx context.Context, c *cleanUp, parent string) {
	s.t.Helper()
	if s.newChild != nil {
		s.fatal(s.newChild(ctx, c.db.Pool, parent), "making a child")
		return
	}
	values := map[string]*string{c.def.Column: &parent}
	for _, cond := range c.def.Conditions {
		values[cond.Column] = cond.Values[0]
	}
	_, err := s.factory(c.db).insert(ctx, c.db.FullName(c.def.Child), values)
	if err != nil {
		err = fmt.Errorf("%w; say how it is made with NewChild", err)
	}
	s.fatal(err, "making a child")
}

// where returns the SQL condition for the children of parent $1 that the definition cleans
// up. It appends the condition's values to args.
func (c *cleanUp) where(args *[]any) string {
	arg := func(column string, value *string) string {
		if value == nil {
			return "NULL"
		}
		*args = append(*args, *value)
		return fmt.Sprintf("CAST($%d::text AS %s)", len(*args), c.types[column])
	}
	all := []string{fmt.Sprintf("%s = CAST($1::text AS %s)", quote(c.def.Column), c.s.key.SQLType())}
	for _, cond := range c.def.Conditions {
		var any []string
		for _, v := range cond.Values {
			any = append(any, fmt.Sprintf("%s IS NOT DISTINCT FROM %s", quote(cond.Column), arg(cond.Column, v)))
		}
		all = append(all, "("+strings.Join(any, " OR ")+")")
	}
	if c.def.OnDelete == loosefk.UpdateColumnTo {
		all = append(all, fmt.Sprintf("%s IS DISTINCT FROM %s", quote(c.def.TargetColumn), arg(c.def.TargetColumn, c.def.TargetValue)))
	}
	return strings.Join(all, " AND ")
}

// rows returns the primary keys, as text, of the children that the definition cleans up.
// For a table without a primary key it returns "" for each child.
func (c *cleanUp) rows(ctx context.Context, parent string) []string {
	c.s.t.Helper()
	args := []any{parent}
	where := c.where(&args)
	rows, err := c.db.Pool.Query(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY 1", keyText(c.key), quoted(c.db.FullName(c.def.Child)), where), args...)
	c.s.fatal(err, "looking for children")
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	c.s.fatal(err, "looking for children")
	return list
}

// stillThere ends the test if the worker deleted children that it should have updated.
// `before` contains the children's primary keys from before the run.
func (c *cleanUp) stillThere(ctx context.Context, before []string) {
	c.s.t.Helper()
	// If the primary key contains the updated column, the old key no longer finds the row,
	// so nothing can be tested.
	if len(c.key) == 0 || slices.Contains(c.key, c.def.Column) || slices.Contains(c.key, c.def.TargetColumn) {
		return
	}
	var n int
	err := c.db.Pool.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM %s WHERE %s = ANY ($1::text[])",
		quoted(c.db.FullName(c.def.Child)), keyText(c.key)), before).Scan(&n)
	c.s.fatal(err, "looking for children")
	if n != len(before) {
		c.s.t.Fatalf("loose foreign key %s: %d of %d children are gone instead of changed", c.def, len(before)-n, len(before))
	}
}

// wants returns a text that describes a child which the definition would clean up.
func (c *cleanUp) wants() string {
	var all []string
	for _, cond := range c.def.Conditions {
		all = append(all, cond.Column+" as in conditions")
	}
	if c.def.OnDelete == loosefk.UpdateColumnTo {
		all = append(all, c.def.TargetColumn+" other than target_value")
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// hardKeys returns advice to drop the foreign keys from the child to the parent, with their
// names, or "" if there are none.
func (c *cleanUp) hardKeys(ctx context.Context) string {
	var names *string
	err := c.db.Pool.QueryRow(ctx, `SELECT string_agg(conname, ', ') FROM pg_constraint
		WHERE contype = 'f' AND conrelid = to_regclass($1) AND confrelid = to_regclass($2)`,
		quoted(c.db.FullName(c.def.Child)), quoted(c.s.db.FullName(c.s.parent))).Scan(&names)
	if err != nil || names == nil {
		return ""
	}
	return ": drop " + *names
}
