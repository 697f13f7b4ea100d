package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/pgsession"
)

const (
	// migrateLock is the key of the advisory lock that a process has while it migrates.
	migrateLock = 0x70757273 // "purs"

	lockRetry = 200 * time.Millisecond
	// The process that has the migration lock runs a statement every lockRenewal. If the
	// process stalls, PostgreSQL ends its transaction after lockLoss and so releases the lock.
	lockRenewal  = 5 * time.Second
	lockLoss     = 30 * time.Second
	lockAnswer   = 10 * time.Second // the time within which PostgreSQL must answer
	closeTimeout = 5 * time.Second
)

// renewal is a statement for which PostgreSQL takes no snapshot. An index that is built meanwhile would
// wait for the end of a transaction that has one, and the lock's transaction lasts as long as the build.
const renewal = "SET LOCAL lock_timeout = 0"

// errLockLost says that this process lost the advisory lock and had to stop migrating, since
// another process may be migrating now.
var errLockLost = errors.New("the lock that lets one process migrate was lost")

// alone waits for the advisory lock of migrations, and runs fn while it has the lock, so that
// no other process migrates. It calls `waits` if another process has the lock. If this process
// loses the lock, alone cancels fn's context and returns errLockLost, joined with fn's error.
//
// The lock belongs to a transaction that does nothing else. PostgreSQL ends this transaction,
// and so releases the lock for the next process, at once if this process dies, and after
// `loss` (30 s) if it stalls. A session-level lock would last as long as the connection, which
// may stay open long after the process's machine has vanished.
func alone(ctx context.Context, dsn string, loss time.Duration, waits func(what string), fn func(ctx context.Context) error) error {
	conn, done, err := lockConn(ctx, dsn, loss)
	if err != nil {
		return err
	}
	defer done()
	if err := takeLock(ctx, conn, waits); err != nil {
		return fmt.Errorf("waiting for another process that migrates: %w", err)
	}
	held, lost := context.WithCancelCause(ctx)
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		if err := renew(held, conn); err != nil {
			lost(fmt.Errorf("%w: %w", errLockLost, err))
		}
	}()
	err = fn(held)
	cause := context.Cause(held)
	lost(nil)
	<-renewing
	if errors.Is(cause, errLockLost) {
		err = errors.Join(err, cause)
	}
	return err
}

// lockConn opens the connection for the transaction that has the migration lock, and returns
// it with a function that closes it. Each statement on the connection fails if PostgreSQL
// doesn't answer within lockAnswer. `loss` is the time without a statement after which
// PostgreSQL ends the transaction.
func lockConn(ctx context.Context, dsn string, loss time.Duration) (*pgx.Conn, func(), error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the database's DSN: %w", err)
	}
	configure(cfg, pgsession.Settings(pgsession.Limits{Statement: lockAnswer, Idle: loss}))
	cfg.Tracer = pgsession.Tracer{Statement: lockAnswer}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to migrate: %w", explain(err))
	}
	return conn, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		// Closing the connection would end the transaction, which has changed nothing, and
		// release the lock. But PostgreSQL would count that as a rollback in its statistics,
		// so commit first.
		if !conn.IsClosed() && conn.PgConn().TxStatus() == 'T' {
			conn.Exec(ctx, "COMMIT") //nolint:errcheck // see above
		}
		conn.Close(ctx) //nolint:errcheck // see above
	}, nil
}

// takeLock waits until it gets the advisory lock, in a transaction that it begins. It calls `waits`
// if it doesn't get the lock at once.
//
// Each try has a transaction of its own: the process that has the lock may be building an index, for
// which PostgreSQL waits until each transaction has ended of which it saw a snapshot.
func takeLock(ctx context.Context, conn *pgx.Conn, waits func(what string)) error {
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	for try := 0; ; try++ {
		if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
			return err
		}
		var mine bool
		err := conn.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", migrateLock).Scan(&mine)
		if err == nil && mine {
			_, err = conn.Exec(ctx, renewal) // PostgreSQL keeps a query's snapshot until the next statement
		}
		if err != nil || mine {
			return err
		}
		if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
			return err
		}
		if try == 0 {
			waits(waitsForProcess)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// renew runs a statement in the lock's transaction every lockRenewal until ctx ends, so that
// PostgreSQL doesn't end the transaction as idle.
func renew(ctx context.Context, conn *pgx.Conn) error {
	tick := time.NewTicker(lockRenewal)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if _, err := conn.Exec(ctx, renewal); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
