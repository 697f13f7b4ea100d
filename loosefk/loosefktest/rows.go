package loosefktest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
)

// factory inserts rows with made-up values, and remembers them so that they can be removed.
type factory struct {
	db   loosefk.DB
	made []row
}

// row is a row that the factory made.
type row struct {
	table string // with its schema
	oid   uint32 // oid of the partition
	tid   string // its ctid, as text
	is    string // an SQL expression whose value identifies the row
	what  string // the value of that expression for this row
}

// maxDepth limits a chain of foreign keys along which the factory inserts rows, each of
// which refers to the next.
const maxDepth = 20

// insert inserts a row. `values` are the values of some columns, in PostgreSQL's text form.
// Other columns get their default or NULL or, if they need a value, a made-up one. If the
// row must refer to another table by a foreign key, insert first inserts a row into that
// table and takes the key from there.
func (f *factory) insert(ctx context.Context, table string, values map[string]*string) (row, error) {
	return f.insertAt(ctx, table, values, 0)
}

func (f *factory) insertAt(ctx context.Context, table string, given map[string]*string, depth int) (row, error) {
	if depth > maxDepth {
		return row{}, fmt.Errorf("making a row of %s: its foreign keys go on for more than %d tables", table, maxDepth)
	}
	columns, err := describe(ctx, f.db, table)
	if err != nil {
		return row{}, fmt.Errorf("looking up the columns of %s: %w", table, err)
	}
	values := map[string]*string{}
	for name, v := range given {
		values[name] = v
	}
	if err := f.references(ctx, table, columns, values, depth); err != nil {
		return row{}, err
	}
	var names, places []string
	var args []any
	for _, c := range columns {
		v, ok := values[c.Name]
		if !ok && c.NotNull && !c.HasDefault {
			made, err := c.makeUp()
			if err != nil {
				return row{}, fmt.Errorf("making a row of %s: %w", table, err)
			}
			v, ok = &made, true
		}
		if ok {
			args = append(args, v)
			names = append(names, quote(c.Name))
			places = append(places, fmt.Sprintf("CAST($%d::text AS %s)", len(args), c.Type))
		}
	}
	what := fmt.Sprintf("(%s) VALUES (%s)", strings.Join(names, ", "), strings.Join(places, ", "))
	if len(names) == 0 {
		what = "DEFAULT VALUES"
	}
	key, err := primaryKey(ctx, f.db, table)
	if err != nil {
		return row{}, fmt.Errorf("looking up the key of %s: %w", table, err)
	}
	r := row{table: table, is: keyText(key)}
	if len(key) == 0 { // another row may get its ctid later, but not with its xmin
		r.is = "ROW(tableoid, ctid, xmin)::text"
	}
	err = f.db.QueryRow(ctx, fmt.Sprintf("INSERT INTO %s %s RETURNING tableoid, ctid::text, %s", quoted(table), what, r.is), args...).Scan(&r.oid, &r.tid, &r.what)
	if err != nil {
		return row{}, fmt.Errorf("making a row of %s: %w", table, err)
	}
	f.made = append(f.made, r)
	return r, nil
}

// references inserts the rows to which the foreign keys of a new row must refer, and adds
// the values of the foreign keys' columns to `values`.
func (f *factory) references(ctx context.Context, table string, columns []column, values map[string]*string, depth int) error {
	keys, err := foreignKeys(ctx, f.db, table)
	if err != nil {
		return fmt.Errorf("looking up the foreign keys of %s: %w", table, err)
	}
	for _, k := range keys {
		needed := slices.ContainsFunc(columns, func(c column) bool {
			_, has := values[c.Name]
			return slices.Contains(k.Columns, c.Name) && c.NotNull && !c.HasDefault && !has
		})
		if !needed {
			continue
		}
		target := map[string]*string{}
		for i, c := range k.Columns {
			if v, ok := values[c]; ok {
				target[k.TargetColumns[i]] = v
			}
		}
		r, err := f.insertAt(ctx, k.Target, target, depth+1)
		if err != nil {
			return err
		}
		for i, c := range k.Columns {
			v, err := r.text(ctx, f.db, k.TargetColumns[i])
			if err != nil {
				return err
			}
			values[c] = &v
		}
	}
	return nil
}

// text returns the value of one of the row's columns as text.
func (r row) text(ctx context.Context, db loosefk.DB, column string) (v string, err error) {
	err = db.QueryRow(ctx, fmt.Sprintf("SELECT %s::text FROM %s WHERE tableoid = $1 AND ctid = $2::text::tid", quote(column), quoted(r.table)), r.oid, r.tid).Scan(&v)
	if err != nil {
		return "", fmt.Errorf("reading column %s of the row made in %s: %w", column, r.table, err)
	}
	return v, nil
}

// remove deletes the rows that the factory has inserted, the last one first. It leaves out
// rows that no longer exist, and rows of tables without a primary key that were changed
// since.
func (f *factory) remove(ctx context.Context) error {
	var failed []error
	for _, r := range slices.Backward(f.made) {
		_, err := f.db.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE %s = $1", quoted(r.table), r.is), r.what)
		failed = append(failed, err)
	}
	f.made = nil
	return errors.Join(failed...)
}

// column describes a column of a table.
type column struct {
	Name, Type          string
	Base                string // the type, or a domain's base type
	Category, Kind      string // of pg_type
	NotNull, HasDefault bool
	Length              int    // of a text; 0: any
	Label               string // the first label of an enumeration type
	Bound               string // bound of the first list partition by this column
}

func describe(ctx context.Context, db loosefk.DB, table string) ([]column, error) {
	rows, err := db.Query(ctx, `
		SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
			format_type(COALESCE(NULLIF(t.typbasetype, 0), a.atttypid), NULL) AS base, t.typcategory::text AS category, t.typtype::text AS kind,
			a.attnotnull AS not_null, a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' AS has_default,
			CASE WHEN COALESCE(NULLIF(t.typbasetype, 0), a.atttypid) IN ('varchar'::regtype, 'bpchar'::regtype)
				THEN GREATEST(CASE t.typbasetype WHEN 0 THEN a.atttypmod ELSE t.typtypmod END - 4, 0) ELSE 0 END AS length,
			COALESCE((SELECT enumlabel FROM pg_enum WHERE enumtypid = a.atttypid ORDER BY enumsortorder LIMIT 1)::text, '') AS label,
			COALESCE((SELECT pg_get_expr(k.relpartbound, k.oid) FROM pg_partitioned_table p
				JOIN pg_inherits i ON i.inhparent = p.partrelid JOIN pg_class k ON k.oid = i.inhrelid
				WHERE p.partrelid = a.attrelid AND p.partstrat = 'l' AND p.partattrs[0] = a.attnum
					AND pg_get_expr(k.relpartbound, k.oid) <> 'DEFAULT' ORDER BY k.oid LIMIT 1), '') AS bound
		FROM pg_attribute a
		JOIN pg_type t ON t.oid = a.atttypid
		WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, quoted(table))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[column])
}

// listBound matches the first value in the bound of a list partition.
var listBound = regexp.MustCompile(`^FOR VALUES IN \('?([^',)]*)`)

// makeUp returns a value for the column in PostgreSQL's text form. Where the type allows,
// it is random, so that most likely no other row has it.
func (c column) makeUp() (string, error) {
	if m := listBound.FindStringSubmatch(c.Bound); m != nil {
		return m[1], nil
	}
	switch {
	case c.Kind == "e":
		return c.Label, nil
	case c.Base == "smallint":
		return fmt.Sprint(1 + mathrand.N(32766)), nil
	case c.Base == "uuid":
		b := make([]byte, 16)
		rand.Read(b) //nolint:errcheck // it never fails
		return fmt.Sprintf("%x", b), nil
	case c.Base == "json" || c.Base == "jsonb":
		return "{}", nil
	case c.Base == "bytea":
		return rand.Text(), nil
	}
	switch c.Category {
	case "N":
		return fmt.Sprint(1_000_000_000 + mathrand.N(1_000_000_000)), nil
	case "S":
		text := "loosefktest-" + strings.ToLower(rand.Text())
		if c.Length > 0 && c.Length < len(text) {
			text = text[len(text)-c.Length:]
		}
		return text, nil
	case "B":
		return "false", nil
	case "D":
		return "now", nil
	case "T":
		return "0", nil
	case "A":
		return "{}", nil
	case "R":
		return "empty", nil
	case "I":
		return "127.0.0.1", nil
	}
	return "", fmt.Errorf("column %s needs a value, and none can be made up for the type %s", c.Name, c.Type)
}

// foreignKey is a foreign key that PostgreSQL enforces.
type foreignKey struct {
	Columns       []string
	Target        string // with its schema
	TargetColumns []string
}

func foreignKeys(ctx context.Context, db loosefk.DB, table string) ([]foreignKey, error) {
	rows, err := db.Query(ctx, `
		SELECT ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS u (num, place)
				JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.num ORDER BY u.place) AS columns,
			n.nspname || '.' || c.relname AS target,
			ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS u (num, place)
				JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.num ORDER BY u.place) AS target_columns
		FROM pg_constraint k
		JOIN pg_class c ON c.oid = k.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE k.contype = 'f' AND k.conrelid = $1::regclass AND NOT c.relispartition ORDER BY k.conname`, quoted(table))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[foreignKey])
}

func primaryKey(ctx context.Context, db loosefk.DB, table string) ([]string, error) {
	rows, err := db.Query(ctx, `
		SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
		WHERE i.indrelid = $1::regclass AND i.indisprimary ORDER BY 1`, quoted(table))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// keyText returns an SQL expression that joins the columns of a key into one text.
func keyText(columns []string) string {
	if len(columns) == 0 {
		return "''"
	}
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = quote(c)
	}
	return "ROW(" + strings.Join(list, ", ") + ")::text"
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// quoted returns a table's name "schema.name" with both parts quoted for SQL.
func quoted(table string) string {
	return pgx.Identifier(strings.SplitN(table, ".", 2)).Sanitize()
}
