package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	SeverityError   Severity = "error"   // something doesn't work, or records or rows are lost
	SeverityWarning Severity = "warning" // it works, but slowly or not for long
	SeverityInfo    Severity = "info"    // nothing needs to be done now
)

// Finding is something that Doctor found.
type Finding struct {
	Severity Severity `json:"severity"`
	Database string   `json:"database,omitempty"`
	Table    string   `json:"table,omitempty"` // with its schema
	Text     string   `json:"text"`
	// Remedy is a command of the tool, which begins with "loosefk ", or SQL to run in that
	// database. It removes the finding, unless Text says what else there is to do. "":
	// there is only what Text says.
	Remedy string `json:"remedy,omitempty"`
}

// Limits up to which a state is healthy.
const (
	doctorPartitions = 4                // more attached partitions mean that records have been pending for days
	doctorOverdue    = 24 * time.Hour   // age of work that each run of a worker should have done
	doctorPending    = time.Hour        // age of a record, in addition to the time of the second look
	doctorPatience   = 10 * time.Second // time for the search for orphans, for each definition
	doctorParents    = 1000             // number of parents to examine for each definition
)

// examination is one run of Doctor.
type examination struct {
	opt    Options
	rs     references // those whose tables and columns exist
	tables tables
	list   []Finding
}

func (e *examination) add(s Severity, db *Database, table tableName, remedy, format string, args ...any) {
	e.list = append(e.list, Finding{s, db.Name, table.String(), fmt.Sprintf(format, args...), remedy})
}

// Doctor looks for states that keep loose foreign keys from working, now or soon. It
// returns findings with a remedy each, in the order in which the remedies should be
// applied. It changes nothing. Errors are those of a database.
func (w *Worker) Doctor(ctx context.Context) ([]Finding, error) {
	e := &examination{opt: w.opt}
	if err := e.definitions(ctx); err != nil {
		return nil, err
	}
	for i := range w.opt.Databases {
		if err := e.session(ctx, &w.opt.Databases[i]); err != nil {
			return nil, fmt.Errorf("examining database %s: %w", w.opt.Databases[i].Name, err)
		}
	}
	for _, db := range w.parentDatabases() {
		if err := e.parents(ctx, db); err != nil {
			return nil, fmt.Errorf("examining database %s: %w", db.Name, err)
		}
	}
	for i := range w.opt.Databases {
		if err := e.children(ctx, &w.opt.Databases[i]); err != nil {
			return nil, fmt.Errorf("examining database %s: %w", w.opt.Databases[i].Name, err)
		}
	}
	return e.list, nil
}

// definitions finds mismatches between definitions and databases. Later checks use only
// definitions that match.
func (e *examination) definitions(ctx context.Context) error {
	rs, found, err := lookUp(ctx, e.opt.Databases, e.opt.Definitions)
	problems, ok := errors.AsType[Problems](err)
	if err != nil && !ok {
		return err
	}
	e.tables = found
	unfit, err := rs.unfit(ctx, found)
	if err != nil {
		return err
	}
	problems = append(problems, unfit...)
	problems = append(problems, rs.duplicates()...)
	partitions, err := rs.parentPartitions(ctx)
	if err != nil {
		return err
	}
	problems = append(problems, partitions...)
	e.rs = slices.DeleteFunc(rs, func(r reference) bool { return len(r.complete(found)) > 0 })
	for _, p := range problems {
		f := Finding{Severity: SeverityError, Text: p.Error()}
		if i := slices.IndexFunc(e.opt.Definitions, func(d Definition) bool { return p.Line > 0 && d.File == p.File && d.Line == p.Line }); i >= 0 {
			f.Table = e.opt.Definitions[i].Child
			if db := e.opt.Databases.Of(f.Table); db != nil {
				f.Database, f.Table = db.Name, db.table(f.Table).String()
			}
		}
		e.list = append(e.list, f)
	}
	for _, r := range e.rs {
		e.indexes(r)
	}
	return nil
}

// indexes finds missing indexes that a definition needs.
func (e *examination) indexes(r reference) {
	parent, child := e.tables[r.parentDB][r.parent], e.tables[r.childDB][r.child]
	if !parent.hasKey() {
		e.add(SeverityError, r.parentDB, r.parent, createIndex(parent, r.parent, true, parent.key),
			"table %s has no unique index on %s alone: each clean-up would read it whole to see which parents exist", r.parent, parent.key)
	}
	switch both := []string{r.Column, r.TargetColumn}; {
	case r.OnDelete == UpdateColumnTo && !child.indexed(both...) && !child.indexed(r.Column):
		e.add(SeverityError, r.childDB, r.child, createIndex(child, r.child, false, both...),
			"column %s of %s has no index that begins with it: each clean-up would read the whole table", r.Column, r.child)
	case r.OnDelete == UpdateColumnTo && !child.indexed(both...):
		e.add(SeverityWarning, r.childDB, r.child, createIndex(child, r.child, false, both...),
			"%s has no index that begins with (%s, %s): each query would read the rows that are updated already", r.child, r.Column, r.TargetColumn)
	case !child.indexed(r.Column):
		e.add(SeverityError, r.childDB, r.child, createIndex(child, r.child, false, r.Column),
			"column %s of %s has no index that begins with it: each clean-up would read the whole table", r.Column, r.child)
	}
}

// createIndex returns the SQL that creates an index. On a partitioned table it blocks
// writers, which can't be avoided.
func createIndex(t table, name tableName, unique bool, columns ...string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = quote(c)
	}
	what := "INDEX"
	if unique {
		what = "UNIQUE INDEX"
	}
	if t.kind != "p" {
		what += " CONCURRENTLY"
	}
	return fmt.Sprintf("CREATE %s ON %s (%s)", what, name.quoted(), strings.Join(quoted, ", "))
}

// parents examines a database in which parents live.
func (e *examination) parents(ctx context.Context, db *Database) error {
	installed, err := db.Installed(ctx)
	if err != nil {
		return err
	}
	records := db.table(RecordsTable)
	if !installed {
		e.add(SeverityError, db, records, "loosefk install "+db.Name, "there is no table of deleted records: nothing is recorded")
	}
	for _, parent := range e.rs.parents(db) {
		if root, err := db.root(ctx, parent); err != nil {
			return err
		} else if root != parent {
			continue // reported already; its trigger is that of its partitioned table
		}
		if err := e.triggers(ctx, db, parent); err != nil {
			return err
		}
	}
	if !installed {
		return nil
	}
	// Rights are checked first, because other checks may fail without them.
	checks := []func(context.Context, *Database) error{
		e.workerRights, e.functions, e.openTables, e.strayTriggers, e.partitions, e.detached, e.failed, e.pending,
	}
	for _, check := range checks {
		err := check(ctx, db)
		if err != nil && !isState(err, stateNoPrivilege) {
			return err
		}
		if err != nil {
			e.add(SeverityError, db, records, "", "a part of the examination failed for want of rights: %v", err)
		}
	}
	return nil
}

// children examines a database as one in which children live.
func (e *examination) children(ctx context.Context, db *Database) error {
	var here references
	for _, r := range e.rs {
		if r.childDB == db {
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

// orphans looks at the first parents of a definition's children, for a moment.
func (e *examination) orphans(ctx context.Context, r reference) error {
	if installed, err := r.parentDB.Installed(ctx); err != nil || !installed {
		return err
	}
	if !e.tables[r.childDB][r.child].indexed(r.Column) {
		return nil // it would take too long
	}
	short, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	found, err := r.audit(short, AuditOptions{Page: doctorParents, most: doctorParents, rows: 1})
	switch {
	case isState(err, stateNoPrivilege): // reported already
		return nil
	case err != nil && (short.Err() == nil || ctx.Err() != nil):
		return err
	}
	if found.Parents > 0 {
		e.add(SeverityWarning, r.childDB, r.child, "loosefk audit --repair "+r.Child,
			"rows of %s refer to parents of %s that don't exist, and nothing is going to clean them up: %d such parents among the first %d (%s = %s is one)",
			r.child, r.parent, found.Parents, doctorParents, r.Column, found.examples()[0])
	}
	return nil
}
