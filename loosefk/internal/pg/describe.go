package pg

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Column is a column as a database describes it.
type Column struct {
	Type    string
	Equals  string // the equality operator for its values, qualified by a schema
	Kind    Kind   // "" if no key can have the type
	NotNull bool
}

// TableInfo is a table as a database describes it.
type TableInfo struct {
	Kind    string // of pg_class: r, p, v, …
	Columns map[string]Column
	indexes []index
	Key     string // the column that deleted records name, or ""
}

// index is a valid B-tree index of a table.
type index struct {
	columns   []string // its columns in order; "" stands for an expression
	keys      int      // number of its columns
	unique    bool
	predicate string // of a partial index
}

// Describe returns the descriptions of tables, their columns and their valid B-tree
// indexes, from PostgreSQL's system catalog. It leaves out tables that don't exist.
func Describe(ctx context.Context, db DB, names []Table) (map[Table]TableInfo, error) {
	schemas, relations := make([]string, len(names)), make([]string, len(names))
	for i, n := range names {
		schemas[i], relations[i] = n.Schema, n.Name
	}
	found := map[Table]TableInfo{}
	rows, err := db.Query(ctx, `
		SELECT n.nspname, c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod),
			COALESCE(`+KindSQL+`, ''), a.attnotnull, COALESCE((`+KeyColumnOf("c.oid")+`), ''),
			COALESCE((SELECT o.nspname FROM pg_type b JOIN pg_namespace o ON o.oid = b.typnamespace
				WHERE b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END AND b.typtype = 'b' AND b.typcategory <> 'A'), 'pg_catalog')
		FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[])) AS w (schema, name)
		JOIN pg_namespace n ON n.nspname = w.schema
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
		LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		LEFT JOIN pg_type t ON t.oid = a.atttypid`, schemas, relations)
	if err != nil {
		return nil, err
	}
	var n Table
	var kind, keyColumn, operators string
	var name, typ *string
	var columnKind Kind
	var notNull *bool
	_, err = pgx.ForEachRow(rows, []any{&n.Schema, &n.Name, &kind, &name, &typ, &columnKind, &notNull, &keyColumn, &operators}, func() error {
		t, ok := found[n]
		if !ok {
			t = TableInfo{Kind: kind, Columns: map[string]Column{}, Key: keyColumn}
		}
		if name != nil {
			t.Columns[*name] = Column{*typ, "OPERATOR(" + Quote(operators) + ".=)", columnKind, *notNull}
		}
		found[n] = t
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, describeIndexes(ctx, db, schemas, relations, found)
}

func describeIndexes(ctx context.Context, db DB, schemas, relations []string, found map[Table]TableInfo) error {
	rows, err := db.Query(ctx, `
		SELECT n.nspname, c.relname, i.indisunique, i.indnkeyatts, COALESCE(pg_get_expr(i.indpred, i.indrelid), ''),
			ARRAY(SELECT COALESCE(a.attname::text, '')
				FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
				LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
				WHERE k.place <= i.indnkeyatts ORDER BY k.place)
		FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[])) AS w (schema, name)
		JOIN pg_namespace n ON n.nspname = w.schema
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
		JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indisready
		JOIN pg_class x ON x.oid = i.indexrelid
		JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'`, schemas, relations)
	if err != nil {
		return err
	}
	var n Table
	var x index
	_, err = pgx.ForEachRow(rows, []any{&n.Schema, &n.Name, &x.unique, &x.keys, &x.predicate, &x.columns}, func() error {
		if t, ok := found[n]; ok {
			t.indexes = append(t.indexes, index{slices.Clone(x.columns), x.keys, x.unique, x.predicate})
			found[n] = t
		}
		return nil
	})
	return err
}

// beginsWith returns whether a query can find rows by these columns through the index.
func (x index) beginsWith(columns ...string) bool {
	if len(x.columns) < len(columns) || !slices.Equal(x.columns[:len(columns)], columns) {
		return false
	}
	// A partial index is good enough if it leaves out only rows whose first column is NULL,
	// since no query of the worker looks for rows by NULL.
	p := strings.Trim(x.predicate, "()")
	return p == "" || p == columns[0]+" IS NOT NULL" || p == Quote(columns[0])+" IS NOT NULL"
}

// Indexed returns whether the table has an index by which a query finds rows by these columns.
func (t TableInfo) Indexed(columns ...string) bool {
	return slices.ContainsFunc(t.indexes, func(x index) bool { return x.beginsWith(columns...) })
}

// HasKey returns whether a unique index covers the key alone. For a partitioned table the
// index may have further columns, since PostgreSQL requires it to contain the partition
// columns.
func (t TableInfo) HasKey() bool {
	return slices.ContainsFunc(t.indexes, func(x index) bool {
		return x.unique && x.predicate == "" && (x.keys == 1 || t.Kind == "p") && slices.Contains(x.columns, t.Key)
	})
}
