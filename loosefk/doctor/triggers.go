package doctor

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// trigger describes a trigger that records deletions from a table. A trigger whose field
// `name` is nil says that the table in the field `on` has no such trigger.
type trigger struct {
	on       pg.Table
	root     bool // the trigger is on the parent itself, not on one of its partitions
	parent   bool // the table is partitioned or a partition
	name     *string
	enabled  string // pg_trigger.tgenabled
	override bool   // the trigger records the table's name from arg, otherwise the name of its own table
	arg      string
	column   string // the column whose values the trigger records
	fits     bool   // the trigger fires after a delete, once per statement, with the transition table
}

// triggersOn lists the triggers that record deletions from a table and its partitions. For
// a table or partition without such a trigger, the list has one element whose name is nil.
func triggersOn(ctx context.Context, d *loosefk.Database, parent pg.Table) ([]trigger, error) {
	rows, err := in(d).Catalog().Query(ctx, `
		SELECT n.nspname, c.relname, c.oid = to_regclass($1), c.relkind = 'p' OR c.relispartition,
			t.tgname, COALESCE(t.tgenabled::text, ''), COALESCE(t.tgfoid = to_regprocedure($3), false),
			COALESCE(t.tgargs, ''),
			COALESCE(t.tgtype & 75 = 8 AND t.tgoldtable = 'old_table' AND t.tgqual IS NULL, false)
		FROM (
			SELECT to_regclass($1)::oid AS oid
			UNION
			SELECT relid FROM pg_partition_tree(to_regclass($1))) w
		JOIN pg_class c ON c.oid = w.oid AND c.relkind IN ('r', 'p')
		JOIN pg_namespace n ON n.oid = c.relnamespace
		LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgfoid IN (to_regprocedure($2), to_regprocedure($3))
		ORDER BY 3 DESC, 1, 2, 5`, parent.Quoted(), in(d).Function(installed.TrackFunction), in(d).Function(installed.OverrideFunction))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t trigger, err error) {
		var args []byte
		err = row.Scan(&t.on.Schema, &t.on.Name, &t.root, &t.parent, &t.name, &t.enabled, &t.override, &args, &t.fits)
		if t.override {
			first, _, _ := bytes.Cut(args, []byte{0})
			t.arg = string(first)
		}
		t.column = pg.RecordedColumn(args, t.override)
		return t, err
	})
}

// triggers reports what is wrong with the triggers of a parent and its partitions.
func (e *examination) triggers(ctx context.Context, db *loosefk.Database, parent pg.Table) error {
	list, err := triggersOn(ctx, db, parent)
	if err != nil {
		return err
	}
	key := e.tables[db][parent].Key
	track := "loosefk track " + in(db).Plain(parent)
	good := map[pg.Table]string{} // the valid trigger of each table
	var bare []trigger
	for _, t := range list {
		if t.name == nil {
			bare = append(bare, t)
			continue
		}
		switch {
		case !t.fits:
			e.add(SeverityError, db, t.on, e.replace(t, track), "trigger %s doesn't run once after each delete: what is deleted from %s isn't recorded as it should be", *t.name, t.on)
		case key != "" && t.column != key:
			e.add(SeverityError, db, t.on, e.replace(t, track), "trigger %s records the column %s of %s, whose key is %s", *t.name, t.column, t.on, key)
		case t.override && t.arg != parent.String():
			e.add(SeverityError, db, t.on, e.replace(t, track), "trigger %s records the name %s for what is deleted from %s: no definition of %s is applied", *t.name, t.arg, t.on, parent)
		case !t.override && t.parent && !t.root:
			e.add(SeverityError, db, t.on, e.replace(t, track), "trigger %s on a partition records the name %s, not %s: no definition of %s is applied", *t.name, t.on, parent, parent)
		case !t.override && t.parent:
			e.add(SeverityWarning, db, t.on, e.replace(t, track), "trigger %s on a partitioned table is the one for tables that aren't", *t.name)
		}
		if t.enabled == "D" || t.enabled == "R" {
			e.add(SeverityError, db, t.on, fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s", t.on.Quoted(), pg.Quote(*t.name)),
				"trigger %s is disabled: what is deleted from %s isn't recorded", *t.name, t.on)
		}
		if other, ok := good[t.on]; ok {
			extra := *t.name
			if extra == installed.TriggerName(t.on.Name) {
				extra = other
			}
			e.add(SeverityWarning, db, t.on, dropTrigger(t.on, extra), "triggers %s and %s record each deletion twice", other, *t.name)
		}
		good[t.on] = *t.name
	}
	e.bare(db, parent, bare, track)
	if len(good) == 0 {
		return nil
	}
	var changes bool
	err = in(db).Catalog().QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgfoid = to_regprocedure($2) AND tgenabled IN ('O', 'A'))`,
		parent.Quoted(), in(db).Function(installed.KeyChangeFunction)).Scan(&changes)
	if err == nil && !changes {
		e.add(SeverityWarning, db, parent, track, "keys of %s that an UPDATE changes aren't recorded: the children of the old key stay behind", parent)
	}
	return err
}

// bare reports that a parent, or some of its partitions, have no trigger.
func (e *examination) bare(db *loosefk.Database, parent pg.Table, bare []trigger, track string) {
	switch {
	case len(bare) == 0:
	case bare[0].root:
		e.add(SeverityError, db, parent, track, "%s has no trigger: what is deleted from it isn't recorded, and the worker skips the table", parent)
	default:
		e.add(SeverityError, db, parent, track, "%d partitions of %s have no trigger: deletes that name one of them (%s) aren't recorded", len(bare), parent, bare[0].on)
	}
}

// replace returns the remedy for a wrong trigger: the command "loosefk track" if the
// trigger has the usual name, since the command replaces such a trigger, else the SQL that
// drops the trigger.
func (e *examination) replace(t trigger, track string) string {
	if *t.name == installed.TriggerName(t.on.Name) {
		return track
	}
	return dropTrigger(t.on, *t.name)
}

func dropTrigger(on pg.Table, name string) string {
	return fmt.Sprintf("DROP TRIGGER %s ON %s", pg.Quote(name), on.Quoted())
}

// strayTriggers reports tables that have a trigger although no definition names them as a
// parent: no worker processes their deleted records.
func (e *examination) strayTriggers(ctx context.Context, db *loosefk.Database) error {
	rows, err := in(db).Catalog().Query(ctx, `
		SELECT DISTINCT n.nspname, c.relname
		FROM pg_trigger t
		JOIN pg_class c ON c.oid = COALESCE((SELECT relid FROM pg_partition_ancestors(t.tgrelid) a (relid)
			JOIN pg_class k ON k.oid = a.relid WHERE NOT k.relispartition), t.tgrelid)
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE t.tgfoid IN (to_regprocedure($1), to_regprocedure($2)) AND c.relpersistence <> 't' ORDER BY 1, 2`,
		in(db).Function(installed.TrackFunction), in(db).Function(installed.OverrideFunction))
	if err != nil {
		return err
	}
	parents := e.named(db)
	var t pg.Table
	_, err = pgx.ForEachRow(rows, []any{&t.Schema, &t.Name}, func() error {
		if !slices.Contains(parents, t) {
			e.add(SeverityWarning, db, t, "loosefk untrack "+in(db).Plain(t),
				"deletions from %s are recorded, but no definition names it as a parent: its records pile up", t)
		}
		return nil
	})
	return err
}

// named returns the parent tables that definitions name in a database, including
// definitions that don't fit the database.
func (e *examination) named(db *loosefk.Database) []pg.Table {
	var list []pg.Table
	for _, name := range e.opt.Definitions.Parents() {
		if e.opt.Databases.Of(name) == db {
			list = append(list, in(db).Table(name))
		}
	}
	return list
}
