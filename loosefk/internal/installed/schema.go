package installed

import (
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Names of the tables that Install makes.
const (
	RecordsTable  = pg.RecordsTable
	DetachedTable = pg.DetachedTable
)

// Schema is the PostgreSQL schema that contains the table of deleted records, and the
// tables that are named without a schema.
type Schema string

// Table returns the table of the given name, which is "name" or "schema.name".
func (s Schema) Table(name string) pg.Table { return pg.New("", nil, string(s)).Table(name) }

// Expand replaces placeholders such as {records} in `sql` by the quoted names of this
// schema's tables and functions. `more` are further pairs of a placeholder and its
// replacement.
func (s Schema) Expand(sql string, more ...string) string {
	in := func(name string) string { return s.Table(name).Quoted() }
	call := func(name string) string { return pg.Literal(in(name)+"()") + "::regprocedure" }
	return strings.TrimPrefix(strings.NewReplacer(append(more,
		"{schema}", pg.Quote(string(s)),
		"{schema_literal}", pg.Literal(pg.Quote(string(s))),
		"{records}", in(RecordsTable),
		"{regclass}", pg.Literal(in(RecordsTable)),
		"{sequence}", pg.Literal(in(RecordsTable+"_id_seq")),
		"{partition_1}", in(RecordsTable+"_1"),
		"{partition_default}", in(RecordsTable+"_default"),
		"{detached}", in(DetachedTable),
		"{track}", in(TrackFunction),
		"{override}", in(OverrideFunction),
		"{guard_insert}", in(GuardInsertFunction),
		"{guard_update}", in(GuardUpdateFunction),
		"{key_change}", in(KeyChangeFunction),
		"{track_name}", pg.Literal(in(TrackFunction)),
		"{override_name}", pg.Literal(in(OverrideFunction)),
		"{key_change_name}", pg.Literal(in(KeyChangeFunction)),
		"{track_table}", in(trackTableFunc),
		"{track_table_name}", pg.Literal(in(trackTableFunc)),
		"{check_table}", in(checkTableFunc),
		"{check_guard}", in(checkGuardFunc),
		"{guard}", in(guardFunc),
		"{guard_insert_name}", pg.Literal(in(GuardInsertFunction)),
		"{guard_update_name}", pg.Literal(in(GuardUpdateFunction)),
		"{recorded_name}", in(recordedNameFunc),
		"{key_type}", in(keyTypeFunc),
		"{track_literal}", call(TrackFunction),
		"{override_literal}", call(OverrideFunction),
		"{key_change_literal}", call(KeyChangeFunction),
		"{guard_insert_literal}", call(GuardInsertFunction),
		"{guard_update_literal}", call(GuardUpdateFunction),
	)...).Replace(sql), "\n")
}

// UntrackSQL returns the statement that drops the triggers that record deletions from a
// table and its partitions.
func (s Schema) UntrackSQL(table string) string {
	return s.Expand(`
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
$$;`, "{t_literal}", pg.Literal(s.Table(table).Quoted()))
}

// RemoveRecordsSQL returns a statement that deletes the pending deleted records of a table.
// The statement commits after each batch, so it must run outside a transaction.
func (s Schema) RemoveRecordsSQL(table string) string {
	return s.Expand(`
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
$$;`, "{t_name}", pg.Literal(s.Table(table).String()))
}

// GuardSQL returns the statement that creates the triggers that check inserts into a child.
func (s Schema) GuardSQL(child, column, parent string) string {
	return s.Expand(`SELECT {guard}({c}::regclass, {column}, {p}::regclass, {insert_name}, {update_name});`,
		"{c}", pg.Literal(s.Table(child).Quoted()), "{p}", pg.Literal(s.Table(parent).Quoted()), "{column}", pg.Literal(column),
		"{insert_name}", pg.Literal(guardName(column, "insert")), "{update_name}", pg.Literal(guardName(column, "update")))
}

// guardBody is the body of an SQL function. The function creates the triggers that check
// inserts, on a child and its partitions.
var guardBody = `
DECLARE
    key text := (` + pg.KeyColumnOf("parent") + `);
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

// UnguardSQL returns the statement that drops the triggers that check inserts into a child.
func (s Schema) UnguardSQL(child, column string) string {
	return s.Expand(`
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
$$;`, "{c_literal}", pg.Literal(s.Table(child).Quoted()),
		"{insert_name}", pg.Literal(guardName(column, "insert")), "{update_name}", pg.Literal(guardName(column, "update")))
}

func guardName(column, event string) string {
	suffix := "_loose_fk_guard_" + event
	if len(column)+len(suffix) > 63 { // cut off, the names for two columns could be equal
		suffix = fmt.Sprintf("_%08x%s", crc32.ChecksumIEEE([]byte(column)), suffix)
		column = strings.ToValidUTF8(column[:63-len(suffix)], "")
	}
	return column + suffix
}
