package installed

import (
	"strconv"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Names of the triggers on a parent. The trigger that records deletions is named after the
// table, with triggerSuffix at the end. The trigger that records changes of keys is called
// keyTrigger on all tables.
const (
	triggerSuffix = "_loose_fk_trigger"
	keyTrigger    = "loose_fk_key_trigger"
)

// TrackSQL returns the statement that creates the triggers that record deletions from a
// table. For a partitioned table the statement fails, unless `partitions` is set: then it
// creates the triggers on all partitions too.
func (s Schema) TrackSQL(table string, partitions bool) string {
	return s.Expand("SELECT {track_table}({t}::regclass, {partitions});",
		"{t}", pg.Literal(s.Table(table).Quoted()), "{partitions}", strconv.FormatBool(partitions))
}

// TriggerName returns the name of the trigger that records deletions from a table, cut to
// 63 bytes as PostgreSQL cuts it.
func TriggerName(table string) string {
	name := table + triggerSuffix
	return name[:min(len(name), 63)]
}

// trackTableBody is the body of an SQL function. The function creates the triggers on a
// parent and, if `partitions` is set, on its partitions. If the trigger functions would
// refuse to work for the table, it grants the table's owner the right to execute them; the
// owner can use this right only to record deletions from the owner's own tables.
var trackTableBody = `
DECLARE
    parent record;
    part record;
    key text;
    call text;
BEGIN
    SELECT c.oid::regclass AS name, n.nspname || '.' || c.relname AS recorded, c.relname, c.relkind, c.relpersistence, c.relowner, c.relnamespace INTO parent
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation;
    IF parent.relkind NOT IN ('r', 'p') OR parent.relpersistence = 't' THEN
        RAISE wrong_object_type USING MESSAGE = format('%s is temporary or no table: deletions from it can''t be recorded', parent.recorded);
    END IF;
    IF parent.relkind = 'p' AND NOT partitions THEN
        RAISE EXCEPTION 'table % is partitioned: use track_record_deletions_override_table_name', parent.recorded;
    END IF;
    IF length(parent.recorded) - length(replace(parent.recorded, '.', '')) <> 1 THEN
        RAISE invalid_name USING MESSAGE = format('deletions from %s can''t be recorded: its name has a dot in it', parent.name);
    END IF;
    key := (` + pg.KeyColumnOf("relation") + `);
    IF key IS NULL THEN
        RAISE datatype_mismatch USING
            MESSAGE = format('deletions from %s can''t be recorded: it has no key of a single column of type smallint, integer, bigint, uuid, text or varchar', parent.recorded),
            HINT = 'That is its column id if that is unique, else its primary key.';
    END IF;
    call := CASE WHEN partitions THEN format('%s (%L%s)', {override_name}, parent.recorded, ', ' || quote_literal(NULLIF(key, 'id')))
        ELSE format('%s (%s)', {track_name}, quote_literal(NULLIF(key, 'id'))) END;
    FOR part IN
        SELECT c.oid::regclass AS name, left(c.relname || '_loose_fk_trigger', 63) AS trigger
        FROM (SELECT relation AS oid UNION SELECT tree.relid FROM pg_catalog.pg_partition_tree(relation) tree WHERE partitions) all_of
        JOIN pg_catalog.pg_class c ON c.oid = all_of.oid AND c.relkind IN ('r', 'p')
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER DELETE ON %s REFERENCING OLD TABLE AS old_table
            FOR EACH STATEMENT EXECUTE FUNCTION %s', part.trigger, part.name, call);
    END LOOP;
    -- On a partitioned table a trigger BEFORE sees rows that move to another
    -- partition, one AFTER doesn't.
    EXECUTE format('CREATE OR REPLACE TRIGGER %I %s UPDATE ON %s
        FOR EACH ROW WHEN (OLD.%4$I IS DISTINCT FROM NEW.%4$I) EXECUTE FUNCTION %5$s (%6$L, %4$L)',
        'loose_fk_key_trigger', CASE parent.relkind WHEN 'p' THEN 'BEFORE' ELSE 'AFTER' END,
        parent.name, key, {key_change_name}, parent.recorded);
    IF NOT has_function_privilege(parent.relowner, {track_literal}, 'EXECUTE')
        AND (parent.relnamespace <> {schema_literal}::regnamespace OR has_schema_privilege('public', parent.relnamespace, 'CREATE')) THEN
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s (), %s (), %s (), %s (regclass, boolean) TO %s',
            {track_name}, {override_name}, {key_change_name}, {track_table_name}, parent.relowner::regrole);
        PERFORM {check_table}(relation, {track_literal});
    END IF;
END;
`
