package installed

import (
	"fmt"
	"strings"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Version is the version of the tables and functions that Install makes. In a database, the
// SQL function loose_foreign_keys_version returns the installed version.
const Version = 1

// Names of the functions.
const (
	TrackFunction       = pg.TrackFunction
	OverrideFunction    = pg.OverrideFunction
	KeyChangeFunction   = "loose_foreign_keys_record_key_change"
	GuardInsertFunction = "loose_foreign_keys_guard_insert"
	guardFunc           = "loose_foreign_keys_guard"
	GuardUpdateFunction = "loose_foreign_keys_guard_update"
	checkTableFunc      = "loose_foreign_keys_check_table"
	checkGuardFunc      = "loose_foreign_keys_check_guard"
	recordedNameFunc    = "loose_foreign_keys_recorded_name"
	trackTableFunc      = "loose_foreign_keys_track"
	keyTypeFunc         = "loose_foreign_keys_key_type"
	VersionFunction     = "loose_foreign_keys_version"
)

// Function is one of the SQL functions that Install creates.
type Function struct {
	Name, args, returns, Options string
	Body                         string
}

// Signature returns the function's name and argument types, as to_regprocedure needs them.
func (f Function) Signature(s Schema) string {
	var types []string
	for arg := range strings.SplitSeq(f.args, ", ") {
		_, typ, _ := strings.Cut(arg, " ")
		types = append(types, typ)
	}
	return s.Table(f.Name).Quoted() + "(" + strings.Join(types, ", ") + ")"
}

// sql returns the statement that creates the function. The function's own search path names
// pg_temp last: if it didn't name pg_temp, PostgreSQL would search the schema of temporary
// objects first, for types and tables.
func (f Function) sql(s Schema) string {
	return fmt.Sprintf("CREATE OR REPLACE FUNCTION %s (%s)\n    RETURNS %s\n    %s\n    SET search_path = pg_catalog, pg_temp\n    AS $function$%s$function$;",
		s.Table(f.Name).Quoted(), f.args, f.returns, f.Options, f.Body)
}

// Definer is the option that makes a function run with the rights of its owner.
const Definer = "LANGUAGE plpgsql SECURITY DEFINER"

// Functions returns all SQL functions that Install creates. Only their owner may execute
// them, and roles that were granted the right EXECUTE after Install. This doesn't keep
// existing triggers on other roles' tables from calling them: PostgreSQL checks the right when
// a trigger is created, not when it fires.
//
// Some of these functions run with their owner's rights, and a role that has the right
// EXECUTE, or had it once, may have created a trigger on its own table that calls one.
// Therefore each such function first checks whether the table may use it. It identifies tables by values of the type regclass, and columns by their
// rows in the system catalog. It reads only columns of built-in types, because comparing
// values of another type could run an operator or cast of another role.
func (s Schema) Functions() []Function {
	list := []Function{
		{VersionFunction, "", "integer", "LANGUAGE sql IMMUTABLE", fmt.Sprintf(" SELECT %d ", Version)},
		{checkTableFunc, "relation regclass, acting regprocedure", "void", "LANGUAGE plpgsql", checkTableBody},
		{keyTypeFunc, "relation regclass, key_column text", "text", "LANGUAGE plpgsql", keyTypeBody},
		{recordedNameFunc, "relation regclass, given text", "text", "LANGUAGE plpgsql", recordedNameBody},
		{checkGuardFunc, "child regclass, child_column text, parent regclass, key_column text, acting regprocedure", "void", "LANGUAGE plpgsql", checkGuardBody},
		{trackTableFunc, "relation regclass, partitions boolean", "void", "LANGUAGE plpgsql", trackTableBody},
		{guardFunc, "child regclass, child_column text, parent regclass, insert_name text, update_name text", "void", "LANGUAGE plpgsql", guardBody},
		{TrackFunction, "", "trigger", Definer, recordBody("{track}", "NULL", "TG_ARGV[0]")},
		{OverrideFunction, "", "trigger", Definer, recordBody("{override}", "COALESCE(TG_ARGV[0], '')", "TG_ARGV[1]")},
		{KeyChangeFunction, "", "trigger", Definer, keyChangeBody},
		{GuardInsertFunction, "", "trigger", Definer, guardInsertBody},
		{GuardUpdateFunction, "", "trigger", Definer + " SET row_security = off", guardUpdateBody},
	}
	for i := range list {
		list[i].Body = s.Expand(list[i].Body)
		if list[i].Name == GuardInsertFunction { // if row security would hide parents, the query fails
			list[i].Options += " SET row_security = off"
		}
	}
	return list
}

// checkTableBody is the body of an SQL function. The function raises an error unless triggers
// of the table `relation` may call the function `acting`, which runs with its owner's
// rights. Triggers of a temporary table may not. Triggers of another table may if the
// table's owner may execute `acting`, or if the table is in the schema of the table of
// deleted records and PUBLIC may not create tables there.
const checkTableBody = `
DECLARE
    t record;
BEGIN
    SELECT c.relkind, c.relpersistence, c.relowner, n.oid AS schema, n.nspname || '.' || c.relname AS name INTO t
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = relation;
    IF t.name IS NULL THEN
        RAISE undefined_table USING MESSAGE = 'there is no such table';
    END IF;
    IF t.relkind NOT IN ('r', 'p') OR t.relpersistence = 't' THEN
        RAISE wrong_object_type USING MESSAGE = format('%s is temporary or no table: loose foreign keys don''t work with it', t.name);
    END IF;
    IF NOT has_function_privilege(t.relowner, acting, 'EXECUTE')
        AND (t.schema <> {schema_literal}::regnamespace OR has_schema_privilege('public', t.schema, 'CREATE')) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('loose foreign keys refuse table %s: its owner %s may not execute %s', t.name, t.relowner::regrole, acting),
            HINT = format('For a parent of a definition "loosefk track %s" grants what is missing; else GRANT EXECUTE ON FUNCTION %s TO %s.', t.name, acting, t.relowner::regrole);
    END IF;
END;
`

// keyTypeBody is the body of an SQL function. The function returns the type of a table's key
// column: integer, uuid or text. For a domain it returns the domain's base type. It raises
// an error for all other types.
const keyTypeBody = `
DECLARE
    found oid;
BEGIN
    SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END INTO found
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = relation AND a.attname = key_column AND a.attnum > 0 AND NOT a.attisdropped;
    IF found IS NULL THEN
        RAISE undefined_column USING MESSAGE = format('table %s has no column %I', relation, key_column);
    END IF;
    IF found IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN
        RETURN 'integer';
    ELSIF found = 'uuid'::regtype THEN
        RETURN 'uuid';
    ELSIF found IN ('text'::regtype, 'varchar'::regtype) THEN
        RETURN 'text';
    END IF;
    RAISE datatype_mismatch USING
        MESSAGE = format('column %I of %s is %s: loose foreign keys need smallint, integer, bigint, uuid, text or varchar',
            key_column, relation, format_type(found, NULL));
END;
`

// recordedNameBody is the body of an SQL function. The function returns the name under which
// deletions from a table are recorded: the argument `given` or, if that is NULL, the table's
// own name. It raises an error unless `given` is the name of the table or of a partitioned
// table above it. So no role can record deletions under the name of another role's table.
const recordedNameBody = `
DECLARE
    recorded text;
BEGIN
    SELECT n.nspname || '.' || c.relname INTO recorded
    FROM (SELECT relation AS oid UNION SELECT a.relid FROM pg_catalog.pg_partition_ancestors(relation) a (relid)) t
    JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname || '.' || c.relname = given OR given IS NULL AND c.oid = relation;
    IF recorded IS NULL THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('the trigger on %s would record deletions from %s: it may name the table itself or a partitioned table above it',
                relation, given),
            HINT = 'Drop the trigger, and run "loosefk track" for the table.';
    END IF;
    IF length(recorded) - length(replace(recorded, '.', '')) <> 1 THEN
        RAISE invalid_name USING MESSAGE = format('deletions from %s can''t be recorded: its name has a dot in it', relation);
    END IF;
    RETURN recorded;
END;
`

// recordBody returns the body of a trigger function that records the keys of the rows that
// a statement deletes. `acting` is the placeholder of the function's name. `given` and
// `key` are SQL expressions: for the table name to record, and for the name of the key
// column.
func recordBody(acting, given, key string) string {
	return strings.NewReplacer("{acting}", strings.Replace(acting, "}", "_literal}", 1), "{given}", given, "{key}", key).Replace(`
-- A parent may have a column of any name: unqualified names are variables.
#variable_conflict use_variable
DECLARE
    name text;
    key text := COALESCE({key}, 'id');
    key_type text;
BEGIN
    PERFORM {check_table}(TG_RELID, {acting});
    -- Without its transition table the name would lead to a temporary table.
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger g
        WHERE g.tgrelid = TG_RELID AND g.tgname = TG_NAME AND g.tgtype & 75 = 8 AND g.tgoldtable = 'old_table') THEN
        RAISE wrong_object_type USING MESSAGE =
            format('trigger %I on %s has to be one AFTER DELETE REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT', TG_NAME, TG_RELID::regclass);
    END IF;
    name := {recorded_name}(TG_RELID, {given});
    key_type := {key_type}(TG_RELID, key);
    IF key_type = 'integer' AND key = 'id' THEN
        INSERT INTO {records} (fully_qualified_table_name, primary_key_value)
        SELECT name, o.id FROM old_table o WHERE o.id IS NOT NULL;
    ELSIF key_type = 'integer' THEN
        EXECUTE format('INSERT INTO %s (fully_qualified_table_name, primary_key_value)
            SELECT $1, o.%2$I FROM old_table o WHERE o.%2$I IS NOT NULL', {regclass}, key) USING name;
    ELSE
        EXECUTE format('INSERT INTO %s (fully_qualified_table_name, primary_key_value, primary_key_text)
            SELECT $1, 0, o.%2$I::text FROM old_table o WHERE o.%2$I IS NOT NULL', {regclass}, key) USING name;
    END IF;
    RETURN NULL;
END;
`)
}

// keyChangeBody is the body of a trigger function. The function records the old key of a row
// whose key an UPDATE changes, as if the row had been deleted. The trigger's arguments are
// the table name to record and the key column.
const keyChangeBody = `
DECLARE
    name text;
    key text := COALESCE(TG_ARGV[1], 'id');
BEGIN
    PERFORM {check_table}(TG_RELID, {key_change_literal});
    IF TG_OP <> 'UPDATE' OR TG_LEVEL <> 'ROW' THEN
        RAISE wrong_object_type USING MESSAGE = format('trigger %I on %s has to be one on UPDATE for each row', TG_NAME, TG_RELID::regclass);
    END IF;
    name := {recorded_name}(TG_RELID, TG_ARGV[0]);
    IF {key_type}(TG_RELID, key) = 'integer' THEN
        EXECUTE format('INSERT INTO %s (fully_qualified_table_name, primary_key_value)
            SELECT $1, ($2).%2$I WHERE ($2).%2$I IS NOT NULL', {regclass}, key) USING name, OLD;
    ELSE
        EXECUTE format('INSERT INTO %s (fully_qualified_table_name, primary_key_value, primary_key_text)
            SELECT $1, 0, ($2).%2$I::text WHERE ($2).%2$I IS NOT NULL', {regclass}, key) USING name, OLD;
    END IF;
    RETURN NEW;
END;
`

// checkGuardBody is the body of an SQL function. The function raises an error unless a guard,
// a trigger that checks inserts, may compare the child's column with the parent's key.
// Triggers of child and parent must be allowed to call the function `acting`, the owner of
// the child needs the right REFERENCES on the parent, as for a foreign key, and both columns
// must be of the same kind: integer, uuid or text.
const checkGuardBody = `
DECLARE
    owner oid := (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = child);
    column_type text;
    key_type text;
BEGIN
    PERFORM {check_table}(child, acting);
    PERFORM {check_table}(parent, acting);
    column_type := {key_type}(child, child_column);
    key_type := {key_type}(parent, key_column);
    IF column_type <> key_type THEN
        RAISE datatype_mismatch USING
            MESSAGE = format('column %I of %s (%s) can''t be held against %I of %s (%s)', child_column, child, column_type, key_column, parent, key_type);
    END IF;
    IF NOT has_column_privilege(owner, parent, key_column, 'REFERENCES') THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('%s, who owns %s, may not refer to %s', owner::regrole, child, parent),
            HINT = format('GRANT REFERENCES ON %s TO %s', parent, owner::regrole);
    END IF;
END;
`

// guardInsertBody and guardUpdateBody are the bodies of trigger functions. The first makes an
// INSERT of children fail if a parent doesn't exist, the second an UPDATE of a child. The
// arguments of the triggers are the child's column, the parent table and its key column.
const guardInsertBody = `
DECLARE
    parent regclass := to_regclass(TG_ARGV[1]);
    key text := COALESCE(TG_ARGV[2], 'id');
    missing text;
BEGIN
    PERFORM {check_guard}(TG_RELID, TG_ARGV[0], parent, key, {guard_insert_literal});
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_trigger g
        WHERE g.tgrelid = TG_RELID AND g.tgname = TG_NAME AND g.tgtype & 71 = 4 AND g.tgnewtable = 'new_table') THEN
        RAISE wrong_object_type USING MESSAGE =
            format('trigger %I on %s has to be one AFTER INSERT REFERENCING NEW TABLE AS new_table FOR EACH STATEMENT', TG_NAME, TG_RELID::regclass);
    END IF;
    EXECUTE format(
        'WITH want AS MATERIALIZED (SELECT DISTINCT %1$I AS id FROM new_table WHERE %1$I IS NOT NULL),
            alive AS MATERIALIZED (
                SELECT p.%3$I AS id FROM %2$s p WHERE p.%3$I IN (SELECT id FROM want) ORDER BY p.%3$I FOR KEY SHARE OF p)
        SELECT id::text FROM want WHERE NOT EXISTS (SELECT FROM alive WHERE alive.id = want.id) LIMIT 1',
        TG_ARGV[0], parent, key) INTO missing;
    IF missing IS NOT NULL THEN
        RAISE foreign_key_violation USING
            MESSAGE = format('insert on table %I violates its loose foreign key: %s=%s is not in table %s',
                TG_TABLE_NAME, TG_ARGV[0], missing, parent),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = TG_ARGV[0];
    END IF;
    RETURN NULL;
END;
`

const guardUpdateBody = `
DECLARE
    parent regclass := to_regclass(TG_ARGV[1]);
    key text := COALESCE(TG_ARGV[2], 'id');
    wanted text;
    present int;
BEGIN
    PERFORM {check_guard}(TG_RELID, TG_ARGV[0], parent, key, {guard_update_literal});
    EXECUTE format('SELECT ($1).%I::text', TG_ARGV[0]) INTO wanted USING NEW;
    EXECUTE format('SELECT 1 FROM %1$s p WHERE p.%2$I = ($1).%3$I FOR KEY SHARE OF p', parent, key, TG_ARGV[0]) INTO present USING NEW;
    IF wanted IS NOT NULL AND present IS NULL THEN
        RAISE foreign_key_violation USING
            MESSAGE = format('update on table %I violates its loose foreign key: %s=%s is not in table %s',
                TG_TABLE_NAME, TG_ARGV[0], wanted, parent),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = TG_ARGV[0];
    END IF;
    RETURN NEW;
END;
`
