package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// notDumped are tables whose rows mean nothing in another database: the running processes, sums that are measured anew, the
// names of tables that loose foreign keys are about to drop, and the versions of the schema,
// which migrations write.
var notDumped = []string{"replicas", "servers", "disk_space", "usage_state", "usage_repositories", "usage_namespaces", "usage_registry",
	"detached_partitions", "goose_db_version", "goose_stats_version"}

// settingsTable has rows about the database itself, which a restore doesn't overwrite. Its
// other rows are part of a backup.
const settingsTable = "settings"

// sessionSettings are set before values are converted to text and back, so that both
// conversions agree whatever the defaults of the two servers are.
const sessionSettings = `
	SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC';
	SET bytea_output = 'hex'; SET extra_float_digits = 1`

// source is a connection to a database that is dumped, and what the catalog says about its
// tables.
type source struct {
	conn   *pgx.Conn
	tables []Table // without rows and files; a table comes after those that it references
}

// readSource reads from the catalog which tables there are. The caller has locked the schema, so that
// no migration changes the tables.
func readSource(ctx context.Context, conn *pgx.Conn) (*source, error) {
	s := &source{conn: conn}
	if _, err := conn.Exec(ctx, sessionSettings); err != nil {
		return nil, fmt.Errorf("setting up the session: %w", err)
	}
	rows, err := conn.Query(ctx, `
		SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
			AND c.relpersistence = 'p' AND NOT c.relname = ANY ($1)
			AND c.relname !~ '^loose_foreign_keys_deleted_records_[0-9]+$' -- a detached partition
		GROUP BY c.relname ORDER BY c.relname`, notDumped)
	if err != nil {
		return nil, fmt.Errorf("listing the tables: %w", err)
	}
	s.tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
		return t, row.Scan(&t.Name, &t.Columns)
	})
	if err != nil {
		return nil, fmt.Errorf("listing the tables: %w", err)
	}
	return s, s.sort(ctx)
}

// sort sorts the tables so that each comes after those that its foreign keys reference.
func (s *source) sort(ctx context.Context) error {
	rows, err := s.conn.Query(ctx, `
		SELECT c.relname::text, f.relname::text FROM pg_constraint k
		JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class f ON f.oid = k.confrelid
		WHERE k.contype = 'f' AND k.conparentid = 0 AND c.oid <> f.oid AND c.relnamespace = current_schema()::regnamespace`)
	if err != nil {
		return fmt.Errorf("listing the foreign keys: %w", err)
	}
	needs := make(map[string][]string)
	var from, to string
	if _, err := pgx.ForEachRow(rows, []any{&from, &to}, func() error {
		needs[from] = append(needs[from], to)
		return nil
	}); err != nil {
		return fmt.Errorf("listing the foreign keys: %w", err)
	}
	byName := make(map[string]Table)
	for _, t := range s.tables {
		byName[t.Name] = t
	}
	var sorted []Table
	done := make(map[string]bool)
	var visit func(name string)
	visit = func(name string) {
		t, ok := byName[name]
		if !ok || done[name] {
			return
		}
		done[name] = true
		for _, other := range needs[name] {
			visit(other)
		}
		sorted = append(sorted, t)
	}
	for _, t := range s.tables {
		visit(t.Name)
	}
	s.tables = sorted
	return nil
}

// begin begins the transaction with the snapshot that is dumped. It first locks the tables
// against changes of their definition, as LOCK TABLE takes no snapshot.
func (s *source) begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("beginning the snapshot: %w", err)
	}
	var names []string
	for _, t := range s.tables {
		names = append(names, pgx.Identifier{t.Name}.Sanitize())
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+strings.Join(names, ", ")+" IN ACCESS SHARE MODE"); err != nil {
		return nil, errors.Join(fmt.Errorf("locking the tables against changes of their definition: %w", err), tx.Rollback(ctx))
	}
	return tx, nil
}

// dumper writes a part of a database.
type dumper struct {
	t    Target
	dir  string
	told func(lines, bytes int64)
}

// part dumps those of the source's tables for which `has` returns true, in the transaction tx.
func (d dumper) part(ctx context.Context, tx pgx.Tx, s *source, name string, has func(table string) bool) (p Part, err error) {
	if err := tx.QueryRow(ctx, "SELECT current_setting('server_version')").Scan(&p.Server); err != nil {
		return p, fmt.Errorf("asking for PostgreSQL's version: %w", err)
	}
	for _, t := range s.tables {
		if !has(t.Name) {
			continue
		}
		if err := d.table(ctx, tx, name, &t); err != nil {
			return p, fmt.Errorf("writing table %s: %w", t.Name, err)
		}
		p.Tables = append(p.Tables, t)
	}
	if p.Partitions, err = partitionsOf(ctx, tx, has); err != nil {
		return p, err
	}
	// Sequences aren't part of a snapshot. Their values are read after the rows, so that no
	// row of the snapshot has a higher number.
	p.Sequences, err = sequencesOf(ctx, tx, has)
	return p, err
}

func (d dumper) table(ctx context.Context, tx pgx.Tx, part string, t *Table) error {
	w := newChunkWriter(ctx, d.t, d.dir, part+"/"+t.Name, d.told)
	if _, err := tx.Conn().PgConn().CopyTo(ctx, w, copyOut(*t)); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	t.Rows, t.Files = w.lines, w.files
	return nil
}

// columns returns the quoted names of a table's columns, as a list.
func columns(t Table) string {
	var quoted []string
	for _, c := range t.Columns {
		quoted = append(quoted, pgx.Identifier{c}.Sanitize())
	}
	return strings.Join(quoted, ", ")
}

// copyOut returns the statement that dumps a table.
func copyOut(t Table) string {
	where := ""
	if t.Name == settingsTable {
		where = " WHERE name NOT IN ('history', 'partitions', 'schema_hash', 'routines_version', 'restoring', 'moved', 'moving_blobs')"
	}
	list, name := columns(t), pgx.Identifier{t.Name}.Sanitize()
	return "COPY (SELECT " + list + " FROM " + name + where + ") TO STDOUT"
}

// partitionsOf lists the partitions of the tables that are partitioned by lists or ranges, and
// so get new partitions as time passes.
func partitionsOf(ctx context.Context, tx pgx.Tx, has func(table string) bool) ([]Partition, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.relname::text, CASE WHEN c.relnamespace = p.relnamespace THEN '' ELSE n.nspname::text END, c.relname::text,
			pg_get_expr(c.relpartbound, c.oid)
		FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent JOIN pg_partitioned_table t ON t.partrelid = p.oid
		JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE t.partstrat <> 'h' AND NOT i.inhdetachpending AND p.relnamespace = current_schema()::regnamespace
		ORDER BY 1, 3`)
	if err != nil {
		return nil, fmt.Errorf("listing partitions: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
	if err != nil {
		return nil, fmt.Errorf("listing partitions: %w", err)
	}
	return slices.DeleteFunc(list, func(p Partition) bool { return !has(p.Parent) }), nil
}

// sequencesOf returns the state of the sequences of tables for which `has` returns true.
func sequencesOf(ctx context.Context, tx pgx.Tx, has func(table string) bool) ([]Sequence, error) {
	rows, err := tx.Query(ctx, `
		SELECT s.relname::text, COALESCE((SELECT t.relname::text FROM pg_depend d JOIN pg_class t ON t.oid = d.refobjid
			WHERE d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.refclassid = 'pg_class'::regclass
				AND d.deptype IN ('a', 'i') LIMIT 1), '')
		FROM pg_class s WHERE s.relkind = 'S' AND s.relnamespace = current_schema()::regnamespace ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("listing sequences: %w", err)
	}
	var list []Sequence
	var name, owner string
	if _, err := pgx.ForEachRow(rows, []any{&name, &owner}, func() error {
		if has(owner) {
			list = append(list, Sequence{Name: name})
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("listing sequences: %w", err)
	}
	for i, s := range list {
		quoted := pgx.Identifier{s.Name}.Sanitize()
		if err := tx.QueryRow(ctx, "SELECT last_value, is_called FROM "+quoted).Scan(&list[i].Value, &list[i].Called); err != nil {
			return nil, fmt.Errorf("reading sequence %s: %w", s.Name, err)
		}
	}
	return list, nil
}

// isStats and isMain say which part of a backup has a table. A table of notDumped is in none.
func isStats(table string) bool {
	return slices.Contains(db.StatsTables(), table) && !slices.Contains(notDumped, table)
}

func isMain(table string) bool {
	return !slices.Contains(db.StatsTables(), table) && !slices.Contains(notDumped, table)
}

// takenAt returns the time of the transaction's snapshot, by the server's clock.
func takenAt(ctx context.Context, tx pgx.Tx) (t time.Time, err error) {
	if err := tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&t); err != nil {
		return t, fmt.Errorf("beginning the snapshot: %w", err)
	}
	return t.UTC(), nil
}
