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

// SchemaVersion is the version of what Install makes. In a database the function
// loose_foreign_keys_version returns the version; version 1 has no such function.
const SchemaVersion = installed.Version

// Schema is the schema of the table of deleted records, and of tables that are named
// without a schema; "" stands for DefaultSchema. A table of another schema is named as
// "schema.name", here as in definitions. The methods change a database, or return the SQL
// that does, for any migration tool. The SQL can be run repeatedly.
type Schema string

// DefaultSchema is the schema that PostgreSQL creates tables in by default.
const DefaultSchema Schema = "public"

func (s Schema) in() installed.Schema { return installed.Schema(cmp.Or(s, DefaultSchema)) }

func run(ctx context.Context, db DB, doing, sql string) error {
	// Send one statement per call: a statement with parameters must be the only one of its
	// call, and some connection poolers fail if a call has several.
	for _, statement := range strings.Split(sql, "\n\n") {
		if _, err := db.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
	}
	return nil
}

// Install makes the table of deleted records with its first partition and its default
// partition, the table of detached partitions, and the functions of the triggers, or
// updates those of an earlier version. It needs only the right to create in the schema. If
// the table exists and is in use, set lock_timeout before calling Install: its statements
// wait for open transactions that delete, and everybody else who deletes waits for them.
// Install fails if an object that it would make exists and belongs to a role that the
// current user can't trust.
func (s Schema) Install(ctx context.Context, db DB) error {
	return run(ctx, db, "installing loose foreign keys", s.InstallSQL())
}

// InstallSQL returns the statement that Install runs. It is a single one, so that at no
// moment there is a function that others may execute.
func (s Schema) InstallSQL() string { return s.in().InstallSQL() }

// TrackRecordDeletions puts triggers on a table that isn't partitioned. From then on its
// deleted keys are recorded, and keys that an UPDATE changes. The table's key is a single
// column of an integer type, uuid, text or varchar: its column id where that is unique,
// else its primary key. It refuses a partitioned table: see
// TrackRecordDeletionsOverrideTableName. It waits for transactions that write to the table;
// see Install for lock_timeout.
func (s Schema) TrackRecordDeletions(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "tracking deletions from "+table, s.TrackRecordDeletionsSQL(table))
}

// TrackRecordDeletionsSQL returns the statement that TrackRecordDeletions runs.
func (s Schema) TrackRecordDeletionsSQL(table string) string { return s.in().TrackSQL(table, false) }

// TrackRecordDeletionsOverrideTableName puts triggers on a partitioned table and on all its
// partitions. All of them record the name of the partitioned table, whether a statement
// names the table or a partition. Run it again after partitions were added, for deletes
// that name these.
func (s Schema) TrackRecordDeletionsOverrideTableName(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "tracking deletions from "+table, s.TrackRecordDeletionsOverrideTableNameSQL(table))
}

// TrackRecordDeletionsOverrideTableNameSQL returns the statement that
// TrackRecordDeletionsOverrideTableName runs.
func (s Schema) TrackRecordDeletionsOverrideTableNameSQL(table string) string {
	return s.in().TrackSQL(table, true)
}

// UntrackRecordDeletions takes the triggers from a table, and from its
// partitions. Records that are still pending stay: see RemoveDeletedRecords. A
// table that is gone is no error.
func (s Schema) UntrackRecordDeletions(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "no longer tracking deletions from "+table, s.UntrackRecordDeletionsSQL(table))
}

// UntrackRecordDeletionsSQL returns the statement that UntrackRecordDeletions runs.
func (s Schema) UntrackRecordDeletionsSQL(table string) string { return s.in().UntrackSQL(table) }

// leftoversBatch is how many leftover records RemoveDeletedRecords deletes at once.
const leftoversBatch = 1000

// RemoveDeletedRecords removes the records of a table that are still pending, in batches,
// after the table's last loose foreign key was removed. It returns their number. In a
// transaction of the caller's all batches are part of it.
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
// The statement commits after each batch, so it must run outside a transaction.
func (s Schema) RemoveDeletedRecordsSQL(table string) string { return s.in().RemoveRecordsSQL(table) }

// GuardInserts makes inserts into a child table, and updates of the column, fail with
// SQLSTATE 23503 if the parent doesn't exist, as a foreign key does; they wait for a parent
// that is being deleted. Both tables must be in this database. Without it, the application
// has to look the parent up itself, which leaves a short race.
func (s Schema) GuardInserts(ctx context.Context, db DB, child, column, parent string) error {
	return run(ctx, db, "guarding inserts into "+child, s.GuardInsertsSQL(child, column, parent))
}

// GuardInsertsSQL returns the statement that GuardInserts runs.
func (s Schema) GuardInsertsSQL(child, column, parent string) string {
	return s.in().GuardSQL(child, column, parent)
}

// UnguardInserts undoes GuardInserts.
func (s Schema) UnguardInserts(ctx context.Context, db DB, child, column string) error {
	return run(ctx, db, "no longer guarding inserts into "+child, s.UnguardInsertsSQL(child, column))
}

// UnguardInsertsSQL returns the statement that UnguardInserts runs.
func (s Schema) UnguardInsertsSQL(child, column string) string {
	return s.in().UnguardSQL(child, column)
}
