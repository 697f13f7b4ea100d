package db

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/purser-registry/purser/internal/worker"
)

// ErrRestoring says that a restore into the database has begun and isn't finished.
var ErrRestoring = errors.New(`a restore into this database isn't finished: run "purser restore" again`)

// ErrMoved says that the registry uses another database now, so that this one must not be used.
var ErrMoved = errors.New("this registry was moved")

// movedSetting is the name of the row in the table settings that MarkMoved inserts. Its value
// says where the registry is now.
const movedSetting = "moved"

// restoringSetting is the name of the row in the table settings that a restore inserts at its
// beginning and deletes at its end.
const restoringSetting = "restoring"

// Connect opens a connection for work on a whole database, such as a backup. Its statements
// have no time limit. The function that it returns closes the connection.
func Connect(ctx context.Context, dsn string) (*pgx.Conn, func(), error) {
	return migrationConn(ctx, dsn)
}

// Versions are the versions of a schema: the numbers of the last migration of the metadata and
// of the statistics of pulls.
type Versions struct {
	Main  int64 `json:"main"`
	Stats int64 `json:"stats"`
	// History is the value of [History]; another one in backups that a build before 1.0 has made.
	History string `json:"history"`
}

// Newest returns the versions that this version of Purser migrates to.
func Newest() Versions {
	return Versions{Main: max(newest(migrations, "migrations"), searchVersion), Stats: newest(statsMigrations, "stats"), History: History}
}

func newest(files embed.FS, dir string) int64 {
	names, err := fs.Glob(files, dir+"/*.sql")
	if err != nil || len(names) == 0 {
		panic("no migrations are embedded") // can't happen
	}
	slices.Sort(names)
	number, _, _ := strings.Cut(strings.TrimPrefix(names[len(names)-1], dir+"/"), "_")
	version, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic(err) // goose refuses such a name too
	}
	return version
}

// Current returns the version of the metadata's schema in the connection's database, or 0 if
// it has none.
func Current(ctx context.Context, conn *pgx.Conn) (version int64, err error) {
	there, err := Exists(ctx, conn, "goose_db_version")
	if err != nil || !there {
		return 0, err
	}
	if err := requireHistory(ctx, conn); err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, "SELECT COALESCE(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("reading the schema's version: %w", err)
	}
	return version, nil
}

// CurrentStats is like Current, for the schema of the statistics.
func CurrentStats(ctx context.Context, conn *pgx.Conn) (version int64, err error) {
	there, err := Exists(ctx, conn, "goose_stats_version")
	if err != nil || !there {
		return 0, err
	}
	if err := requireStatsHistory(ctx, conn); err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, "SELECT COALESCE(max(version_id), 0) FROM goose_stats_version WHERE is_applied").Scan(&version)
	if err != nil {
		return 0, fmt.Errorf("reading the schema's version: %w", err)
	}
	return version, nil
}

// Exists says whether the database has a table of this name in its search path. A statement
// that names a missing table would do too, but PostgreSQL logs its failure.
func Exists(ctx context.Context, q Querier, table string) (there bool, err error) {
	err = q.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", pgx.Identifier{table}.Sanitize()).Scan(&there)
	if err != nil {
		return false, fmt.Errorf("looking for table %s: %w", table, err)
	}
	return there, nil
}

// createTable finds the tables that a migration creates.
var createTable = regexp.MustCompile(`(?m)^\s*CREATE TABLE (?:IF NOT EXISTS )?([a-z_]+)`)

// StatsTables returns the names of all tables that the migrations of the statistics have ever
// created. Some may have been dropped by later migrations.
func StatsTables() []string { return slices.Clone(tablesOfStats()) }

var tablesOfStats = sync.OnceValue(func() []string {
	var list []string
	names, _ := fs.Glob(statsMigrations, "stats/*.sql") //nolint:errcheck // the pattern is valid
	for _, name := range names {
		text, err := statsMigrations.ReadFile(name)
		if err != nil {
			panic(err) // can't happen: embedded files are always readable
		}
		for _, m := range createTable.FindAllStringSubmatch(string(text), -1) {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
})

// LockSchema keeps other processes from migrating the connection's database until
// [UnlockSchema] or the end of the session. It waits for a migration that is running.
//
// It asks again and again, since a statement that waits for the lock would have a snapshot, and the
// migration may be building an index, for which PostgreSQL waits for the end of older snapshots.
func LockSchema(ctx context.Context, conn *pgx.Conn) error {
	for {
		var mine bool
		err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared($1)", migrateLock).Scan(&mine)
		if err == nil && mine {
			return nil
		}
		if err == nil {
			err = worker.Sleep(ctx, lockRetry)
		}
		if err != nil {
			return fmt.Errorf("waiting for another process that migrates: %w", err)
		}
	}
}

// UnlockSchema ends what LockSchema began on the same connection.
func UnlockSchema(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_unlock_shared($1)", migrateLock); err != nil {
		return fmt.Errorf("letting other processes migrate again: %w", err)
	}
	return nil
}

// MigrateTo creates in an empty database the tables that the schema of metadata had at the
// given version, so that a backup of this version can be loaded. It installs no triggers of
// routines/: Migrate does that afterwards.
func MigrateTo(ctx context.Context, dsn string, version int64, o MigrateOptions) error {
	conn, done, err := migrationConn(ctx, dsn)
	if err != nil {
		return err
	}
	defer done()
	if err := requireVersion(ctx, conn); err != nil {
		return err
	}
	return alone(ctx, dsn, lockLoss, o.waits, func(ctx context.Context) error {
		o.Partitions = cmp.Or(o.Partitions, DefaultPartitions)
		p, finish, err := gooseProvider(dsn, o)
		if err != nil {
			return err
		}
		defer finish()
		if err := upToVersion(ctx, p, version); err != nil {
			return err
		}
		var installed bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass('loose_foreign_keys_deleted_records') IS NOT NULL").Scan(&installed); err != nil || installed {
			return err
		}
		var schema string
		if err := conn.QueryRow(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, looseTablesSQL(schema))
		return err
	})
}

// MigrateStatsTo is like MigrateTo, for the statistics.
func MigrateStatsTo(ctx context.Context, dsn string, version int64) error {
	return alone(ctx, dsn, lockLoss, MigrateOptions{}.waits, func(ctx context.Context) error {
		p, finish, err := statsProvider(dsn)
		if err != nil {
			return err
		}
		defer finish()
		return upToVersion(ctx, p, version)
	})
}

func upToVersion(ctx context.Context, p *goose.Provider, version int64) error {
	current, known, err := p.GetVersions(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("reading the schema's version: %w", err)
	case version > known:
		return fmt.Errorf("schema %d, known %d: %w", version, known, ErrNewerSchema)
	case current > version:
		return fmt.Errorf("the database has the schema's version %d already, and version %d is needed: use an empty database", current, version)
	}
	if _, err := p.UpTo(ctx, version); err != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	return nil
}

// Restoring returns the note that MarkRestoring has stored, or "" if no restore is unfinished.
func Restoring(ctx context.Context, q Querier) (note string, err error) {
	there, err := Exists(ctx, q, "settings")
	if err != nil || !there {
		return "", err
	}
	err = q.QueryRow(ctx, "SELECT COALESCE((SELECT value FROM settings WHERE name = $1), '')", restoringSetting).Scan(&note)
	if err != nil {
		return "", fmt.Errorf("looking for a restore that isn't finished: %w", err)
	}
	return note, nil
}

// MarkRestoring stores that a restore has begun, with a note for [Restoring]. From then on
// Migrate returns ErrRestoring, unless MigrateOptions.Restoring is set, so that no server
// starts on the database.
func MarkRestoring(ctx context.Context, q Querier, note string) error {
	_, err := q.Exec(ctx, `
		INSERT INTO settings (name, value) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value`, restoringSetting, note)
	if err != nil {
		return fmt.Errorf("storing that a restore has begun: %w", err)
	}
	return nil
}

// MarkMoved stores that the registry uses another database from now on, which `to` describes
// without a password. From then on Migrate and Usable return ErrMoved.
func MarkMoved(ctx context.Context, q Querier, to string) error {
	_, err := q.Exec(ctx, `
		INSERT INTO settings (name, value) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value`, movedSetting, to)
	if err != nil {
		return fmt.Errorf("storing that the registry was moved: %w", err)
	}
	return nil
}

// UnmarkMoved ends what MarkMoved began. It returns false if there was no mark.
func UnmarkMoved(ctx context.Context, q Querier) (was bool, err error) {
	done, err := q.Exec(ctx, "DELETE FROM settings WHERE name = $1", movedSetting)
	if err != nil {
		return false, fmt.Errorf("storing that the registry is back: %w", err)
	}
	return done.RowsAffected() > 0, nil
}

// Usable returns ErrMoved if the registry was moved to another database, and ErrRestoring if a
// restore into this one isn't finished.
func Usable(ctx context.Context, dsn string) error {
	conn, done, err := migrationConn(ctx, dsn)
	if err != nil {
		return err
	}
	defer done()
	there, err := Exists(ctx, conn, "settings")
	if err != nil || !there {
		return err
	}
	return usable(ctx, conn, false)
}

// usable is Usable for a database with the table settings. It returns no ErrRestoring if the
// caller is the restore itself.
func usable(ctx context.Context, conn *pgx.Conn, restoring bool) error {
	rows, err := conn.Query(ctx, "SELECT name, value FROM settings WHERE name = ANY ($1)", []string{movedSetting, restoringSetting})
	if err != nil {
		return fmt.Errorf("reading the settings in the database: %w", err)
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		switch {
		case name == movedSetting:
			return fmt.Errorf("%w %s: name that one in database.main. If the move is to be given up, and nothing has used the other database, run \"purser move database --back\"", ErrMoved, value)
		case !restoring:
			return ErrRestoring
		}
		return nil
	})
	return err
}

// MarkRestored ends what MarkRestoring began.
func MarkRestored(ctx context.Context, q Querier) error {
	if _, err := q.Exec(ctx, "DELETE FROM settings WHERE name = $1", restoringSetting); err != nil {
		return fmt.Errorf("storing that a restore has ended: %w", err)
	}
	return nil
}
