// Package db opens the metadata database, runs transactions on it and brings its schema up to
// date.
//
// The package keeps these rules. Every transaction is READ COMMITTED, because the registry's
// locking depends on each statement seeing everything that was committed before the statement
// began. Each connection has a PostgreSQL session of its own, otherwise connecting fails. If
// PostgreSQL's machine or this process's machine vanishes, the other waits for it only a
// bounded time (see pgsession). A transaction that fails with a deadlock or a serialization
// failure is run again from its beginning. The round trips of a request are counted. There are
// only migrations to newer versions of the schema, and only one process migrates at a time.
// Migrate applies the functions and triggers of routines/ if they differ from those that were
// applied last, unless a newer version of Purser has applied those.
//
// # Plans
//
// Six measures keep PostgreSQL from reading whole tables or repositories to find a few rows:
//
//   - plan_cache_mode = force_generic_plan. For partitioned tables PostgreSQL would otherwise
//     plan a prepared statement anew for each set of arguments, which costs more than running
//     most of these statements. PostgreSQL still prunes partitions when a generic plan runs.
//
//   - enable_seqscan = off. PostgreSQL keeps a plan until the plan's tables are analyzed
//     again. A plan made for an empty table would read all of the table, also after it has
//     grown. The queues are empty most of the time, and can grow to a million rows within a
//     minute. While 200,000 tags were pruned, 16 connections pushed 155 images a second without
//     the setting, and 428 with it.
//
//   - OFFSET 0 at the end of a LATERAL or EXISTS subquery that looks up a few rows by an
//     index. OFFSET 0 skips no rows, but the planner can't turn such a subquery into a join,
//     so it runs once for each outer row. A join would read the whole repository when that is
//     much larger than the others, even with good statistics. TestPlansOfLargeRepository counts
//     the rows that each operation reads.
//
//   - Statistics by which the planner expects a hundred rows of each repository
//     in a large table, whatever the number of namespaces and repositories is. Otherwise, in a
//     registry of many small repositories, it expects less than one, and takes an index that
//     leads to a whole repository to be as good as the index that leads to a single row, also
//     in checks of foreign keys. Without these statistics (at a4d2758, 4 partitions), among
//     1,000 small repositories in 200 namespaces, a push to a repository of 3,000 manifests
//     read up to 10,800 rows, a deletion 24,000, and a review of ten manifests 89,000. With
//     them, they read no more than the limits of TestPlansOfLargeRepository.
//
//   - Statistics that keep up with tables (AnalyzeGrown, within 30 s). If PostgreSQL takes a
//     table for nearly empty, it may choose an index by which it reads all rows of a
//     repository. With 3,000 manifests and 6,000 tags, and without current statistics (at
//     658da7f, 4 partitions, autovacuum off), a put of a manifest read 21,000 rows, and so did
//     PostgreSQL's own checks of foreign keys. Autovacuum renews the statistics only after a
//     while.
//
//   - Indexes other than primary keys begin with the column that is searched, not with
//     namespace and repository. The planner believes that namespace and repository together
//     nearly identify a row. So if several indexes began with these two columns, it might
//     choose one by which it reads the whole repository.
//
// # Decisions
//
// Decisions that several statements must make alike, or in one round trip, are functions of the database (routines/).
// Deciding about a log-in and counting it must be one transaction behind one round trip
// (loginfailures.sql). Pruning, reviews and requests must decide alike what is held (holds.sql).
//
// The functions have a version, which the database stores (RoutinesVersion). A process of an older
// version that starts during an upgrade sees the greater number there, and leaves the functions as
// they are.
//
// Pool waits where PostgreSQL has refused it a further connection. pgxpool opens another connection
// where none is idle, and gives PostgreSQL's refusal to the request, although its other connections
// become idle in milliseconds. So a limit of the server below database.max_conns failed requests
// while connections were idle. Meanwhile only one attempt to connect is made each quarter of a
// second; the others wait for a connection, for five seconds at most.
package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/worker"
)

// SQLSTATE codes that callers distinguish.
const (
	CodeForeignKeyViolation  = "23503"
	CodeUniqueViolation      = "23505"
	CodeSerializationFailure = "40001"
	CodeDeadlockDetected     = "40P01"
	CodeLockNotAvailable     = "55P03"
	CodeQueryCanceled        = "57014"
	CodeUndefinedTable       = "42P01"
	CodeNoPrivilege          = "42501"

	codeUndefinedFunction = "42883"
	codeReadOnly          = "25006" // the server is a standby or a demoted primary, or transactions are read-only
)

// Options says how to connect.
type Options struct {
	DSN string // URL or key=value; required
	// MaxConns bounds the pool. Default 20.
	MaxConns int
	// AcquireTimeout is how long a statement waits for a connection while all MaxConns are in use.
	// Then it fails with [ErrBusy]. Default: it waits until its context ends.
	AcquireTimeout time.Duration
	// Share names the client whose statements those with a context are, and says whether it is known.
	// While all connections are in use, clients get them in turn, and one client has at most three
	// quarters of them, but two at least. Known clients come first; while some of them wait, others get
	// each fourth connection. The name "" is for statements of the process itself, which may have all.
	// Default: statements get connections in the order in which they come.
	Share func(context.Context) (client string, known bool)
	// Replica is the id of this process if it keeps a cache. Every connection has this id in
	// the session setting purser.replica, so that triggers don't notify this process of its
	// own changes. If Replica is empty, every process that keeps a cache is notified of
	// changes made through these connections.
	Replica string
	// ApplicationName is shown in pg_stat_activity. Default "purser".
	ApplicationName string
	// StatementTimeout is the time after which the server ends a statement, even if the client
	// is gone. Default 30 s; negative: no limit.
	StatementTimeout time.Duration
	// LockTimeout is the time after which the server ends a statement that waits for a lock.
	// Default: no limit. Background work sets it below PostgreSQL's deadlock_timeout, so that
	// in a deadlock with a client's statement the background statement fails first.
	LockTimeout time.Duration
	// IdleTimeout is the time without a statement after which the server ends an open
	// transaction and its connection. Default 20 s, which is shorter than StatementTimeout: if
	// a process stalls in a transaction, other processes' statements that wait for its locks
	// get the locks before they time out.
	IdleTimeout time.Duration
	// TransactionTimeout is the time after which the server ends a transaction and its
	// connection, on PostgreSQL 17 and newer. Default 2 min. [LiftLimits] removes this limit
	// from one transaction.
	TransactionTimeout time.Duration
	// Connected is called for each new connection with the process id of its PostgreSQL
	// backend. May be nil.
	Connected func(pid uint32)
	Log       *slog.Logger // default slog.Default()
}

// DB is a pool of connections to one database.
type DB struct {
	Pool *Pool
	log  *slog.Logger
}

// CheckDSN returns why a DSN can't be used, nil if it can. It connects to nothing, and reads the files that
// the DSN names. The error repeats nothing of the DSN.
func CheckDSN(dsn string) error {
	_, err := parse(dsn)
	return err
}

func parse(dsn string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if failure, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		// Its text has the DSN, with as much of the password hidden as the driver has found, and then
		// what is wrong with details, which quote the DSN too, unless they are about a file or TLS.
		_, text, _ := strings.Cut(failure.Error(), "`: ")
		what, _, _ := strings.Cut(text, " (")
		if _, ofFile := errors.AsType[*fs.PathError](err); ofFile || strings.Contains(what, "TLS") {
			what = text
		}
		return nil, errors.New(what)
	}
	return cfg, err
}

// Open makes the pool of connections but doesn't connect: the first query, or Ping, does.
func Open(ctx context.Context, o Options) (*DB, error) {
	cfg, err := parse(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("reading the database's DSN: %w", err)
	}
	o.MaxConns = cmp.Or(o.MaxConns, 20)
	o.StatementTimeout = cmp.Or(o.StatementTimeout, 30*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 20*time.Second)
	o.TransactionTimeout = cmp.Or(o.TransactionTimeout, 2*time.Minute)
	o.ApplicationName = cmp.Or(o.ApplicationName, "purser")
	o.Log = cmp.Or(o.Log, slog.Default())
	cfg.MaxConns = int32(o.MaxConns)
	cfg.MinIdleConns = 1
	// Close idle connections: each idle backend keeps memory that others could use.
	cfg.MaxConnIdleTime = 2 * time.Minute
	cfg.PingTimeout = pgsession.PingTimeout
	configure(cfg.ConnConfig, o.params())
	// A batch of statements is one transaction, or a part of one, so its time limit is the
	// longer one of TransactionTimeout and StatementTimeout.
	tracers := multitracer.New(&tracer{log: o.Log},
		pgsession.Tracer{Statement: max(o.StatementTimeout, 0), Batch: max(o.TransactionTimeout, o.StatementTimeout)})
	if o.Connected != nil {
		cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			o.Connected(conn.PgConn().PID())
			return nil
		}
	}
	cfg.ConnConfig.Tracer = tracers
	pool := &Pool{log: o.Log}
	if o.AcquireTimeout > 0 {
		pool.waits = &waits{p: pool, most: o.AcquireTimeout}
		tracers.PoolAcquireTracers = append(tracers.PoolAcquireTracers, pool.waits)
	}
	if o.Share != nil {
		pool.shares = newShares(o.Share, o.MaxConns)
		tracers.PoolAcquireTracers = append(tracers.PoolAcquireTracers, pool.shares) // behind the bound of the wait
		tracers.PoolReleaseTracers = append(tracers.PoolReleaseTracers, pool.shares)
	}
	cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return pool.mayConnect() }
	if err := pool.open(ctx, cfg); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	return &DB{Pool: pool, log: o.Log}, nil
}

// params are the settings of each session, besides pgsession.Inherited.
func (o Options) params() map[string]string {
	params := map[string]string{}
	params["application_name"] = o.ApplicationName
	if o.Replica != "" {
		params["purser.replica"] = o.Replica
	}
	maps.Copy(params, pgsession.Settings(pgsession.Limits{
		Statement: o.StatementTimeout, Lock: o.LockTimeout, Idle: o.IdleTimeout, Transaction: o.TransactionTimeout,
	}))
	return params
}

// Close closes every connection. It waits for those in use.
func (d *DB) Close() { d.Pool.Close() }

// Querier runs statements: a pool, a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Ping checks that the database answers.
func (d *DB) Ping(ctx context.Context) error {
	if err := d.Pool.Ping(ctx); err != nil {
		return pgsession.Explain(fmt.Errorf("reaching the database: %w", explain(err)), "")
	}
	return nil
}

// Unhurried returns a context under which the client waits without limit for the server's
// answers. A transaction that calls LiftLimits must run under it, its commit included.
func Unhurried(ctx context.Context) context.Context { return pgsession.Unhurried(ctx) }

// LiftLimits removes the limits StatementTimeout and TransactionTimeout for the rest of a long
// transaction. LockTimeout and IdleTimeout, which limit waiting, stay in force. The
// transaction must run under the context of [Unhurried].
func LiftLimits(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `
		SELECT set_config('statement_timeout', '0', true),
			(SELECT count(set_config(name, '0', true)) FROM pg_settings WHERE name = 'transaction_timeout') -- only newer servers have this setting`)
	if err != nil {
		return fmt.Errorf("removing a transaction's time limits: %w", err)
	}
	return nil
}

// txAttempts is how often a transaction is run at most. It is run again if another transaction
// has won a race against it (a deadlock, for example). That doesn't happen ten times in a row,
// so the maximum is reached only when something else is wrong.
const txAttempts = 10

// ErrLostRace marks errors after which the whole transaction should be run again, although
// PostgreSQL has raised no error. An error is marked by wrapping ErrLostRace or by its Is
// method.
var ErrLostRace = errors.New("the transaction lost a race")

// Tx runs fn in a READ COMMITTED transaction and commits it. If the error is Retryable (a
// deadlock, a serialization failure, or a foreign key whose target was just deleted), Tx rolls
// the transaction back and runs fn again. So fn must set its results anew each time, and must
// have no effect except by SQL in the transaction.
func (d *DB) Tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return Retry(ctx, func() error {
		return pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn)
	})
}

// Retry runs fn until it succeeds or fails with an error that isn't Retryable, at most 10
// times, with a short random pause between two runs.
func Retry(ctx context.Context, fn func() error) error {
	var err error
	for attempt := range txAttempts {
		if err = fn(); err == nil || !Retryable(err) {
			return err
		}
		if err := Pause(ctx, attempt, err); err != nil {
			return err
		}
	}
	return fmt.Errorf("gave up after %d attempts: %w", txAttempts, err)
}

// Pause waits for a short random time before a transaction that failed with the error `cause`
// runs again. The time grows with `attempt`, the number of earlier runs. If the context ends
// first, Pause returns the context's error joined with `cause`; else nil.
func Pause(ctx context.Context, attempt int, cause error) error {
	if err := worker.Sleep(ctx, rand.N(5*time.Millisecond<<min(attempt, 5))); err != nil {
		return errors.Join(err, cause)
	}
	return nil
}

// Retryable says whether a transaction that failed with err may succeed when it runs again
// from the beginning: after a deadlock, a serialization failure, a violated foreign key
// (another transaction has meanwhile deleted the row that it references), or ErrLostRace.
func Retryable(err error) bool {
	switch Code(err) {
	case CodeDeadlockDetected, CodeSerializationFailure, CodeForeignKeyViolation:
		return true
	}
	return errors.Is(err, ErrLostRace)
}

// Contended says whether err means that a statement gave up because of other transactions: it
// waited too long for a lock, or was the loser of a deadlock or of a race, again and again. The
// same request may succeed later.
func Contended(err error) bool {
	switch Code(err) {
	case CodeLockNotAvailable, CodeDeadlockDetected, CodeSerializationFailure:
		return true
	}
	return false
}

// Code returns the SQLSTATE of err, or "" if err doesn't come from PostgreSQL.
func Code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// Unavailable says whether err means that the database can't be used now (it is
// starting, stopping, out of connections or out of reach), so that the same
// request may succeed later.
func Unavailable(err error) bool {
	if err == nil {
		return false
	}
	code := Code(err)
	_, imposed := errors.AsType[*pgsession.ImposedError](err)
	switch {
	case imposed: // somebody has changed the role or the database, perhaps for a while
		return true
	case errors.Is(err, ErrBusy):
		return true
	case errors.Is(err, ErrSharedSessions), code == codeProtocolViolation:
		return false // an operator has to change a setting
	case code == "":
		var connect *pgconn.ConnectError
		return errors.As(err, &connect) || isNetwork(err) || errors.Is(err, puddle.ErrClosedPool) ||
			pgconn.Timeout(err) || // the server took a statement and didn't answer
			pgconn.SafeToRetry(err) // nothing was sent: the connection was closed already
	case len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:3] == "57P"):
		return true
	}
	// CodeQueryCanceled means that the statement exceeded its timeout. 25P03 and 25P04 mean
	// that the server ended a transaction because this process stalled in it.
	return code == codeReadOnly || code == CodeQueryCanceled || code == "25P03" || code == "25P04"
}
