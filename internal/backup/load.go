package backup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
)

// loader loads parts of a backup.
type loader struct {
	t    Target
	dir  string
	told *teller
	// again says that the rows of an earlier attempt are to be replaced.
	again bool
	room  func() error // see RestoreOptions.Room
}

// roomForRows returns an error if there is no room for rows.
func roomForRows(room func() error) error {
	if room == nil {
		return nil
	}
	if err := room(); err != nil {
		return fmt.Errorf("there is no room for the rows: %w; make room there and run the command again: it goes on", err)
	}
	return nil
}

// load replaces the rows of all tables of the parts, and calls `last`, in one transaction.
func (l loader) load(ctx context.Context, conn *pgx.Conn, parts []Part, last func(tx pgx.Tx) error) error {
	if _, err := conn.Exec(ctx, sessionSettings); err != nil {
		return fmt.Errorf("setting up the session: %w", err)
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		triggers, err := disableTriggers(ctx, tx)
		if err != nil {
			return err
		}
		if err := empty(ctx, tx, parts, l.again); err != nil {
			return err
		}
		if err := skipForeignKeys(ctx, tx, true); err != nil {
			return err
		}
		for _, p := range parts {
			if err := l.part(ctx, tx, p); err != nil {
				return err
			}
		}
		if err := skipForeignKeys(ctx, tx, false); err != nil {
			return err
		}
		if last != nil {
			if err := last(tx); err != nil {
				return err
			}
		}
		// Deferred foreign keys are checked now, since a table can't be altered before.
		if _, err := tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
			return fmt.Errorf("checking foreign keys: %w", err)
		}
		return enableTriggers(ctx, tx, triggers)
	})
}

// skipForeignKeys lets the transaction insert rows without checking foreign keys, if the role may
// do that, as a superuser may. The checks would take most of the time of a load, and the rows
// satisfied them in the snapshot from which they come. Where the role may not, PostgreSQL
// checks each row.
func skipForeignKeys(ctx context.Context, tx pgx.Tx, skip bool) error {
	role := "origin"
	if skip {
		role = "replica"
	}
	_, err := tx.Exec(ctx, `
		SELECT set_config('session_replication_role', $1, true)
		WHERE has_parameter_privilege('session_replication_role', 'SET')`, role)
	if err != nil {
		return fmt.Errorf("skipping the checks of foreign keys: %w", err)
	}
	return nil
}

// disableTriggers disables the triggers that migrations have installed, since the rows
// that they would write are in the backup too. It returns the tables that have any. It locks
// them, so that no server writes into them meanwhile.
func disableTriggers(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT format('%I.%I', n.nspname, c.relname) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE NOT t.tgisinternal AND t.tgenabled = 'O' AND c.relkind IN ('r', 'p') AND n.nspname IN (current_schema(), 'partitions')
		ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("listing triggers: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("listing triggers: %w", err)
	}
	for _, table := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE ONLY "+table+" DISABLE TRIGGER USER"); err != nil {
			return nil, fmt.Errorf("disabling triggers: %w", err)
		}
	}
	return tables, nil
}

func enableTriggers(ctx context.Context, tx pgx.Tx, tables []string) error {
	for _, table := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE ONLY "+table+" ENABLE TRIGGER USER"); err != nil {
			return fmt.Errorf("enabling triggers: %w", err)
		}
	}
	return nil
}

// empty deletes the rows that migrations have inserted, except those that describe the
// database itself. Unless `again` is set, it refuses tables with content: a server may have been
// started meanwhile.
func empty(ctx context.Context, tx pgx.Tx, parts []Part, again bool) error {
	var names []string
	settings := false
	for _, p := range parts {
		for _, t := range p.Tables {
			if t.Name == settingsTable {
				settings = true
				continue
			}
			names = append(names, pgx.Identifier{t.Name}.Sanitize())
		}
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+strings.Join(names, ", ")+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		return fmt.Errorf("locking the tables: %w", err)
	}
	if settings { // the metadata decides; the statistics may be loaded from an earlier attempt
		for _, table := range contentTables {
			some, err := hasRows(ctx, tx, table)
			if err != nil {
				return err
			}
			if some && !isStats(table) && !again {
				return fmt.Errorf("table %s has got rows since the restore began, so a server is running: %w", table, ErrNotEmpty)
			}
		}
		if _, err := tx.Exec(ctx, "DELETE FROM settings WHERE name NOT IN ('history', 'partitions')"); err != nil {
			return fmt.Errorf("deleting the defaults of settings: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, "TRUNCATE "+strings.Join(names, ", ")); err != nil {
		return fmt.Errorf("deleting the rows of migrations: %w", err)
	}
	return nil
}

func (l loader) part(ctx context.Context, tx pgx.Tx, p Part) error {
	for _, t := range p.Partitions {
		if err := makePartition(ctx, tx, t); err != nil {
			return err
		}
	}
	for _, t := range p.Tables {
		if err := l.table(ctx, tx, t); err != nil {
			return fmt.Errorf("loading table %s: %w", t.Name, err)
		}
	}
	for _, s := range p.Sequences {
		quoted := pgx.Identifier{s.Name}.Sanitize()
		if _, err := tx.Exec(ctx, "SELECT setval($1::regclass, $2, $3)", quoted, s.Value, s.Called); err != nil {
			return fmt.Errorf("setting sequence %s: %w", s.Name, err)
		}
	}
	return nil
}

// makePartition creates a partition that the migrations haven't created.
func makePartition(ctx context.Context, tx pgx.Tx, p Partition) error {
	name, parent := pgx.Identifier{p.Name}.Sanitize(), pgx.Identifier{p.Parent}.Sanitize()
	if p.Schema != "" {
		name = pgx.Identifier{p.Schema, p.Name}.Sanitize()
	}
	bound := p.Bound
	for _, sql := range []string{
		"CREATE TABLE IF NOT EXISTS " + name + " PARTITION OF " + parent + " " + bound,
		"REVOKE ALL ON " + name + " FROM PUBLIC",
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("creating partition %s: %w", p.Name, err)
		}
	}
	return nil
}

func (l loader) table(ctx context.Context, tx pgx.Tx, t Table) error {
	r := newChunkReader(ctx, l.t, l.dir, t.Files)
	defer r.Close()
	list, name := columns(t), pgx.Identifier{t.Name}.Sanitize()
	var full atomic.Pointer[error] // PostgreSQL's error has only the text of the reader's
	rows := &blob.RoomReader{Reader: tellingReader{r, l.told}, Room: func() error {
		err := roomForRows(l.room)
		if err != nil {
			full.Store(&err)
		}
		return err
	}}
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, rows, "COPY "+name+" ("+list+") FROM STDIN")
	if err != nil {
		if reason := full.Load(); reason != nil {
			return *reason
		}
		return err
	}
	if tag.RowsAffected() != t.Rows {
		return fmt.Errorf("%w: table %s has %d rows instead of %d", ErrDamaged, t.Name, tag.RowsAffected(), t.Rows)
	}
	return nil
}

// tellingReader tells how many lines were read.
type tellingReader struct {
	r    io.Reader
	told *teller
}

func (t tellingReader) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.told.rows(int64(bytes.Count(p[:n], []byte{'\n'})), int64(n))
	return n, err
}
