package loosefk

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Lock keeps workers from doing the same work twice. Correctness doesn't depend on it: two
// workers that hold it at once do no harm.
type Lock interface {
	// TryRun tries to take the lock called name, and if it succeeds runs fn and returns true.
	// When another process holds the lock, it returns false at once. The context of fn ends
	// when the lock is lost.
	TryRun(ctx context.Context, db *Database, name string, fn func(ctx context.Context) error) (held bool, err error)
}

// AdvisoryLock is a lock of PostgreSQL's in the database of the deleted records.
// It takes a connection of the pool as long as it is held.
type AdvisoryLock struct {
	// Loss is after how long PostgreSQL takes the lock from a process that stalls or has
	// vanished. The holder renews it six times as often. Default 30 s.
	Loss time.Duration
}

// answerTime is how long PostgreSQL may take for a trivial statement before the connection
// counts as lost.
const answerTime = 15 * time.Second

// TryRun is Lock's. The lock belongs to a transaction and not to a session, so it
// works through a pool in front of PostgreSQL, and ends when this process stalls.
func (l AdvisoryLock) TryRun(ctx context.Context, db *Database, name string, fn func(ctx context.Context) error) (held bool, err error) {
	if l.Loss <= 0 {
		l.Loss = 30 * time.Second
	}
	tx, err := db.Pool.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("taking lock %s: %w", name, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer cancel()
		// Commit, since PostgreSQL's statistics would count a rollback as a failure. The
		// transaction contains only the lock.
		tx.Commit(ctx) //nolint:errcheck // the lock is given up either way
	}()
	// PostgreSQL has a transaction_timeout from 17 on. It would end a long drain.
	err = tx.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1, 0)),
		pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true),
		(SELECT pg_catalog.count(pg_catalog.set_config(s.name, '0', true)) FROM pg_settings s WHERE s.name = 'transaction_timeout')`,
		name, milliseconds(l.Loss)).Scan(&held, nil, nil)
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
		tick := time.NewTicker(l.Loss / 6)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				ctx, cancel := context.WithTimeout(lockCtx, answerTime)
				_, err := tx.Exec(ctx, "SELECT 1")
				cancel()
				if err != nil {
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
