package main

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
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/worker"
)

// databasePatience is how long a database that can't be reached is waited for
// at the start: both may have been started together.
const databasePatience = time.Minute

// errPending says that the schema is older than this program needs.
var errPending = errors.New("the database's schema is not up to date and database.migrate is false: run \"purser migrate up\", or set database.migrate: true")

// openDatabase brings the schema of the metadata up to date, and opens the pool.
func openDatabase(ctx context.Context, cfg *config.Config, dsn string, replica uuid.UUID, log *slog.Logger) (*db.DB, error) {
	err := patiently(ctx, cfg, log, func() error {
		if !cfg.Database.Migrate {
			return checkMetadata(ctx, dsn)
		}
		n, err := db.Migrate(ctx, dsn, db.MigrateOptions{Partitions: cfg.Database.Partitions})
		if n > 0 {
			log.InfoContext(ctx, "the database's schema is up to date", "migrations_applied", n)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return db.Open(ctx, db.Options{
		DSN: dsn, MaxConns: cfg.Database.MaxConns, Replica: replica.String(), Connected: foreground(cfg, dsn, log), Log: log,
	})
}

// foreground is what a pool does with its connections so that what else the built-in
// PostgreSQL has to do lets them go first; nil where PostgreSQL is another.
func foreground(cfg *config.Config, dsn string, log *slog.Logger) func(pid uint32) {
	if cfg.Database.Main != "" || dsn == string(cfg.Database.Stats) {
		return nil
	}
	return func(pid uint32) {
		if err := builtinpg.Foreground(pid); err != nil {
			log.Debug("other work in PostgreSQL doesn't give way to this connection's", "error", err)
		}
	}
}

// statsDSN is where the statistics are, given where everything else is.
func statsDSN(cfg *config.Config, dsn string) string {
	if cfg.Database.Stats != "" {
		return string(cfg.Database.Stats)
	}
	return dsn
}

// migrate applies all migrations that are missing and returns how many.
func migrate(ctx context.Context, cfg *config.Config, dsn string) (int, error) {
	n, err := db.Migrate(ctx, dsn, db.MigrateOptions{Partitions: cfg.Database.Partitions})
	if err != nil {
		return n, err
	}
	m, err := db.MigrateStats(ctx, statsDSN(cfg, dsn))
	if err != nil {
		err = fmt.Errorf("the statistics' database: %w", err)
	}
	return n + m, err
}

// migrations lists all migrations. With an error it lists those that it could read.
func migrations(ctx context.Context, cfg *config.Config, dsn string) ([]db.MigrationStatus, error) {
	list, err := db.Status(ctx, dsn)
	if err != nil {
		return nil, err
	}
	stats, err := db.StatusStats(ctx, statsDSN(cfg, dsn))
	if err != nil {
		return list, fmt.Errorf("the statistics' database: %w", err)
	}
	return append(list, stats...), nil
}

// checkSchema fails when migrations are missing, those of the statistics too.
func checkSchema(ctx context.Context, cfg *config.Config, dsn string) error {
	list, err := migrations(ctx, cfg, dsn)
	return errors.Join(err, complete(list))
}

// forCommand gives what is wrong with a schema the words for a command, which no
// setting makes migrate.
func forCommand(err error) error {
	switch {
	case errors.Is(err, errNoSchema):
		return errors.New("the database has no tables of Purser: correct database.main or data_dir, or make them with \"purser migrate up\"")
	case errors.Is(err, errPending):
		return errors.New("the database's schema is older than this program needs: run \"purser migrate up\"")
	}
	return err
}

// explainDatabase gives an error of a connection that wasn't made the words for an
// operator, with the setting that names the server.
func explainDatabase(cfg *config.Config, err error) error {
	setting := "database.main"
	if c, ok := errors.AsType[*pgconn.ConnectError](err); ok && isOf(c.Config, string(cfg.Database.Stats)) && !isOf(c.Config, string(cfg.Database.Main)) {
		setting = "database.stats"
	}
	if cfg.Source(setting) != "default" {
		setting += " (" + cfg.Source(setting) + ")"
	}
	return pgsession.Explain(err, setting)
}

// isOf says whether a connection was to be made by dsn.
func isOf(made *pgconn.Config, dsn string) bool {
	cfg, err := pgconn.ParseConfig(dsn)
	return dsn != "" && err == nil && cfg.Host == made.Host && cfg.Port == made.Port && cfg.Database == made.Database && cfg.User == made.User
}

// checkMetadata is checkSchema for who needs no statistics: their server may be
// away.
func checkMetadata(ctx context.Context, dsn string) error {
	list, err := db.Status(ctx, dsn)
	return errors.Join(err, complete(list))
}

// errNoSchema says that the database may be another one than was meant.
var errNoSchema = errors.New("it has no tables of Purser")

func complete(list []db.MigrationStatus) error {
	applied := func(m db.MigrationStatus) bool { return !m.Applied.IsZero() }
	if len(list) > 0 && !slices.ContainsFunc(list, applied) {
		return fmt.Errorf("%w: %w", errNoSchema, errPending)
	}
	for _, m := range list {
		if m.Applied.IsZero() {
			return fmt.Errorf("%s is missing: %w", m.Name, errPending)
		}
	}
	return nil
}

// patiently runs fn again while the database can't be reached, for a minute. Its
// error says which setting may be wrong.
func patiently(ctx context.Context, cfg *config.Config, log *slog.Logger, fn func() error) error {
	end := time.Now().Add(databasePatience)
	for attempt := 1; ; attempt++ {
		err := explainDatabase(cfg, fn())
		if err == nil || ctx.Err() != nil || !db.Unavailable(err) || pgsession.Misconfigured(err) || time.Now().After(end) {
			return err
		}
		log.WarnContext(ctx, "waiting for the database", "error", err)
		pause(ctx, worker.Backoff(attempt, 250*time.Millisecond, 5*time.Second))
	}
}

// lockTimeout is the longest that a review waits for a lock. It is well below
// PostgreSQL's deadlock_timeout (1 s unless somebody changed it), so that a
// review that meets a request in a deadlock gives way before PostgreSQL chooses.
const lockTimeout = 200 * time.Millisecond

// reviewConns is a connection for each reviewer and one for what is asked besides.
func reviewConns(cfg *config.Config) int { return 2*cfg.GC.Workers + 1 }

// openReviews opens the pool of reviews.
func openReviews(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*db.DB, error) {
	return openQuiet(ctx, cfg, dsn, db.Options{ApplicationName: "purser gc", MaxConns: reviewConns(cfg), Connected: foreground(cfg, dsn, log), Log: log})
}

// pruneConns is a connection for the snapshot that a policy is judged by, one for
// what it deletes, and some for previews and what else is looked up.
const pruneConns = 4

// openPrunes opens the pool of auto-pruning, the one that isn't in the foreground:
// its statements take long, and few wait for them.
func openPrunes(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*db.DB, error) {
	return openQuiet(ctx, cfg, dsn, db.Options{ApplicationName: "purser autoprune", MaxConns: pruneConns, Log: log})
}

// openQuiet opens a pool for work that gives way to clients. It names no replica,
// so that this process's caches hear of what is deleted there, like all others. A
// stalled process holds locks for one statement and one idle timeout at most, which
// together are the transaction timeout.
func openQuiet(ctx context.Context, cfg *config.Config, dsn string, o db.Options) (*db.DB, error) {
	half := cfg.GC.TransactionTimeout / 2
	o.DSN, o.StatementTimeout, o.IdleTimeout, o.LockTimeout = dsn, half, half, lockTimeout
	return db.Open(ctx, o)
}
