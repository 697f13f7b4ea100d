package loosefk

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/internal/installed"
)

// Names of what is installed.
const (
	RecordsTable  = installed.RecordsTable
	DetachedTable = installed.DetachedTable
)

// SchemaVersion is the version of the tables and functions that Install makes. In a
// database, the SQL function loose_foreign_keys_version returns the installed version.
const SchemaVersion = installed.Version

// Schema is the PostgreSQL schema that contains the table of deleted records, and the
// tables that are named without a schema; "" stands for DefaultSchema. A table of another
// schema is named as "schema.name", in calls as in definitions. Each method that changes a
// database, such as Install, has a counterpart that returns the SQL of the change, such as
// InstallSQL, for any migration tool. The SQL can be run repeatedly.
type Schema string

// DefaultSchema is the schema that PostgreSQL creates tables in by default.
const DefaultSchema Schema = "public"

func (s Schema) in() installed.Schema { return installed.Schema(cmp.Or(s, DefaultSchema)) }

func run(ctx context.Context, db DB, doing, sql string) error {
	// Send one statement per call: some connection poolers fail if a call contains several
	// statements.
	for _, statement := range strings.Split(sql, "\n\n") {
		if _, err := db.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	return nil
}

// Install creates the table of deleted records with its first partition and its default
// partition, the table of detached partitions, and the trigger functions. It upgrades the
// tables and functions of an earlier version. The current user needs only the right to
// create objects in the schema. If the table of deleted records exists and is in use, set
// lock_timeout before calling Install: its statements wait for open transactions that have
// deleted parents, and all other clients that delete parents wait for Install. Install fails
// if one of the objects exists and belongs to a role that the current user can't trust.
func (s Schema) Install(ctx context.Context, db DB) error {
	return run(ctx, db, "installing loose foreign keys", s.InstallSQL())
}

// InstallSQL returns the SQL that Install runs. It is a single statement, so that other
// roles can't execute a new function before the statement revokes their right EXECUTE.
func (s Schema) InstallSQL() string { return s.in().InstallSQL() }

// TrackRecordDeletions puts triggers on a parent table that isn't partitioned. From then on
// the keys of deleted rows are recorded, and the old keys of rows whose key an UPDATE
// changes. The table needs a key of a single column of an integer type, uuid, text or
// varchar: its column id if that is unique, else its primary key. TrackRecordDeletions
// refuses a partitioned table; use TrackRecordDeletionsOverrideTableName. It waits for open
// transactions that write to the table, so set lock_timeout as for Install.
func (s Schema) TrackRecordDeletions(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "tracking deletions from "+table, s.TrackRecordDeletionsSQL(table))
}

// TrackRecordDeletionsSQL returns the statement that TrackRecordDeletions runs.
func (s Schema) TrackRecordDeletionsSQL(table string) string { return s.in().TrackSQL(table, false) }

// TrackRecordDeletionsOverrideTableName puts triggers on a partitioned parent table and on
// all its partitions. All these triggers record the name of the partitioned table, whether
// a DELETE names the table or a partition. Call it again after partitions were added:
// otherwise a DELETE that names a new partition isn't recorded.
func (s Schema) TrackRecordDeletionsOverrideTableName(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "tracking deletions from "+table, s.TrackRecordDeletionsOverrideTableNameSQL(table))
}

// TrackRecordDeletionsOverrideTableNameSQL returns the statement that
// TrackRecordDeletionsOverrideTableName runs.
func (s Schema) TrackRecordDeletionsOverrideTableNameSQL(table string) string {
	return s.in().TrackSQL(table, true)
}

// UntrackRecordDeletions drops the triggers that record deletions from a table and from its
// partitions. Pending deleted records stay; RemoveDeletedRecords removes them. If the table
// doesn't exist, it does nothing.
func (s Schema) UntrackRecordDeletions(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "no longer tracking deletions from "+table, s.UntrackRecordDeletionsSQL(table))
}

// UntrackRecordDeletionsSQL returns the statement that UntrackRecordDeletions runs.
func (s Schema) UntrackRecordDeletionsSQL(table string) string { return s.in().UntrackSQL(table) }

// leftoversBatch is how many deleted records RemoveDeletedRecords removes with one statement.
const leftoversBatch = 1000

// RemoveDeletedRecords removes the pending deleted records of a table, in batches, after
// the table's last loose foreign key was removed. It returns their number. If db is a
// transaction, all batches are part of it.
func (s Schema) RemoveDeletedRecords(ctx context.Context, db DB, table string) (int64, error) {
	var removed int64
	for {
		tag, err := db.Exec(ctx, s.in().Expand(`
			DELETE FROM {records} WHERE (partition, id) IN (
				SELECT partition, id FROM {records}
				WHERE fully_qualified_table_name = $1 AND status = 1 LIMIT $2)`),
			s.in().Table(table).String(), leftoversBatch)
		if err != nil {
			return removed, fmt.Errorf("removing leftover records of %s: %w", table, err)
		}
		if removed += tag.RowsAffected(); tag.RowsAffected() == 0 {
			return removed, nil
		}
	}
}

// RemoveDeletedRecordsSQL returns a statement that does the same as RemoveDeletedRecords.
// The statement commits after each batch, so run it outside a transaction.
func (s Schema) RemoveDeletedRecordsSQL(table string) string { return s.in().RemoveRecordsSQL(table) }

// GuardInserts puts triggers on a child table that check its column as a foreign key does.
// An INSERT, or an UPDATE of the column, fails with SQLSTATE 23503 if the parent doesn't
// exist. While another transaction is deleting the parent, the INSERT or UPDATE waits. Child
// and parent must be in this database. Without these triggers the application has to look
// up the parent itself, and the parent may be deleted between the lookup and the insert.
func (s Schema) GuardInserts(ctx context.Context, db DB, child, column, parent string) error {
	return run(ctx, db, "guarding inserts into "+child, s.GuardInsertsSQL(child, column, parent))
}

// GuardInsertsSQL returns the statement that GuardInserts runs.
func (s Schema) GuardInsertsSQL(child, column, parent string) string {
	return s.in().GuardSQL(child, column, parent)
}

// UnguardInserts drops the triggers that GuardInserts has created.
func (s Schema) UnguardInserts(ctx context.Context, db DB, child, column string) error {
	return run(ctx, db, "no longer guarding inserts into "+child, s.UnguardInsertsSQL(child, column))
}

// UnguardInsertsSQL returns the statement that UnguardInserts runs.
func (s Schema) UnguardInsertsSQL(child, column string) string {
	return s.in().UnguardSQL(child, column)
}
