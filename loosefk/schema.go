package loosefk

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Names of what is installed.
const (
	RecordsTable  = "loose_foreign_keys_deleted_records"
	DetachedTable = "detached_partitions"
)

// Status of a deleted record.
const (
	statusPending   = 1
	statusProcessed = 2
	statusFailed    = 3 // names no table, so no worker can process it
)

// Schema is the schema of the table of deleted records, and of tables named without a
// schema. Its methods change a database, or return the SQL that does, for any migration
// tool. The SQL can be run repeatedly.
type Schema string

// DefaultSchema is the schema that PostgreSQL creates tables in by default.
const DefaultSchema Schema = "public"

func (s Schema) database() *Database { return &Database{Schema: string(s)} }

func (s Schema) name(table string) tableName { return s.database().table(table) }

func run(ctx context.Context, db DB, doing, sql string) error {
	// One statement per call: with parameters there may be no more, and pools in
	// front of PostgreSQL split on them.
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
// it is installed and in use already, set lock_timeout before: the statements wait for open
// transactions that delete, and everybody else who deletes waits for them. It fails if an
// object that it would make exists and belongs to a role that the current user can't trust.
func (s Schema) Install(ctx context.Context, db DB) error {
	return run(ctx, db, "installing loose foreign keys", s.InstallSQL())
}

// expand puts the names of this schema in the place of {name}.
func (s Schema) expand(sql string, more ...string) string {
	d := s.database()
	in := func(name string) string { return d.table(name).quoted() }
	call := func(name string) string { return literal(in(name)+"()") + "::regprocedure" }
	return strings.TrimPrefix(strings.NewReplacer(append(more,
		"{schema}", quote(d.schema()),
		"{schema_literal}", literal(quote(d.schema())),
		"{records}", in(RecordsTable),
		"{regclass}", literal(in(RecordsTable)),
		"{sequence}", literal(in(RecordsTable+"_id_seq")),
		"{partition_1}", in(RecordsTable+"_1"),
		"{partition_default}", in(RecordsTable+"_default"),
		"{detached}", in(DetachedTable),
		"{track}", in(trackFunction),
		"{override}", in(overrideFunction),
		"{guard_insert}", in(guardInsertFunc),
		"{guard_update}", in(guardUpdateFunc),
		"{key_change}", in(keyChangeFunction),
		"{track_name}", literal(in(trackFunction)),
		"{override_name}", literal(in(overrideFunction)),
		"{key_change_name}", literal(in(keyChangeFunction)),
		"{track_table}", in(trackTableFunc),
		"{track_table_name}", literal(in(trackTableFunc)),
		"{check_table}", in(checkTableFunc),
		"{check_guard}", in(checkGuardFunc),
		"{guard}", in(guardFunc),
		"{guard_insert_name}", literal(in(guardInsertFunc)),
		"{guard_update_name}", literal(in(guardUpdateFunc)),
		"{recorded_name}", in(recordedNameFunc),
		"{key_type}", in(keyTypeFunc),
		"{track_literal}", call(trackFunction),
		"{override_literal}", call(overrideFunction),
		"{key_change_literal}", call(keyChangeFunction),
		"{guard_insert_literal}", call(guardInsertFunc),
		"{guard_update_literal}", call(guardUpdateFunc),
	)...).Replace(sql), "\n")
}

// UntrackRecordDeletions takes the triggers from a table, and from its
// partitions. Records that are still pending stay: see RemoveDeletedRecords. A
// table that is gone is no error.
func (s Schema) UntrackRecordDeletions(ctx context.Context, db DB, table string) error {
	return run(ctx, db, "no longer tracking deletions from "+table, s.UntrackRecordDeletionsSQL(table))
}

// UntrackRecordDeletionsSQL is what UntrackRecordDeletions runs.
func (s Schema) UntrackRecordDeletionsSQL(table string) string {
	return s.expand(`
DO $$
DECLARE
    search_path_before text := pg_catalog.current_setting('search_path');
    search_path_pinned text := pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    t record;
BEGIN
    FOR t IN
        SELECT g.tgrelid::regclass AS name, g.tgname AS trigger
        FROM pg_catalog.pg_trigger g
        WHERE g.tgfoid IN (to_regprocedure({track_name} || '()'), to_regprocedure({override_name} || '()'), to_regprocedure({key_change_name} || '()'))
            AND g.tgparentid = 0 AND (g.tgrelid = to_regclass({t_literal})
                OR g.tgrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree(to_regclass({t_literal}))))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', t.trigger, t.name);
    END LOOP;
    PERFORM set_config('search_path', search_path_before, true);
END;
$$;`, "{t_literal}", literal(s.name(table).quoted()))
}

// leftoversBatch is how many leftover records go at once.
const leftoversBatch = 1000

// RemoveDeletedRecords removes the records of a table that are still pending,
// in batches, after its last loose foreign key was removed, and returns how many
// they were. Inside a transaction of the caller's it is one transaction.
func (s Schema) RemoveDeletedRecords(ctx context.Context, db DB, table string) (int64, error) {
	var removed int64
	for {
		tag, err := db.Exec(ctx, s.expand(`
			DELETE FROM {records} WHERE (partition, id) IN (
				SELECT partition, id FROM {records}
				WHERE fully_qualified_table_name = $1 AND status = 1 LIMIT $2)`),
			s.name(table).String(), leftoversBatch)
		if err != nil {
			return removed, fmt.Errorf("removing leftover records of %s: %w", table, err)
		}
		if removed += tag.RowsAffected(); tag.RowsAffected() == 0 {
			return removed, nil
		}
	}
}

// RemoveDeletedRecordsSQL does what RemoveDeletedRecords does. It commits after
// each batch, so it must run outside a transaction.
func (s Schema) RemoveDeletedRecordsSQL(table string) string {
	return s.expand(`
DO $$
BEGIN
    LOOP
        DELETE FROM {records} WHERE (partition, id) IN (
            SELECT partition, id FROM {records}
            WHERE fully_qualified_table_name = {t_name} AND status = 1 LIMIT 1000);
        EXIT WHEN NOT FOUND;
        COMMIT;
    END LOOP;
END;
$$;`, "{t_name}", literal(s.name(table).String()))
}

// GuardInserts makes inserts into a child table, and updates of the column, fail with
// SQLSTATE 23503 if the parent doesn't exist, as a foreign key does; they wait for a parent
// that is being deleted. Both tables must be in this database. Without it, the application
// has to look the parent up itself, which leaves a short race.
func (s Schema) GuardInserts(ctx context.Context, db DB, child, column, parent string) error {
	return run(ctx, db, "guarding inserts into "+child, s.GuardInsertsSQL(child, column, parent))
}

// GuardInsertsSQL is what GuardInserts runs.
func (s Schema) GuardInsertsSQL(child, column, parent string) string {
	return s.expand(`SELECT {guard}({c}::regclass, {column}, {p}::regclass, {insert_name}, {update_name});`,
		"{c}", literal(s.name(child).quoted()), "{p}", literal(s.name(parent).quoted()), "{column}", literal(column),
		"{insert_name}", literal(guardName(column, "insert")), "{update_name}", literal(guardName(column, "update")))
}

// guardBody puts the guards on a child and its partitions.
var guardBody = `
DECLARE
    key text := (` + keyColumnOf("parent") + `);
    more text := CASE WHEN key <> 'id' THEN ', ' || quote_literal(key) ELSE '' END;
    target record;
BEGIN
    IF key IS NULL THEN
        RAISE datatype_mismatch USING MESSAGE = format('table %s has no key of a single column of type smallint, integer, bigint, uuid, text or varchar', parent);
    END IF;
    PERFORM {check_guard}(child, child_column, parent, key, {guard_insert_literal});
    FOR target IN
        SELECT c.oid::regclass AS name, c.oid = child AS is_root, CASE c.relkind WHEN 'p' THEN 'BEFORE' ELSE 'AFTER' END AS moment
        FROM pg_catalog.pg_class c
        WHERE c.oid = child OR c.oid IN (SELECT tree.relid FROM pg_catalog.pg_partition_tree(child) tree) AND c.relkind IN ('r', 'p')
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s REFERENCING NEW TABLE AS new_table
            FOR EACH STATEMENT EXECUTE FUNCTION %s (%L, %L%s)',
            insert_name, target.name, {guard_insert_name}, child_column, parent, more);
        -- A trigger for each row is on the partitions by itself. One AFTER UPDATE
        -- doesn't see rows that move from a partition to another.
        IF target.is_root THEN
            EXECUTE format('CREATE OR REPLACE TRIGGER %1$I %5$s UPDATE OF %2$I ON %3$s
                FOR EACH ROW WHEN (NEW.%2$I IS DISTINCT FROM OLD.%2$I AND NEW.%2$I IS NOT NULL)
                EXECUTE FUNCTION %7$s (%2$L, %4$L%6$s)',
                update_name, child_column, target.name, parent, target.moment, more, {guard_update_name});
        END IF;
    END LOOP;
END;
`

// UnguardInserts undoes GuardInserts.
func (s Schema) UnguardInserts(ctx context.Context, db DB, child, column string) error {
	return run(ctx, db, "no longer guarding inserts into "+child, s.UnguardInsertsSQL(child, column))
}

// UnguardInsertsSQL is what UnguardInserts runs.
func (s Schema) UnguardInsertsSQL(child, column string) string {
	return s.expand(`
DO $$
DECLARE
    search_path_before text := pg_catalog.current_setting('search_path');
    search_path_pinned text := pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    t regclass;
BEGIN
    FOR t IN
        SELECT {c_literal}::regclass
        UNION
        SELECT relid FROM pg_catalog.pg_partition_tree({c_literal}::regclass)
    LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', {insert_name}, t);
        IF t = {c_literal}::regclass THEN
            EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', {update_name}, t);
        END IF;
    END LOOP;
    PERFORM set_config('search_path', search_path_before, true);
END;
$$;`, "{c_literal}", literal(s.name(child).quoted()),
		"{insert_name}", literal(guardName(column, "insert")), "{update_name}", literal(guardName(column, "update")))
}

func guardName(column, event string) string {
	suffix := "_loose_fk_guard_" + event
	if len(column)+len(suffix) > 63 { // two columns of a table must not share a trigger
		suffix = fmt.Sprintf("_%08x%s", crc32.ChecksumIEEE([]byte(column)), suffix)
		column = strings.ToValidUTF8(column[:63-len(suffix)], "")
	}
	return column + suffix
}
