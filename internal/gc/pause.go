package gc

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// sweepLock is the key of the advisory lock that PauseSweeps takes, and that ClaimPending
// takes in shared mode.
const sweepLock = 0x70757377 // "pusw"

var (
	// ErrSweepsPaused says that no pending deletions can be claimed, since a backup is running.
	ErrSweepsPaused = errors.New("a backup is running, so nothing is deleted from the blob store")

	// ErrPausing says that another process has paused the sweepers.
	ErrPausing = errors.New("another backup or restore of this registry is running")
)

const (
	// pauseWait is how long PauseSweeps waits for the statements of sweepers that are claiming
	// pending deletions.
	pauseWait = "20s"
	// pauseOfAnother is how long it waits for another that has paused the sweepers. That one may just be
	// ending, or have been killed, and then its session ends soon.
	pauseOfAnother = "2s"
)

// PauseSweeps keeps all processes from claiming pending deletions, until [ResumeSweeps] or the
// end of the connection's session. It returns ErrPausing if another connection has paused
// them.
//
// After PauseSweeps has returned, every object that a sweeper can still be deleting was
// claimed by a statement that had committed before, and the row of the object's blob had been
// deleted before that. So a snapshot that begins after PauseSweeps has no row of a blob whose
// object is deleted before ResumeSweeps.
func PauseSweeps(ctx context.Context, conn *pgx.Conn) error {
	var before string // RESET would set what the role or the database imposes
	err := conn.QueryRow(ctx, `
		WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value)
		SELECT value, set_config('lock_timeout', CASE WHEN EXISTS (
			SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
				AND l.classid = 0 AND l.objid = $1::bigint::oid AND l.objsubid = 1) THEN $3 ELSE $2 END, false) FROM before`,
		sweepLock, pauseWait, pauseOfAnother).Scan(&before, nil)
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock($1)", sweepLock)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT set_config('lock_timeout', $1, false)", before)
	}
	if db.Code(err) == db.CodeLockNotAvailable {
		return ErrPausing
	}
	if err != nil {
		return fmt.Errorf("pausing deletions from the blob store: %w", err)
	}
	return nil
}

// ResumeSweeps ends what PauseSweeps began on the same connection, also if ctx has ended. If it
// fails, the end of the connection does it.
func ResumeSweeps(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", sweepLock) //nolint:errcheck // see above
}

// SweepsPausedIn says whether the sweepers of the connection's database are paused by another
// connection. Since the lock belongs to a database, a process that has paused them can tell by
// this function whether two connections lead to the same database.
func SweepsPausedIn(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var free bool
	err := conn.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock_shared($1)", sweepLock).Scan(&free)
	if err != nil {
		return false, fmt.Errorf("looking for a backup that runs: %w", err)
	}
	return !free, nil
}
