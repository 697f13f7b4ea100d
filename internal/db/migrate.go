package db

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/worker"
)

//go:embed migrations/*.sql
var migrations embed.FS

//go:embed stats/*.sql
var statsMigrations embed.FS

//go:embed routines/*.sql
var routines embed.FS

// DefaultPartitions is the default number of hash partitions of each large table. Inserts are
// faster with few partitions; 64 are meant for tables of billions of rows.
const DefaultPartitions = 4

// RoutinesVersion is the version number of the functions and triggers in routines/. It is
// raised with every change of these files after a release. A process compares it with the
// version in the database: a process of an older version that starts during an upgrade doesn't
// replace newer functions and triggers.
const RoutinesVersion = 1

// MigrateOptions says how to migrate.
type MigrateOptions struct {
	// Partitions is the number of hash partitions of each large table, from 1 to 1,024. Only
	// the first migration uses it. Default: DefaultPartitions.
	Partitions int
	// Restoring makes Migrate go on although a restore into the database isn't finished. Only
	// the restore itself sets it.
	Restoring bool
	// Waits is called when migrating begins to wait for something that may take long, with words
	// that say for what: another process that migrates, or an open transaction that has locked a
	// table. Nil: nobody is told.
	Waits func(what string)
}

// The words that MigrateOptions.Waits gets.
const (
	waitsForProcess = "another process, which migrates the database or backs it up"
	waitsForTable   = "an open transaction, which has locked a table that a migration changes"
	waitsForOlder   = "transactions that must end before an index can be built, those of PostgreSQL's processes " // and these
)

func (o MigrateOptions) waits(what string) {
	if o.Waits != nil {
		o.Waits(what)
	}
}

// MigrationStatus is one migration and when it was applied (zero: pending).
type MigrationStatus struct {
	Version int64
	Name    string
	Applied time.Time
	// Unknown says that a newer version of Purser has applied it, of which this one knows only the
	// number.
	Unknown bool
}

// ErrNewerSchema says that the database was migrated by a newer Purser.
var ErrNewerSchema = errors.New("the database's schema is newer than this version of Purser: use the version that migrated it, or a newer one")

// Migrate applies the missing migrations, and then the routines if they differ from those that
// were applied last. Only one process migrates at a time; the others wait. Migrate returns the
// number of migrations that it has applied.
func Migrate(ctx context.Context, dsn string, o MigrateOptions) (int, error) {
	o.Partitions = cmp.Or(o.Partitions, DefaultPartitions)
	if o.Partitions < 1 || o.Partitions > 1024 {
		return 0, fmt.Errorf("migrating: %d partitions: from 1 to 1024 are possible", o.Partitions)
	}
	conn, done, err := migrationConn(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := requireVersion(ctx, conn); err != nil {
		return 0, err
	}
	if err := requireOwners(ctx, conn); err != nil {
		return 0, err
	}
	current, marked, err := upToDate(ctx, conn)
	if err == nil && !current {
		err = requireHistory(ctx, conn)
	}
	if err == nil && marked {
		err = usable(ctx, conn, o.Restoring)
	}
	if err != nil || current {
		return 0, err
	}
	var n int
	err = alone(ctx, dsn, lockLoss, o.waits, func(ctx context.Context) (err error) {
		if n, err = up(ctx, dsn, o); err != nil {
			return err
		}
		return applyRoutines(ctx, conn, o.waits)
	})
	return n, err
}

// MigrateStats migrates the tables of the statistics of pulls in the database dsn, as Migrate
// does for all other tables. Their migrations are numbered separately, since these tables may
// be in another database. Of the options it uses Waits alone.
func MigrateStats(ctx context.Context, dsn string, o MigrateOptions) (int, error) {
	conn, done, err := migrationConn(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := requireVersion(ctx, conn); err != nil {
		return 0, err
	}
	if err := requireOwners(ctx, conn); err != nil {
		return 0, err
	}
	// Most starts find nothing to migrate. These don't ask for the lock: a backup may have it for long.
	if version, err := CurrentStats(ctx, conn); err != nil || version == Newest().Stats {
		return 0, err
	}
	var n int
	err = alone(ctx, dsn, lockLoss, o.waits, func(ctx context.Context) error {
		p, finish, err := statsProvider(dsn)
		if err != nil {
			return err
		}
		defer finish()
		n, err = upTo(ctx, p, o.waits)
		return err
	})
	return n, err
}

// Status lists every migration that this version of Purser knows, with the time at which it
// was applied. It changes nothing in the database, even if there is no schema yet.
func Status(ctx context.Context, dsn string) ([]MigrationStatus, error) {
	p, done, err := gooseProvider(dsn, MigrateOptions{Partitions: DefaultPartitions})
	if err != nil {
		return nil, err
	}
	defer done()
	return statusOf(ctx, dsn, p, requireHistory, "SELECT version_id, tstamp FROM goose_db_version WHERE is_applied")
}

// StatusStats is like Status, for the tables of the statistics.
func StatusStats(ctx context.Context, dsn string) ([]MigrationStatus, error) {
	p, done, err := statsProvider(dsn)
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := statusOf(ctx, dsn, p, requireStatsHistory, "SELECT version_id, tstamp FROM goose_stats_version WHERE is_applied")
	for i := range list {
		list[i].Name = "stats/" + list[i].Name
	}
	return list, err
}

// statusOf lists the migrations of p, unless `require` returns an error. `applied` is the SQL of a query for the versions that
// were applied. statusOf runs this query instead of asking goose, since goose would create its
// table if that doesn't exist.
func statusOf(ctx context.Context, dsn string, p *goose.Provider, require func(context.Context, *pgx.Conn) error, applied string) ([]MigrationStatus, error) {
	conn, done, err := migrationConn(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := require(ctx, conn); err != nil {
		return nil, err
	}
	at := make(map[int64]time.Time)
	var version int64
	var when time.Time
	rows, _ := conn.Query(ctx, applied) //nolint:errcheck // ForEachRow returns its error
	_, err = pgx.ForEachRow(rows, []any{&version, &when}, func() error {
		at[version] = when.UTC()
		return nil
	})
	if err != nil && Code(err) != CodeUndefinedTable {
		return nil, fmt.Errorf("reading the status of migrations: %w", err)
	}
	var out []MigrationStatus
	for _, s := range p.ListSources() {
		out = append(out, MigrationStatus{Version: s.Version, Name: s.Path, Applied: at[s.Version]})
	}
	for _, version := range slices.Sorted(maps.Keys(at)) {
		if n := len(out); n > 0 && version > out[n-1].Version {
			out = append(out, MigrationStatus{Version: version, Name: "by a newer version of Purser", Applied: at[version], Unknown: true})
		}
	}
	return out, nil
}

// Hash returns a hash over this version's migrations, routines and loose foreign keys. Two
// versions with the same hash have the same schema.
func Hash() string {
	h := sha256.New()
	for _, f := range []embed.FS{migrations, routines} {
		if err := fs.WalkDir(f, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := f.ReadFile(path)
			fmt.Fprintf(h, "%s %d\n", path, len(b))
			h.Write(b)
			return err
		}); err != nil {
			panic(err) // can't happen: embedded files are always readable
		}
	}
	for _, i := range searchIndexes {
		fmt.Fprintln(h, searchVersion, i)
	}
	for _, sql := range looseSQL("public") {
		h.Write([]byte(sql))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func migrationConn(ctx context.Context, dsn string) (*pgx.Conn, func(), error) {
	cfg, err := migrationConfig(dsn, nil)
	if err != nil {
		return nil, nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting: %w", explain(err))
	}
	return conn, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		conn.Close(ctx) //nolint:errcheck // nothing is lost
	}, nil
}

// migrationConfig returns the configuration of a connection whose statements have no time
// limit.
func migrationConfig(dsn string, params map[string]string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("reading the database's DSN: %w", err)
	}
	all := pgsession.Settings(pgsession.Limits{Idle: time.Minute})
	maps.Copy(all, params)
	configure(cfg, all)
	return cfg, nil
}

func requireVersion(ctx context.Context, conn *pgx.Conn) error {
	var v int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&v); err != nil {
		return fmt.Errorf("asking for PostgreSQL's version: %w", err)
	}
	if v < 150000 {
		return fmt.Errorf("PostgreSQL %d.%d is too old: Purser needs 15 or newer", v/10000, v%10000)
	}
	return nil
}

// upToDate says whether the database has the schema of this version, so that there is nothing
// to migrate, and whether a restore or a move has marked the database (see usable). It takes no lock and makes two short
// queries, because most starts of a process find nothing to migrate and should be quick.
func upToDate(ctx context.Context, conn *pgx.Conn) (current, marked bool, err error) {
	var known bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('settings') IS NOT NULL").Scan(&known); err != nil {
		return false, false, fmt.Errorf("looking for the schema: %w", err)
	}
	if !known {
		return false, false, nil
	}
	var hash string
	err = conn.QueryRow(ctx, `
		SELECT COALESCE((SELECT value FROM settings WHERE name = 'schema_hash'), ''), EXISTS (SELECT FROM settings WHERE name = ANY ($1))`,
		[]string{restoringSetting, movedSetting}).Scan(&hash, &marked)
	if err != nil {
		return false, false, fmt.Errorf("reading the schema's hash: %w", err)
	}
	return hash == Hash(), marked, nil
}

func gooseProvider(dsn string, o MigrateOptions) (*goose.Provider, func(), error) {
	return provider(dsn, migrations, "migrations", goose.DefaultTablename, map[string]string{
		"purser.partitions": strconv.Itoa(o.Partitions),
		"purser.history":    History,
	}, searchMigration(dsn, o.waits))
}

func statsProvider(dsn string) (*goose.Provider, func(), error) {
	return provider(dsn, statsMigrations, "stats", "goose_stats_version", nil)
}

// provider makes a goose provider for the migrations in the directory dir of files and for those in
// Go. goose stores the versions that were applied in the given table.
func provider(dsn string, files fs.FS, dir, table string, settings map[string]string, inGo ...*goose.Migration) (*goose.Provider, func(), error) {
	cfg, err := migrationConfig(dsn, settings)
	if err != nil {
		return nil, nil, err
	}
	handle := stdlib.OpenDB(*cfg)
	handle.SetMaxOpenConns(2)
	sub, err := fs.Sub(files, dir)
	if err != nil {
		return nil, nil, err
	}
	store, err := database.NewStore(database.DialectPostgres, table)
	if err != nil {
		return nil, nil, err
	}
	p, err := goose.NewProvider("", handle, sub, goose.WithStore(store), goose.WithGoMigrations(inGo...))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("reading migrations: %w", err), handle.Close())
	}
	return p, func() { closeQuietly(handle) }, nil
}

func closeQuietly(handle *sql.DB) { handle.Close() } //nolint:errcheck // an error while closing loses no data

func up(ctx context.Context, dsn string, o MigrateOptions) (int, error) {
	p, done, err := gooseProvider(dsn, o)
	if err != nil {
		return 0, err
	}
	defer done()
	return upTo(ctx, p, o.waits)
}

// upTo applies the missing migrations. It calls `waits` when it begins to wait for a table's lock.
func upTo(ctx context.Context, p *goose.Provider, waits func(what string)) (int, error) {
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the schema's version: %w", err)
	}
	if current > target {
		return 0, fmt.Errorf("schema %d, known %d: %w", current, target, ErrNewerSchema)
	}
	n := 0
	err = tryLocks(ctx, lockTries, waits, func() error {
		applied, err := p.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			applied = partial.Applied
		}
		n += len(applied)
		return err
	})
	if err != nil {
		return n, fmt.Errorf("migrating: %w", err)
	}
	return n, nil
}

// errStaysLocked says that tryLocks has tried often enough.
var errStaysLocked = errors.New("a table stays locked; pg_stat_activity shows the transaction that is open for long")

// tryLocks calls fn, and again while it fails since it couldn't get its locks in time, up to `tries`
// times in all. It calls `waits` before the second time.
func tryLocks(ctx context.Context, tries int, waits func(what string), fn func() error) error {
	var err error
	for try := range tries {
		if err = fn(); !lacksLock(err) {
			return err
		}
		if try == 0 {
			waits(waitsForTable)
		}
		if err := worker.Sleep(ctx, lockRetry+rand.N(lockRetry)); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %w", errStaysLocked, err)
}

// While a migration or applyRoutines waits for a lock on a busy table, all later statements on this
// table wait too. Therefore it waits half a second at most (SET LOCAL lock_timeout in each
// migration, migrationLockWait), then gives up so that these statements can run, and tries again, up
// to lockTries times in all.
//
// Half a second is less than PostgreSQL's deadlock_timeout, a second by default. A migration
// locks several tables, maybe in another order than requests that replicas of the older version
// serve meanwhile. In such a deadlock PostgreSQL ends one of the two after deadlock_timeout, which
// may be the request. A migration that has given up by then ends the deadlock itself.
const (
	migrationLockWait = "500ms"
	lockTries         = 60
)

// lacksLock says whether a migration failed since it couldn't get its locks in time, and may be
// tried again.
func lacksLock(err error) bool {
	code := Code(err)
	return (code == CodeLockNotAvailable || code == CodeDeadlockDetected) && !errors.Is(err, errStaysLocked)
}

// applyRoutines replaces the functions and triggers in the database by those in routines/, in
// one transaction. It does nothing if the functions and triggers in the database are those of
// a newer version.
func applyRoutines(ctx context.Context, conn *pgx.Conn, waits func(what string)) error {
	var err error
	for try := range lockTries {
		err = applyRoutinesOnce(ctx, conn)
		if !lacksLock(err) {
			return err
		}
		if try == 0 {
			waits(waitsForTable)
		}
	}
	return fmt.Errorf("open transactions have locked tables whose triggers are to be replaced: end them (see pg_stat_activity): %w", err)
}

func applyRoutinesOnce(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", migrationLockWait); err != nil {
			return fmt.Errorf("bounding the wait for locks: %w", err)
		}
		var version int
		if err := tx.QueryRow(ctx, "SELECT COALESCE((SELECT value::int FROM settings WHERE name = 'routines_version'), 0)").
			Scan(&version); err != nil {
			return fmt.Errorf("reading the version of routines: %w", err)
		}
		if version > RoutinesVersion {
			return nil
		}
		if err := installLooseForeignKeys(ctx, tx); err != nil {
			return err
		}
		entries, err := routines.ReadDir("routines")
		if err != nil {
			return err
		}
		// rights.sql takes rights from the functions that the other files make.
		slices.SortStableFunc(entries, func(a, b fs.DirEntry) int {
			return strings.Count(a.Name(), "rights.sql") - strings.Count(b.Name(), "rights.sql")
		})
		for _, e := range entries {
			b, err := routines.ReadFile("routines/" + e.Name())
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, string(b)); err != nil {
				return fmt.Errorf("applying %s: %w", e.Name(), err)
			}
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO settings (name, value) VALUES ('schema_hash', $1), ('routines_version', $2)
			ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value`, Hash(), strconv.Itoa(RoutinesVersion))
		return err
	})
}
