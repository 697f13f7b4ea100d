package loosefk

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Lock keeps two workers from working on the same parent table at the same time. It only
// saves work: two workers that both hold the lock do no harm.
type Lock interface {
	// TryRun tries to take the lock with the name `name`. If another process holds it,
	// TryRun returns false at once. Otherwise it runs fn while it holds the lock, and
	// returns true and the error of fn. The context of fn ends when the lock is lost.
	TryRun(ctx context.Context, db *Database, name string, fn func(ctx context.Context) error) (held bool, err error)
}

// AdvisoryLock is an advisory lock of PostgreSQL, in the database of the deleted records.
// While it is held, it occupies one connection of the pool.
type AdvisoryLock struct {
	// Loss is the time after which PostgreSQL releases the lock of a process that has
	// stalled or vanished. The process that holds the lock renews it six times within this
	// time. Default 30 s.
	Loss time.Duration
}

// answerTime is how long PostgreSQL may take to answer a trivial statement. After that the
// connection counts as lost.
const answerTime = 15 * time.Second

// TryRun implements Lock. The lock belongs to a transaction and not to a session of
// PostgreSQL, so it works through a connection pooler, and PostgreSQL releases it if this
// process stalls.
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
		// Commit rather than roll back, because PostgreSQL's statistics count a rollback
		// like a failed transaction. The transaction contains only the lock.
		tx.Commit(ctx) //nolint:errcheck // the lock is given up either way
	}()
	// PostgreSQL 17 and newer have a setting transaction_timeout, which would end the
	// transaction during a long drain. Set it to 0 where it exists.
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
