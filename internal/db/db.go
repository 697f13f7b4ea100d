// Package db opens the metadata database, runs transactions on it and brings
// its schema up to date.
//
// Inside it holds: every connection runs READ COMMITTED (the locking of the
// registry depends on each statement seeing what committed before it); a session
// of PostgreSQL's belongs to one connection, or connecting fails; neither a process
// nor a server that vanishes is waited for without limit (pgsession); a transaction
// that fails with a deadlock or a serialization failure runs again whole; what a
// request costs in round trips is counted; the schema only ever moves forward,
// under a lock, and functions and triggers are applied as they stand in routines/
// whenever they differ from what the database has.
package db

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/purser-registry/purser/internal/pgsession"
)

// SQLSTATE codes that callers decide on.
const (
	CodeForeignKeyViolation  = "23503"
	CodeUniqueViolation      = "23505"
	CodeSerializationFailure = "40001"
	CodeDeadlockDetected     = "40P01"
	CodeLockNotAvailable     = "55P03"
	CodeQueryCanceled        = "57014"
	CodeUndefinedTable       = "42P01"
)

// Options says how to connect.
type Options struct {
	DSN string // URL or key=value; required
	// MaxConns bounds the pool. Default 20.
	MaxConns int
	// Replica names this process in the session setting purser.replica of
	// every connection, so that its changes aren't told to itself. Empty: its
	// changes are told to every process that keeps a cache.
	Replica string
	// ApplicationName is shown in pg_stat_activity. Default "purser".
	ApplicationName string
	// StatementTimeout ends a statement on the server, whatever became of the
	// client. Default 30 s; negative: none.
	StatementTimeout time.Duration
	// LockTimeout ends a statement that waits longer for a lock. Default: none.
	// Background work sets it below PostgreSQL's deadlock_timeout, so that in a
	// deadlock it is the one that gives way.
	LockTimeout time.Duration
	// IdleTimeout ends a transaction whose client has stalled that long, with
	// its connection. Default 20 s: shorter than StatementTimeout, so that who
	// waits for the locks of a process that stalls gets them.
	IdleTimeout time.Duration
	// TransactionTimeout ends a transaction, with its connection, on PostgreSQL 17
	// and newer. Default 2 min. [LiftLimits] lifts it.
	TransactionTimeout time.Duration
	// Connected is called for each new connection with the id of the process that
	// PostgreSQL serves it by. Nil: nobody wants to know.
	Connected func(pid uint32)
	Log       *slog.Logger // default slog.Default()
}

// DB is a pool of connections to one database.
type DB struct {
	Pool *pgxpool.Pool
	log  *slog.Logger
}

// Open makes the pool. It doesn't connect: use Ping, or any query.
func Open(ctx context.Context, o Options) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("reading the database's DSN: %w", err)
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 20
	}
	if o.StatementTimeout == 0 {
		o.StatementTimeout = 30 * time.Second
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = 20 * time.Second
	}
	if o.TransactionTimeout <= 0 {
		o.TransactionTimeout = 2 * time.Minute
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "purser"
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	cfg.MaxConns = int32(o.MaxConns)
	cfg.MinIdleConns = 1
	// A backend that nothing is asked of has memory that others could use.
	cfg.MaxConnIdleTime = 2 * time.Minute
	cfg.PingTimeout = pgsession.PingTimeout
	configure(cfg.ConnConfig, o.params())
	// A batch is one transaction, or a part of one.
	cfg.ConnConfig.Tracer = multitracer.New(tracer{},
		pgsession.Tracer{Statement: max(o.StatementTimeout, 0), Batch: max(o.TransactionTimeout, o.StatementTimeout)})
	if o.Connected != nil {
		cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			o.Connected(conn.PgConn().PID())
			return nil
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	return &DB{Pool: pool, log: o.Log}, nil
}

// params are the settings of each session.
func (o Options) params() map[string]string {
	params := map[string]string{}
	params["application_name"] = o.ApplicationName
	params["default_transaction_isolation"] = "read committed"
	params["timezone"] = "UTC"
	// Every statement is prepared once. Planning it anew for each set of
	// arguments, as PostgreSQL chooses to do for partitioned tables, costs more
	// than most of them do; partitions are pruned when a plan runs.
	params["plan_cache_mode"] = "force_generic_plan"
	params["jit"] = "off"
	// What is looked up has an index. A plan is kept until PostgreSQL has analyzed
	// its tables anew, and a plan for one that was found empty then reads all of it.
	// Queues are empty most of the time, and fill by a million rows within a minute.
	params["enable_seqscan"] = "off"
	if o.Replica != "" {
		params["purser.replica"] = o.Replica
	}
	maps.Copy(params, pgsession.Settings(pgsession.Limits{
		Statement: o.StatementTimeout, Lock: o.LockTimeout, Idle: o.IdleTimeout, Transaction: o.TransactionTimeout,
	}))
	return params
}

// Close closes every connection, waiting for those in use.
func (d *DB) Close() { d.Pool.Close() }

// Ping checks that the database answers.
func (d *DB) Ping(ctx context.Context) error {
	if err := d.Pool.Ping(ctx); err != nil {
		return pgsession.Explain(fmt.Errorf("reaching the database: %w", explain(err)), "")
	}
	return nil
}

// Unhurried exempts calls under the context from the time that a client waits for
// the server's answer. It is for transactions that LiftLimits is called in, their
// commit included.
func Unhurried(ctx context.Context) context.Context { return pgsession.Unhurried(ctx) }

// LiftLimits lifts the limits of the pool for the rest of a transaction that takes
// its time, but for those on waiting: LockTimeout and IdleTimeout. The transaction
// must run under the context of [Unhurried].
func LiftLimits(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT set_config('statement_timeout', '0', true), ("+pgsession.LiftTransaction+")")
	if err != nil {
		return fmt.Errorf("lifting the limits of a transaction: %w", err)
	}
	return nil
}

// txAttempts bounds how often a transaction runs again. Reruns are of losers of
// a race; each has a winner, so the bound is met only when something is wrong.
const txAttempts = 10

// ErrLostRace is what an error wraps, or says it is, that a rerun of the transaction
// settles though PostgreSQL has raised none.
var ErrLostRace = errors.New("the transaction lost a race")

// Tx runs fn in a READ COMMITTED transaction and commits it. When the
// transaction loses a deadlock, fails to serialize, or meets a foreign key whose
// target has just gone, it is rolled back and fn runs again, so fn must set its
// results anew each time and do nothing but SQL.
func (d *DB) Tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return Retry(ctx, func() error {
		return pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn)
	})
}

// Retry runs fn until it ends otherwise than with an error that Retryable
// names, at most 10 times, with a short random pause in between.
func Retry(ctx context.Context, fn func() error) error {
	var err error
	for attempt := range txAttempts {
		if err = fn(); err == nil || !Retryable(err) {
			return err
		}
		pause := time.Duration(rand.Int64N(int64(5*time.Millisecond) << min(attempt, 5)))
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return errors.Join(ctx.Err(), err)
		case <-t.C:
		}
	}
	return fmt.Errorf("gave up after %d attempts: %w", txAttempts, err)
}

// Retryable says whether err is one that a rerun of the whole transaction
// settles: a deadlock, a serialization failure, a foreign key whose target another
// transaction deleted while this one waited for it, or ErrLostRace.
func Retryable(err error) bool {
	switch Code(err) {
	case CodeDeadlockDetected, CodeSerializationFailure, CodeForeignKeyViolation:
		return true
	}
	return errors.Is(err, ErrLostRace)
}

// Code is the SQLSTATE of err, or "" when err doesn't come from PostgreSQL.
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
	switch {
	case errors.Is(err, ErrSharedSessions), code == codeProtocolViolation:
		return false // somebody has to change a setting
	case code == "":
		var connect *pgconn.ConnectError
		return errors.As(err, &connect) || isNetwork(err) || errors.Is(err, puddle.ErrClosedPool) ||
			pgconn.Timeout(err) || // the server took a statement and didn't answer
			pgconn.SafeToRetry(err) // nothing was sent: the connection was closed already
	case len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:3] == "57P"):
		return true
	}
	// Read-only: a standby that was promoted away from. Cancelled: it took too long.
	// The others: this process stalled in a transaction, which was ended.
	return code == "25006" || code == CodeQueryCanceled || code == "25P03" || code == "25P04"
}
