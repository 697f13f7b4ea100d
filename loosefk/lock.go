package loosefk

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Lock keeps workers out of each other's way. It guards nothing: two workers
// that hold it at once do the same work twice, and no harm.
type Lock interface {
	// Hold runs fn while it holds the lock called name, and says so. When another
	// process holds it, it returns false at once. The context of fn ends when the
	// lock is lost.
	Hold(ctx context.Context, db *Database, name string, fn func(ctx context.Context) error) (held bool, err error)
}

// AdvisoryLock is a lock of PostgreSQL's in the database of the deleted records.
// It takes a connection of the pool as long as it is held.
type AdvisoryLock struct{}

// keepAlive is how often a held lock is made sure of.
const keepAlive = 5 * time.Second

// Hold is Lock's. The lock belongs to a transaction and not to a session, so it
// works through a pool in front of PostgreSQL.
func (AdvisoryLock) Hold(ctx context.Context, db *Database, name string, fn func(ctx context.Context) error) (held bool, err error) {
	tx, err := db.Pool.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("taking lock %s: %w", name, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it only releases the lock
	var idle string
	err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)),
		set_config('idle_in_transaction_session_timeout', '0', true)`, name).Scan(&held, &idle)
	if err != nil {
		return false, fmt.Errorf("taking lock %s: %w", name, err)
	}
	if !held {
		return false, nil
	}
	lockCtx, lost := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(keepAlive)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if _, err := tx.Exec(lockCtx, "SELECT 1"); err != nil {
					lost(fmt.Errorf("lock %s is lost: %w", name, err))
					return
				}
			}
		}
	}()
	err = fn(lockCtx)
	close(done)
	lost(nil)
	<-stopped
	if cause := context.Cause(lockCtx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return true, err
}

// explain adds to an error what helps behind a pooler that shares sessions: there
// a prepared statement is another client's, or nobody's.
func explain(err error) error {
	if isState(err, "26000") || isState(err, "42P05") {
		return fmt.Errorf("%w (a connection pooler shares sessions among clients: put default_query_exec_mode=cache_describe into the DSN, or give PgBouncer 1.21 or newer max_prepared_statements)", err)
	}
	return err
}
