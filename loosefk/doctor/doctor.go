// Package doctor finds reasons why loose foreign keys don't work in a database. Examine
// checks the installed functions, rights, indexes, triggers and partitions. Audit looks for
// orphans: children whose parent doesn't exist.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	SeverityError   Severity = "error"   // something doesn't work, or records or rows are lost
	SeverityWarning Severity = "warning" // it works, but slowly or not for long
	SeverityInfo    Severity = "info"    // nothing needs to be done now
)

// Finding is something that Examine found.
type Finding struct {
	Severity Severity `json:"severity"`
	Database string   `json:"database,omitempty"`
	Table    string   `json:"table,omitempty"` // the table's name with its schema
	Text     string   `json:"text"`
	// Remedy is a command that begins with "loosefk ", or SQL to run in Database. It
	// removes the finding, unless Text names further steps. If Remedy is empty, only Text
	// says what to do.
	Remedy string `json:"remedy,omitempty"`
}

// The limits of Examine. The first three are the values above which Examine reports a
// finding; the last two bound its search for orphans.
const (
	doctorPartitions = 4                // number of attached partitions; more mean that records have been pending for days
	doctorOverdue    = 24 * time.Hour   // age of work that every run of a worker should have finished
	doctorPending    = time.Hour        // age of a pending record, in addition to the time of its second look
	doctorPatience   = 10 * time.Second // time for the search for orphans, for each definition
	doctorParents    = 1000             // number of parents to examine for each definition
)

// reference is a definition with its resolved tables.
type reference struct{ loosefk.Reference }

type references []reference

// parents returns the parent tables in a database, in the order of their first definition.
func (rs references) parents(db *loosefk.Database) []pg.Table {
	var list []pg.Table
	for _, r := range rs {
		if r.ParentDatabase == db && !slices.Contains(list, r.ParentTable) {
			list = append(list, r.ParentTable)
		}
	}
	return list
}

func in(d *loosefk.Database) pg.Database { return pg.New(d.Name, d.Pool, string(d.Schema)) }

// examination is one run of Examine.
type examination struct {
	opt    loosefk.Options
	rs     references // the definitions whose tables and columns exist
	tables map[*loosefk.Database]map[pg.Table]pg.TableInfo
	list   []Finding
}

func (e *examination) add(s Severity, db *loosefk.Database, table pg.Table, remedy, format string, args ...any) {
	e.list = append(e.list, Finding{s, db.Name, table.String(), fmt.Sprintf(format, args...), remedy})
}

// Examine looks for everything that keeps loose foreign keys from working, now or soon. It
// returns its findings in the order in which their remedies should be applied. It changes
// nothing. It returns an error only if a database fails to answer.
func Examine(ctx context.Context, w *loosefk.Worker) ([]Finding, error) {
	e := &examination{opt: w.Options()}
	if err := e.definitions(ctx); err != nil {
		return nil, err
	}
	dbs := e.opt.Databases
	for i := range dbs {
		if err := e.session(ctx, &dbs[i]); err != nil {
			return nil, fmt.Errorf("examining database %s: %w", dbs[i].Name, err)
		}
	}
	for i := range dbs {
		if len(e.named(&dbs[i])) == 0 {
			continue
		}
		if err := e.parents(ctx, &dbs[i]); err != nil {
			return nil, fmt.Errorf("examining database %s: %w", dbs[i].Name, err)
		}
	}
	for i := range dbs {
		if err := e.children(ctx, &dbs[i]); err != nil {
			return nil, fmt.Errorf("examining database %s: %w", dbs[i].Name, err)
		}
	}
	return e.list, nil
}

// definitions reports definitions that don't fit the databases. All later checks leave
// these definitions out.
func (e *examination) definitions(ctx context.Context) error {
	rs, problems, err := loosefk.Resolve(ctx, e.opt.Databases, e.opt.Definitions)
	if err != nil {
		return err
	}
	for _, p := range problems {
		f := Finding{Severity: SeverityError, Text: p.Error()}
		if i := slices.IndexFunc(e.opt.Definitions, func(d loosefk.Definition) bool { return p.Line > 0 && d.File == p.File && d.Line == p.Line }); i >= 0 {
			f.Table = e.opt.Definitions[i].Child
			if db := e.opt.Databases.Of(f.Table); db != nil {
				f.Database, f.Table = db.Name, in(db).Table(f.Table).String()
			}
		}
		e.list = append(e.list, f)
	}
	wanted := map[*loosefk.Database][]pg.Table{}
	for _, r := range rs {
		e.rs = append(e.rs, reference{r})
		wanted[r.ParentDatabase] = append(wanted[r.ParentDatabase], r.ParentTable)
		wanted[r.ChildDatabase] = append(wanted[r.ChildDatabase], r.ChildTable)
	}
	e.tables = map[*loosefk.Database]map[pg.Table]pg.TableInfo{}
	for db, names := range wanted {
		if e.tables[db], err = pg.Describe(ctx, in(db).Catalog(), names); err != nil {
			return fmt.Errorf("looking up the tables of database %s: %w", db.Name, err)
		}
	}
	for _, r := range e.rs {
		e.indexes(r)
	}
	return nil
}

// indexes reports missing indexes that a definition needs.
func (e *examination) indexes(r reference) {
	parent, child := e.tables[r.ParentDatabase][r.ParentTable], e.tables[r.ChildDatabase][r.ChildTable]
	if !parent.HasKey() {
		e.add(SeverityError, r.ParentDatabase, r.ParentTable, createIndex(parent, r.ParentTable, true, parent.Key),
			"table %s has no unique index on %s alone: each clean-up would read it whole to see which parents exist", r.ParentTable, parent.Key)
	}
	switch both := []string{r.Column, r.TargetColumn}; {
	case r.OnDelete == loosefk.UpdateColumnTo && !child.Indexed(both...) && !child.Indexed(r.Column):
		e.add(SeverityError, r.ChildDatabase, r.ChildTable, createIndex(child, r.ChildTable, false, both...),
			"column %s of %s has no index that begins with it: each clean-up would read the whole table", r.Column, r.ChildTable)
	case r.OnDelete == loosefk.UpdateColumnTo && !child.Indexed(both...):
		e.add(SeverityWarning, r.ChildDatabase, r.ChildTable, createIndex(child, r.ChildTable, false, both...),
			"%s has no index that begins with (%s, %s): each query would read the rows that are updated already", r.ChildTable, r.Column, r.TargetColumn)
	case !child.Indexed(r.Column):
		e.add(SeverityError, r.ChildDatabase, r.ChildTable, createIndex(child, r.ChildTable, false, r.Column),
			"column %s of %s has no index that begins with it: each clean-up would read the whole table", r.Column, r.ChildTable)
	}
}

// createIndex returns the SQL that creates an index. On a partitioned table the statement
// blocks writers, because PostgreSQL can't create an index on such a table concurrently.
func createIndex(t pg.TableInfo, name pg.Table, unique bool, columns ...string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = pg.Quote(c)
	}
	what := "INDEX"
	if unique {
		what = "UNIQUE INDEX"
	}
	if t.Kind != "p" {
		what += " CONCURRENTLY"
	}
	return fmt.Sprintf("CREATE %s ON %s (%s)", what, name.Quoted(), strings.Join(quoted, ", "))
}

// parents examines a database that contains parent tables.
func (e *examination) parents(ctx context.Context, db *loosefk.Database) error {
	installed, err := db.Installed(ctx)
	if err != nil {
		return err
	}
	records := in(db).Table(pg.RecordsTable)
	if !installed {
		e.add(SeverityError, db, records, "loosefk install "+db.Name, "there is no table of deleted records: nothing is recorded")
	}
	for _, parent := range e.rs.parents(db) {
		if root, err := in(db).Root(ctx, parent); err != nil {
			return err
		} else if root != parent {
			continue // definitions reported it; the partitioned table has the trigger
		}
		if err := e.triggers(ctx, db, parent); err != nil {
			return err
		}
	}
	if !installed {
		return nil
	}
	// Check rights first, because other checks may fail without them.
	checks := []func(context.Context, *loosefk.Database) error{
		e.workerRights, e.functions, e.openTables, e.strayTriggers, e.partitions, e.detached, e.failed, e.pending,
	}
	for _, check := range checks {
		err := check(ctx, db)
		if err != nil && !pg.IsState(err, pg.StateNoPrivilege) {
			return err
		}
		if err != nil {
			e.add(SeverityError, db, records, "", "a part of the examination failed because a right is missing: %v", err)
		}
	}
	return nil
}

// children examines the child tables in a database.
func (e *examination) children(ctx context.Context, db *loosefk.Database) error {
	var here references
	for _, r := range e.rs {
		if r.ChildDatabase == db {
			here = append(here, r)
		}
	}
	if err := e.tableRights(ctx, db); err != nil {
		return err
	}
	if err := e.superuser(ctx, db); err != nil {
		return err
	}
	if err := e.hardKeys(ctx, db, here); err != nil {
		return err
	}
	for _, r := range here {
		if err := e.orphans(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// orphans looks for orphans of a definition, for at most doctorPatience. It examines the first
// doctorParents distinct values of the child's column, and reports those for which no parent
// exists and no deleted record is pending. Without an index on the column it does nothing.
func (e *examination) orphans(ctx context.Context, r reference) error {
	if installed, err := r.ParentDatabase.Installed(ctx); err != nil || !installed {
		return err
	}
	if !e.tables[r.ChildDatabase][r.ChildTable].Indexed(r.Column) {
		return nil // without an index the search would take too long
	}
	short, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	found, err := r.audit(short, AuditOptions{Page: doctorParents, most: doctorParents, rows: 1})
	switch {
	case pg.IsState(err, pg.StateNoPrivilege): // tableRights reported it
		return nil
	case err != nil && (short.Err() == nil || ctx.Err() != nil):
		return err
	}
	if found.Parents > 0 {
		e.add(SeverityWarning, r.ChildDatabase, r.ChildTable, "loosefk audit --repair "+r.Child,
			"rows of %s refer to parents of %s that don't exist, and nothing is going to clean them up: %d such parents among the first %d (%s = %s is one)",
			r.ChildTable, r.ParentTable, found.Parents, doctorParents, r.Column, found.examples()[0])
	}
	return nil
}
