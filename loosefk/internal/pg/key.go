package pg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Kind is the type of a key: integer, uuid or text.
type Kind string

// SQLType returns the SQL type in which keys of this kind are compared.
func (k Kind) SQLType() string {
	if k == "integer" {
		return "bigint"
	}
	return string(k)
}

// List returns an SQL expression that casts a parameter, an array of texts, to an array of
// the key's type.
func (k Kind) List(parameter string) string {
	return fmt.Sprintf("CAST(%s::text[] AS %s[])", parameter, k.SQLType())
}

// Recorded returns an SQL expression for the key, as text, of a deleted record; `d` is the
// record's alias in the SQL.
func (k Kind) Recorded(d string) string {
	if k == "integer" {
		return d + ".primary_key_value::text"
	}
	return "COALESCE(" + d + ".primary_key_text, '')"
}

// Among returns the SQL condition that the key of a deleted record is one of the texts in
// `parameter`, which is an array of texts; `d` is the record's alias in the SQL.
func (k Kind) Among(d, parameter string) string {
	if k == "integer" {
		return fmt.Sprintf("%s.primary_key_value = ANY (%s)", d, k.List(parameter))
	}
	return fmt.Sprintf("%s.primary_key_text = ANY (%s::text[])", d, parameter)
}

// Fits returns the SQL condition that the key of a deleted record is of this kind; `d` is the
// record's alias in the SQL.
func (k Kind) Fits(d string) string {
	switch k {
	case "integer":
		return d + ".primary_key_text IS NULL"
	case "uuid":
		return fmt.Sprintf("COALESCE(%s.primary_key_text ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$', false)", d)
	}
	return d + ".primary_key_text IS NOT NULL"
}

// Key is the column of a parent table whose values deleted records contain.
type Key struct {
	Column string
	Kind
}

// Names of the functions that the triggers on parents call.
const (
	TrackFunction    = "insert_into_loose_foreign_keys_deleted_records"
	OverrideFunction = "insert_into_loose_foreign_keys_deleted_records_override_table"
)

// Key looks up the key of a parent table. It returns an error if the table has no suitable
// key, or if the trigger on the table records another column.
func (d Database) Key(ctx context.Context, parent Table) (k Key, err error) {
	var args []byte
	var overrides bool
	err = d.Catalog().QueryRow(ctx, `
		SELECT a.attname::text, `+KindSQL+`, g.tgargs, COALESCE(g.tgfoid = to_regprocedure($3), false)
		FROM pg_class c
		JOIN LATERAL (`+KeyColumnOf("c.oid")+`) k (name) ON k.name IS NOT NULL
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = k.name
		JOIN pg_type t ON t.oid = a.atttypid
		LEFT JOIN pg_trigger g ON g.tgrelid = c.oid AND g.tgfoid IN (to_regprocedure($2), to_regprocedure($3))
		WHERE c.oid = to_regclass($1) LIMIT 1`, parent.Quoted(), d.Function(TrackFunction), d.Function(OverrideFunction)).
		Scan(&k.Column, &k.Kind, &args, &overrides)
	if errors.Is(err, pgx.ErrNoRows) {
		return k, fmt.Errorf("table %s has no key of a single column of an integer type, uuid, text or varchar", parent)
	}
	if err != nil {
		return k, fmt.Errorf("looking up the key of %s: %w", parent, err)
	}
	if recorded := RecordedColumn(args, overrides); args != nil && recorded != k.Column {
		return k, fmt.Errorf("the trigger on %s records the column %s, but its key is %s: run loosefk track %[1]s", parent, recorded, k.Column)
	}
	return k, nil
}

// RecordedColumn returns the column whose values a trigger records. `args` are the
// trigger's arguments; `overrides` says that the first argument is a table name.
func RecordedColumn(args []byte, overrides bool) string {
	list := bytes.Split(bytes.TrimSuffix(args, []byte{0}), []byte{0})
	if overrides {
		list = list[min(1, len(list)):]
	}
	if len(list) == 0 || len(list[0]) == 0 {
		return "id"
	}
	return string(list[0])
}

func KeyColumnOf(relation string) string {
	return strings.ReplaceAll(keyColumnSQL, "{relation}", relation)
}

// KindSQL is an SQL expression for the Kind of the type t, a row of pg_type. It is NULL if
// a key can't have the type.
const KindSQL = `CASE CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
		WHEN 'int2'::regtype THEN 'integer' WHEN 'int4'::regtype THEN 'integer' WHEN 'int8'::regtype THEN 'integer'
		WHEN 'uuid'::regtype THEN 'uuid' WHEN 'text'::regtype THEN 'text' WHEN 'varchar'::regtype THEN 'text' END`

// keyColumnSQL is an SQL query for the name of the key column of the table {relation}: the
// column whose values deleted records contain. It returns the first of these columns whose
// type is an integer type, uuid, text or varchar: a unique column id; the only column of
// the primary key, not counting the partition columns of a partitioned table; a column id,
// if there is no primary key. It returns no row if there is no such column.
const keyColumnSQL = `
        SELECT k.attname::text
        FROM (
            SELECT a.attname,
                a.attname = 'id' AND EXISTS (
                    SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class r ON r.oid = i.indrelid
                    WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                        AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) AND (i.indnkeyatts = 1 OR r.relkind = 'p')) AS is_id,
                (SELECT i.indkey[0:i.indnkeyatts - 1]::int2[] FROM pg_catalog.pg_index i
                    WHERE i.indrelid = a.attrelid AND i.indisprimary) AS columns,
                (SELECT d.partattrs::int2[] FROM pg_catalog.pg_partitioned_table d WHERE d.partrelid = a.attrelid) AS partition,
                a.attnum
            FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
            WHERE a.attrelid = {relation} AND a.attnum > 0 AND NOT a.attisdropped
                AND CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END IN (
                    'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype, 'text'::regtype, 'varchar'::regtype)) k
        WHERE k.is_id OR k.Columns IS NULL AND k.attname = 'id' OR k.attnum = ANY (k.Columns) AND NOT EXISTS (
            SELECT FROM unnest(k.Columns) o (num) WHERE o.num <> k.attnum AND o.num <> ALL (COALESCE(k.partition, '{}')))
        ORDER BY k.is_id DESC, k.attnum = ANY (COALESCE(k.partition, '{}'))
        LIMIT 1`
