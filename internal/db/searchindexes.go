package db

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
)

// searchVersion is the number of the migration that makes the indexes of searchIndexes.
const searchVersion = 2

// searchIndexes are indexes for the search over all repositories: tags by the beginning of their
// names, manifests by that of their digests.
//
// Their WHERE clauses leave nothing out. They are there for the planner: it takes such an index only
// for a statement that repeats the clause, and only the search does. Otherwise, while PostgreSQL takes
// a table for nearly empty, it might list the tags of one repository by the index of all names.
var searchIndexes = []partitionedIndex{
	{"tags", "tags_search_idx", "(name, repository_id) WHERE name <> ''"},
	{"manifests", "manifests_search_idx", "(digest, repository_id) WHERE digest <> ''"},
}

// searchMigration makes searchIndexes. It is no file of SQL, since PostgreSQL builds an index beside
// requests that write only outside of transactions and functions.
func searchMigration(dsn string, waits func(what string)) *goose.Migration {
	m := goose.NewGoMigration(searchVersion, &goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error {
		return buildIndexes(ctx, dsn, searchIndexes, waits)
	}}, nil)
	m.Source = "00002_search.go"
	return m
}

// partitionedIndex is an index on a table with hash partitions.
type partitionedIndex struct{ parent, name, definition string }

// part is a partition of a table, for which a partitionedIndex has no part yet.
type part struct {
	OID          uint32
	Schema, Name string
	// Fresh says that no row was ever inserted, and that no index has the name of the part's index.
	Fresh bool
}

func (p part) table() string { return pgx.Identifier{p.Schema, p.Name}.Sanitize() }

// indexName is the name of the part's index, which has the schema of the partition.
func (p part) indexName() string { return p.Name + "_search_idx" }

func (p part) index() string { return pgx.Identifier{p.Schema, p.indexName()}.Sanitize() }

const (
	// buildLockWait limits each wait of an index's build. CREATE INDEX CONCURRENTLY holds up no request
	// that reads or writes rows, also while it waits, so it may wait for longer than other migrations: for
	// an autovacuum, which ends itself for others after deadlock_timeout, and for each transaction that
	// began before the index did. After such a wait in vain the build begins anew.
	buildLockWait = time.Minute
	buildTries    = 10

	// buildWatch is how often watch looks for whom a build waits.
	buildWatch = 2 * time.Second
)

// indexing builds indexes on the connection conn, beside requests.
type indexing struct {
	dsn   string
	conn  *pgx.Conn
	pid   int32 // of the PostgreSQL process that serves conn
	waits func(what string)
}

// buildIndexes makes the indexes that don't exist, partition by partition, each in transactions of its own. If
// it ends in between, the next call leaves alone what is there.
//
// It builds an index of a partition by CREATE INDEX CONCURRENTLY, so requests go on meanwhile. They
// wait for two steps, which only change the catalog: the index of the whole table, which begins
// without parts, and ATTACH PARTITION.
func buildIndexes(ctx context.Context, dsn string, list []partitionedIndex, waits func(what string)) error {
	conn, done, err := migrationConn(ctx, dsn)
	if err != nil {
		return err
	}
	defer done()
	b := indexing{dsn: dsn, conn: conn, waits: waits}
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid(), set_config('lock_timeout', $1, false), set_config('statement_timeout', '0', false)",
		strconv.FormatInt(buildLockWait.Milliseconds(), 10)).Scan(&b.pid, nil, nil)
	if err != nil {
		return fmt.Errorf("preparing to build indexes: %w", err)
	}
	for _, i := range list {
		if err := b.make(ctx, i); err != nil {
			return fmt.Errorf("making the index %s: %w", i.name, err)
		}
	}
	return nil
}

func (b indexing) make(ctx context.Context, i partitionedIndex) error {
	var begun bool
	err := b.conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid WHERE x.indrelid = $1::text::regclass AND c.relname = $2)`,
		i.parent, i.name).Scan(&begun)
	if err != nil {
		return err
	}
	if !begun {
		if err := b.quickly(ctx, fmt.Sprintf("CREATE INDEX %s ON ONLY %s %s", i.name, i.parent, i.definition)); err != nil {
			return err
		}
	}
	rows, _ := b.conn.Query(ctx, `
		SELECT p.oid, n.nspname, p.relname,
			pg_relation_size(p.oid) = 0 AND NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = p.relnamespace AND relname = p.relname || '_search_idx')
		FROM pg_inherits h JOIN pg_class p ON p.oid = h.inhrelid JOIN pg_namespace n ON n.oid = p.relnamespace
		WHERE h.inhparent = $1::text::regclass AND NOT EXISTS (
			SELECT FROM pg_index x JOIN pg_inherits a ON a.inhrelid = x.indexrelid JOIN pg_class c ON c.oid = a.inhparent
			WHERE x.indrelid = p.oid AND c.relname = $2)
		ORDER BY p.relname`, i.parent, i.name) //nolint:errcheck // CollectRows returns its error
	parts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[part])
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := b.makePart(ctx, i, p); err != nil {
			return err
		}
	}
	return nil
}

// makePart makes the part of the index i for the partition p.
func (b indexing) makePart(ctx context.Context, i partitionedIndex, p part) error {
	attach := fmt.Sprintf("ALTER INDEX %s ATTACH PARTITION %s", i.name, p.index())
	if p.Fresh {
		return b.quickly(ctx, fmt.Sprintf("CREATE INDEX %s ON %s %s", p.indexName(), p.table(), i.definition), attach)
	}
	if err := tryLocks(ctx, buildTries, b.waits, func() error { return b.build(ctx, i, p) }); err != nil {
		return err
	}
	return b.quickly(ctx, attach)
}

// build builds the index of the partition p, unless that exists. Of a build that was interrupted
// PostgreSQL leaves an index that is invalid; build drops it first.
func (b indexing) build(ctx context.Context, i partitionedIndex, p part) error {
	var there, valid bool
	err := b.conn.QueryRow(ctx, `
		SELECT count(*) > 0, COALESCE(bool_and(x.indisvalid), false)
		FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid WHERE x.indrelid = $1 AND c.relname = $2`, p.OID, p.indexName()).Scan(&there, &valid)
	if err != nil || valid {
		return err
	}
	if there {
		if err := b.slowly(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+p.index()); err != nil {
			return err
		}
	}
	return b.slowly(ctx, fmt.Sprintf("CREATE INDEX CONCURRENTLY %s ON %s %s", p.indexName(), p.table(), i.definition))
}

// quickly runs statements that requests may have to wait for, in one transaction, with the short wait for locks of all
// migrations. While it can't get the locks it tries again.
func (b indexing) quickly(ctx context.Context, statements ...string) error {
	return tryLocks(ctx, lockTries, b.waits, func() error {
		return pgx.BeginFunc(ctx, b.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", migrationLockWait); err != nil {
				return err
			}
			for _, s := range statements {
				if _, err := tx.Exec(ctx, s); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// slowly runs a statement that no request waits for. It tells for whom the statement waits.
func (b indexing) slowly(ctx context.Context, statement string) error {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		b.watch(ctx, stop)
	}()
	_, err := b.conn.Exec(ctx, statement)
	close(stop)
	<-stopped
	return err
}

// watch calls `waits` when the build begins to wait for other sessions, until `stop` is closed. Without
// a second connection nobody is told.
func (b indexing) watch(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(buildWatch)
	defer tick.Stop()
	var conn *pgx.Conn
	var told string
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if conn == nil {
			c, done, err := migrationConn(ctx, b.dsn)
			if err != nil {
				return
			}
			defer done()
			conn = c
		}
		var sessions string
		err := conn.QueryRow(ctx, `
			SELECT COALESCE(string_agg(pid || COALESCE(' (' || COALESCE(NULLIF(application_name, ''), backend_type) || ')', ''), ', ' ORDER BY pid), '')
			FROM (SELECT DISTINCT unnest(pg_blocking_pids($1)) AS pid) AS w LEFT JOIN pg_stat_activity USING (pid)`, b.pid).Scan(&sessions)
		if err != nil {
			return
		}
		if sessions != "" && sessions != told {
			b.waits(waitsForOlder + sessions)
		}
		told = sessions
	}
}
