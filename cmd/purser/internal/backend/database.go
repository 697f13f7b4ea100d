// Package backend opens what a server and the operators' commands work on, according to the
// configuration: the database and its pools, the built-in PostgreSQL, the blob store, the
// garbage collector and the loose foreign keys.
//
// # Decisions
//
// "config check" checks what serve uses. CheckSettings looks at what package config doesn't validate,
// and connects to nothing: it makes the same clients and reads the same files as the server. The
// commands serve, "config check" and doctor call it, so none of them knows a problem that another
// one doesn't.
//
// A server writes its settings into the database (ServerRecord), and commands that delete or repair
// compare those that decide what is deleted. The file alone isn't enough, since services have
// variables of their own. With no server running, the record of the last one counts, because a
// registry that is stopped for maintenance is where such commands are typed. "store adopt" is
// compared only with servers that run: it exists to change where the store is.
package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/server"
)

// connectionPatience limits how long a request waits for a connection to the database while all
// database.max_conns are in use, as docs/configuration.md says.
const connectionPatience = 5 * time.Second

// errPending says that the database's schema is older than this program needs.
var errPending = errors.New("the database's schema is not up to date and database.migrate is false: run \"purser migrate up\", or set database.migrate: true")

// OpenDatabase opens the pool for requests on the metadata database. Before that it applies
// pending migrations, or returns an error about them if database.migrate is false.
func OpenDatabase(ctx context.Context, cfg *config.Config, dsn string, replica uuid.UUID, log *slog.Logger) (*db.DB, error) {
	err := Patiently(ctx, cfg, log, func() error {
		if !cfg.Database.Migrate {
			return CheckMetadata(ctx, dsn)
		}
		n, err := db.Migrate(ctx, dsn, MigrateOptions(ctx, cfg))
		if n > 0 {
			log.InfoContext(ctx, "the database's schema is up to date", "migrations_applied", n)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return db.Open(ctx, db.Options{
		DSN: dsn, MaxConns: cfg.Database.MaxConns, AcquireTimeout: connectionPatience, Share: server.ShareOf,
		Replica: replica.String(), Connected: foreground(cfg, dsn, log), Log: log,
	})
}

// foreground returns a function that a pool calls for each new connection, with the PID of
// the PostgreSQL process that serves the connection. The function gives that process
// priority over the background work of the built-in PostgreSQL. foreground returns nil if
// the database isn't in the built-in PostgreSQL.
func foreground(cfg *config.Config, dsn string, log *slog.Logger) func(pid uint32) {
	if cfg.Database.Main != "" || dsn == string(cfg.Database.Stats) {
		return nil
	}
	return func(pid uint32) {
		if err := builtinpg.Foreground(pid); err != nil {
			log.Debug("giving a PostgreSQL process priority failed", "error", err)
		}
	}
}

// StatsDSN returns the DSN of the database of the pull statistics: database.stats if it is
// set, otherwise `dsn`, the DSN of the metadata database.
func StatsDSN(cfg *config.Config, dsn string) string {
	if cfg.Database.Stats != "" {
		return string(cfg.Database.Stats)
	}
	return dsn
}

// MigrateOptions returns the options with which this configuration migrates. What migrating waits for
// goes to the function of TellWaits.
func MigrateOptions(ctx context.Context, cfg *config.Config) db.MigrateOptions {
	return db.MigrateOptions{Partitions: cfg.Database.Partitions, Waits: func(what string) { tellWait(ctx, what) }}
}

// Migrate applies all pending migrations and returns their number.
func Migrate(ctx context.Context, cfg *config.Config, dsn string) (int, error) {
	n, err := db.Migrate(ctx, dsn, MigrateOptions(ctx, cfg))
	if err != nil {
		return n, err
	}
	m, err := db.MigrateStats(ctx, StatsDSN(cfg, dsn), MigrateOptions(ctx, cfg))
	if err != nil {
		err = fmt.Errorf("the statistics' database: %w", err)
	}
	return n + m, err
}

// Migrations lists all migrations of the metadata and of the statistics. If only the
// statistics' migrations can't be read, it returns the metadata's with the error.
func Migrations(ctx context.Context, cfg *config.Config, dsn string) ([]db.MigrationStatus, error) {
	list, err := db.Status(ctx, dsn)
	if err != nil {
		return nil, err
	}
	stats, err := db.StatusStats(ctx, StatsDSN(cfg, dsn))
	if err != nil {
		return list, fmt.Errorf("the statistics' database: %w", err)
	}
	return append(list, stats...), nil
}

// CheckSchema returns an error if migrations of the metadata or of the statistics are
// pending.
func CheckSchema(ctx context.Context, cfg *config.Config, dsn string) error {
	list, err := Migrations(ctx, cfg, dsn)
	return errors.Join(err, SchemaComplete(list))
}

// ForCommand rewords an error about the schema for commands that never migrate: it must not
// advise database.migrate, which these commands ignore.
func ForCommand(err error) error {
	switch {
	case errors.Is(err, errNoSchema):
		return errors.New("the database has no tables of Purser: correct database.main or data_dir, or make them with \"purser migrate up\"")
	case errors.Is(err, errPending):
		return errors.New("the database's schema is older than this program needs: run \"purser migrate up\"")
	}
	return err
}

// ExplainDatabase adds to a connection error the name of the setting that has the server's
// address: database.main or database.stats.
func ExplainDatabase(cfg *config.Config, err error) error {
	setting := "database.main"
	if c, ok := errors.AsType[*pgconn.ConnectError](err); ok && isOf(c.Config, string(cfg.Database.Stats)) && !isOf(c.Config, string(cfg.Database.Main)) {
		setting = "database.stats"
	}
	if cfg.Source(setting) != "default" {
		setting += " (" + cfg.Source(setting) + ")"
	}
	return pgsession.Explain(err, setting)
}

// isOf says whether `dsn` has the same server, database and user as `made`, the
// configuration of the connection that failed.
func isOf(made *pgconn.Config, dsn string) bool {
	cfg, err := pgconn.ParseConfig(dsn)
	return dsn != "" && err == nil && cfg.Host == made.Host && cfg.Port == made.Port && cfg.Database == made.Database && cfg.User == made.User
}

// CheckMetadata is like CheckSchema, for the metadata only. It is for commands that don't
// need the statistics, whose server may be unreachable.
// It also returns an error if the database must not be used, because the registry was moved or
// a restore isn't finished.
func CheckMetadata(ctx context.Context, dsn string) error {
	if err := db.Usable(ctx, dsn); err != nil {
		return err
	}
	list, err := db.Status(ctx, dsn)
	return errors.Join(err, SchemaComplete(list))
}

// errNoSchema says that the database has no tables of Purser. Perhaps it is the wrong
// database.
var errNoSchema = errors.New("it has no tables of Purser")

// SchemaComplete returns an error unless exactly the migrations that this version of Purser knows
// were applied. An older version could damage what a newer one has stored.
func SchemaComplete(list []db.MigrationStatus) error {
	applied := func(m db.MigrationStatus) bool { return !m.Applied.IsZero() }
	if len(list) > 0 && !slices.ContainsFunc(list, applied) {
		return fmt.Errorf("%w: %w", errNoSchema, errPending)
	}
	for _, m := range list {
		switch {
		case m.Applied.IsZero():
			return fmt.Errorf("%s is missing: %w", m.Name, errPending)
		case m.Unknown:
			return fmt.Errorf("migration %d was applied: %w", m.Version, db.ErrNewerSchema)
		}
	}
	return nil
}

// lockTimeout limits how long garbage collection and auto-pruning wait for a lock. It is
// well below PostgreSQL's deadlock_timeout (1 s by default). Thus, in a deadlock with a
// request, the background work gives up before PostgreSQL would cancel one of the two.
const lockTimeout = 200 * time.Millisecond

// ReviewConns returns the size of garbage collection's pool: one connection for each
// reviewer of blobs and of manifests, and one for other queries.
func ReviewConns(cfg *config.Config) int { return 2*cfg.GC.Workers + 1 }

// OpenReviews opens the pool of garbage collection.
func OpenReviews(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*db.DB, error) {
	return openQuiet(ctx, cfg, dsn, db.Options{ApplicationName: "purser gc", MaxConns: ReviewConns(cfg), Connected: foreground(cfg, dsn, log), Log: log})
}

// PruneConns is the size of auto-pruning's pool. The worker has up to four connections at once: for the
// snapshot in which policies judge tags, for that of a time slice in which it pauses, for a deletion, and
// for a query during the deletion. The rest serves queries of previews.
const PruneConns = 6

// OpenPrunes opens the pool of auto-pruning. It is the only pool without priority in the
// built-in PostgreSQL (see foreground), since its statements are long and few clients wait
// for them.
func OpenPrunes(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*db.DB, error) {
	return openQuiet(ctx, cfg, dsn, db.Options{ApplicationName: "purser autoprune", MaxConns: PruneConns, Log: log})
}

// CheckConns is the size of the pool for checks of the store: one connection for each list that a check
// compares with the store. Requests to the store come between two pages of a list, so a check keeps
// these connections for as long as it runs, which may be hours.
const CheckConns = check.DefaultParallel

// OpenChecks opens the pool for checks of the store.
func OpenChecks(ctx context.Context, dsn string, log *slog.Logger) (*db.DB, error) {
	return db.Open(ctx, db.Options{DSN: dsn, ApplicationName: "purser check", MaxConns: CheckConns, Log: log})
}

// OpenedConns returns how many connections one server may open to the database: those of its pools, one
// that listens for notifications of other servers, one that tells them that it is alive, and two with
// which it migrates at first and makes backups later.
func OpenedConns(cfg *config.Config) int {
	return cfg.Database.MaxConns + ReviewConns(cfg) + PruneConns + CheckConns + LooseConns + 4
}

// openQuiet opens a pool for background work that must give way to clients. Options.Replica
// stays empty, since triggers don't notify the replica that is named there, but this
// process's caches must learn of the pool's deletions. If this process hangs, its
// transactions hold their locks for at most a statement timeout plus an idle timeout,
// together gc.transaction_timeout.
func openQuiet(ctx context.Context, cfg *config.Config, dsn string, o db.Options) (*db.DB, error) {
	half := cfg.GC.TransactionTimeout / 2
	o.DSN, o.StatementTimeout, o.IdleTimeout, o.LockTimeout = dsn, half, half, lockTimeout
	return db.Open(ctx, o)
}
