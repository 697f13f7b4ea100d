package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB runs SQL: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Database is a connection pool of a database, with the schema of those tables that are
// named without a schema.
type Database struct {
	Name   string // in errors
	Pool   *pgxpool.Pool
	schema string
}

// New returns a database. An empty schema stands for public.
func New(name string, pool *pgxpool.Pool, schema string) Database {
	return Database{name, pool, cmp.Or(schema, "public")}
}

// Schema returns the schema of the table of deleted records and of tables named without one.
func (d Database) Schema() string { return d.schema }

// Table returns the table of the given name, which is "name" or "schema.name".
func (d Database) Table(name string) Table {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return Table{schema, table}
	}
	return Table{d.schema, name}
}

// Plain returns a table's name as definitions write it: without the schema if that is this
// database's schema.
func (d Database) Plain(t Table) string {
	if t.Schema == d.schema {
		return t.Name
	}
	return t.String()
}

// Records returns the name of the table of deleted records, quoted.
func (d Database) Records() string { return d.Table(RecordsTable).Quoted() }

// Function returns the name of an SQL function without arguments, such as a trigger function,
// with its schema, quoted and with "()", as to_regprocedure needs it.
func (d Database) Function(name string) string { return d.Table(name).Quoted() + "()" }

// Catalog returns a DB for reading the system catalog. It runs each statement in a
// transaction of its own, whose search path contains only pg_catalog.
func (d Database) Catalog() DB { return pinned{d.Pool} }

// Root returns the partitioned table to which a table belongs, or the table itself.
func (d Database) Root(ctx context.Context, t Table) (Table, error) {
	root := t
	err := d.Catalog().QueryRow(ctx, `
		SELECT n.nspname, r.relname FROM pg_class c
		JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
		JOIN pg_namespace n ON n.oid = r.relnamespace
		WHERE c.oid = to_regclass($1) AND c.relispartition`, t.Quoted()).Scan(&root.Schema, &root.Name)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return root, err
}

// Alive returns those of the keys that exist as keys of rows in a parent table.
func (d Database) Alive(ctx context.Context, parent Table, keys []string) ([]string, error) {
	key, err := d.Key(ctx, parent)
	if err != nil {
		return nil, err
	}
	return Collect(ctx, d.Pool, fmt.Sprintf("SELECT %[1]s::text FROM %[2]s WHERE %[1]s = ANY (%[3]s)", Quote(key.Column), parent.Quoted(), key.List("$1")),
		[]any{keys}, pgx.RowTo[string])
}

// Tracked returns those of the parents that have an enabled trigger which records
// deletions.
func (d Database) Tracked(ctx context.Context, parents []Table) ([]Table, error) {
	names := make([]string, len(parents))
	for i, p := range parents {
		names[i] = p.Quoted()
	}
	rows, err := d.Catalog().Query(ctx, `
		SELECT w.place - 1 FROM unnest($1::text[]) WITH ORDINALITY AS w (name, place)
		WHERE EXISTS (
			SELECT FROM pg_trigger t
			WHERE t.tgrelid = to_regclass(w.name) AND t.tgenabled <> 'D'
				AND t.tgfoid IN (to_regprocedure($2), to_regprocedure($3)))
		ORDER BY 1`, names, d.Table(TrackFunction).Quoted()+"()", d.Table(OverrideFunction).Quoted()+"()")
	if err != nil {
		return nil, err
	}
	places, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, err
	}
	list := make([]Table, len(places))
	for i, p := range places {
		list[i] = parents[p]
	}
	return list, nil
}

// AnyPending returns whether a partition of deleted records contains a pending record.
func (d Database) AnyPending(ctx context.Context, db DB, partition string) (pending bool, err error) {
	err = db.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE status = %d)",
		d.Table(partition).Quoted(), StatusPending)).Scan(&pending)
	return pending, err
}

// Collect runs a query and returns its rows. The query fails if row security would hide
// rows, because the caller would take hidden rows for deleted ones.
func Collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args []any, row pgx.RowToFunc[T]) (list []T, err error) {
	b := new(pgx.Batch)
	b.Queue(PinPath)
	b.Queue("SELECT set_config('row_security', 'off', true)")
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		list, err = pgx.CollectRows(rows, row)
		return err
	})
	return list, pool.SendBatch(ctx, b).Close()
}

// Without returns the keys that are not among others.
func Without(keys, others []string) []string {
	if len(others) == 0 {
		return keys
	}
	skip := make(map[string]bool, len(others))
	for _, key := range others {
		skip[key] = true
	}
	var list []string
	for _, key := range keys {
		if !skip[key] {
			list = append(list, key)
		}
	}
	return list
}
