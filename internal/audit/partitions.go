package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// PartitionOptions configures a PartitionManager.
type PartitionOptions struct {
	DB *db.DB // required
	// Retention is how long entries are kept at least. A month's partition is dropped when
	// all of the month is older than that. 0: entries are kept for ever.
	Retention time.Duration
	// Read returns the position up to which the statistics worker has read pulls. A month
	// is not dropped while it has a pull after that position that still has to be counted
	// from the audit log. If Read is nil, there is no such worker, and uncounted pulls
	// keep no month from being dropped.
	Read func(ctx context.Context) (Position, error)
	// MayDelete returns an error that wraps worker.ErrRest while what is old at a time that the
	// database has given mustn't be dropped or deleted for its age (clock.Guard.CheckTime). Nil: it
	// always may.
	MayDelete func(ctx context.Context, now time.Time) error
	// Now is the clock. Default: the database's.
	Now func() time.Time
	// LockTimeout bounds each wait for a table lock, since all later writers queue behind
	// the waiting request. It must be below PostgreSQL's deadlock_timeout. Default 200 ms.
	LockTimeout time.Duration
	// Tries is how often Update tries to get the table locks that it needs for one
	// partition. Default 10.
	Tries   int
	Log     *slog.Logger    // default slog.Default()
	Metrics *worker.Metrics // nil: none
}

// PartitionChanges says what one call of Update changed.
type PartitionChanges struct {
	Made    []string // partitions
	Moved   int64    // entries out of the default partition
	Dropped []string // partitions
	Deleted int64    // old entries of the default partition
	// Uncounted are partitions past their retention that were not dropped because the
	// statistics worker hasn't read all their pulls.
	Uncounted []string
	// Busy says that some work was left for the next call, because locks of other
	// transactions on the table auditlog kept Update from doing it.
	Busy bool
}

// PartitionManager creates the audit log's partitions of the coming months and drops those
// whose retention is over. Any number of processes may run one at the same time.
type PartitionManager struct {
	opt PartitionOptions
	log *slog.Logger
}

// NewPartitionManager makes a partition manager. It does nothing before Run or Update.
func NewPartitionManager(o PartitionOptions) *PartitionManager {
	o.LockTimeout = cmp.Or(o.LockTimeout, 200*time.Millisecond)
	o.Tries = cmp.Or(o.Tries, 10)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &PartitionManager{o, o.Log}
}

// Run calls Update every minute until ctx ends.
func (pm *PartitionManager) Run(ctx context.Context) error {
	return worker.New(worker.Options{
		Name: "audit partitions", Timeout: time.Hour, Log: pm.log, Metrics: pm.opt.Metrics,
		Batch: func(ctx context.Context) (bool, error) {
			_, err := pm.Update(ctx)
			return false, err
		},
	}).Run(ctx)
}

var (
	errBusy        = errors.New("open transactions have locked the audit log")
	errAlreadyDone = errors.New("another process has made or dropped the partition already")
	errUncounted   = errors.New("pulls of the month have not been read")
)

// Update creates the partitions of the current month, of the next month, and of earlier
// months whose entries are in the default partition. Then, unless nothing may be deleted for its
// age, it drops the partitions of months whose retention is over, and deletes old HEAD requests
// from the table pullheads (deleteHeads). If one step fails, Update still tries the others, and
// returns all errors.
func (pm *PartitionManager) Update(ctx context.Context) (PartitionChanges, error) {
	var done PartitionChanges
	now, err := pm.now(ctx)
	if err != nil {
		return done, fmt.Errorf("managing the audit log's partitions: %w", err)
	}
	oldest := time.Time{} // the first month that is kept
	if pm.opt.Retention > 0 {
		oldest = monthOf(now.Add(-pm.opt.Retention))
	}
	problems := []error{pm.createMissing(ctx, oldest, monthOf(now), &done)}
	switch err := pm.mayDelete(ctx, now); {
	case err == nil:
		if pm.opt.Retention > 0 {
			problems = append(problems, pm.dropExpired(ctx, oldest, &done))
		}
		problems = append(problems, pm.deleteHeads(ctx, now.Add(-headRetention)))
	case !errors.Is(err, worker.ErrRest):
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return done, fmt.Errorf("managing the audit log's partitions: %w", err)
	}
	if len(done.Made)+len(done.Dropped) > 0 || done.Deleted > 0 {
		pm.log.InfoContext(ctx, "made or dropped partitions of the audit log", "made", done.Made, "moved", done.Moved,
			"dropped", done.Dropped, "deleted", done.Deleted, "uncounted", done.Uncounted)
	}
	return done, nil
}

func (pm *PartitionManager) now(ctx context.Context) (now time.Time, err error) {
	if pm.opt.Now != nil {
		return pm.opt.Now(), nil
	}
	err = pm.opt.DB.Pool.QueryRow(ctx, "SELECT now()").Scan(&now)
	return now, err
}

// month is the first moment of a month, UTC.
type month = time.Time

func monthOf(t time.Time) month {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

func next(m month) month { return m.AddDate(0, 1, 0) }

// These are the names of partitions, from which the partition manager learns the month of
// each. All partitions are in the schema partitions.
const (
	nameLayout       = "auditlog_2006_01"
	defaultPartition = "partitions.auditlog_default"
)

func partitionName(m month) string { return "partitions." + m.Format(nameLayout) }

// months returns the months that have a partition, oldest first.
func (pm *PartitionManager) months(ctx context.Context) ([]month, error) {
	rows, err := pm.opt.DB.Pool.Query(ctx, `
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'auditlog'::regclass ORDER BY c.relname`)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	var list []month
	for _, name := range names {
		if m, err := time.Parse(nameLayout, name); err == nil {
			list = append(list, m)
		}
	}
	return list, nil
}

// createMissing creates the partitions of the current and the next month, and of each month
// from `oldest` on that has entries in the default partition, unless these partitions
// exist.
func (pm *PartitionManager) createMissing(ctx context.Context, oldest, current month, done *PartitionChanges) error {
	have, err := pm.months(ctx)
	if err != nil {
		return err
	}
	there := map[month]bool{}
	for _, m := range have {
		there[m] = true
	}
	// PostgreSQL puts no entry of a month that has its own partition into the default
	// partition. So each month that is found there lacks its partition.
	missing, err := pm.monthsInDefault(ctx, oldest, current)
	if err != nil {
		return err
	}
	for _, m := range append(missing, current, next(current)) {
		if there[m] {
			continue
		}
		there[m] = true
		moved, err := pm.create(ctx, m)
		switch {
		case errors.Is(err, errAlreadyDone):
		case errors.Is(err, errBusy):
			done.Busy = true
			pm.log.WarnContext(ctx, "a partition of the audit log could not be made yet: the default partition takes its entries", "partition", partitionName(m), "error", err)
		case err != nil:
			return fmt.Errorf("making %s: %w", partitionName(m), err)
		default:
			done.Made, done.Moved = append(done.Made, partitionName(m)), done.Moved+moved
		}
	}
	return nil
}

// monthsInDefault returns the months from `oldest` on and before `current` that have
// entries in the default partition.
func (pm *PartitionManager) monthsInDefault(ctx context.Context, oldest, current month) (list []month, err error) {
	for from := oldest; ; {
		var first *time.Time
		err := pm.opt.DB.Pool.QueryRow(ctx, "SELECT min(time) FROM "+defaultPartition+" WHERE time >= $1 AND time < $2", from, current).Scan(&first)
		if err != nil || first == nil {
			return list, err
		}
		list = append(list, monthOf(*first))
		from = next(monthOf(*first))
	}
}

// create creates the partition of a month, in one transaction. First it moves the month's
// entries into it from the default partition, while others read and write. Then it locks
// the table auditlog for a moment, moves the entries that came meanwhile, and attaches the
// partition.
//
// After a repository was deleted, the worker of loose foreign keys sets repository_id to
// NULL in the repository's entries. That worker may wait for an entry that create is
// moving, while create waits for the worker's lock on the table. This deadlock ends when
// the lock timeout of one of them is over; both timeouts are short.
func (pm *PartitionManager) create(ctx context.Context, m month) (moved int64, err error) {
	ctx = db.Unhurried(ctx)
	err = pgx.BeginTxFunc(ctx, pm.opt.DB.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		moved = 0
		attached, err := pm.beginChange(ctx, tx, m)
		if err == nil && attached {
			err = errAlreadyDone
		}
		if err != nil {
			return err
		}
		// This CHECK constraint saves ATTACH PARTITION a scan of the entries.
		_, err = tx.Exec(ctx, fmt.Sprintf(`CREATE TABLE %s (LIKE auditlog INCLUDING ALL,
			CONSTRAINT month CHECK (time >= %s AND time < %s))`, partitionName(m), literal(m), literal(next(m))))
		if err != nil {
			return err
		}
		if moved, err = pm.moveEntries(ctx, tx, m); err != nil {
			return err
		}
		return pm.withLocks(ctx, tx, func(tx pgx.Tx) error {
			// This locks out readers too. A query that was planned before the partition is
			// attached reads only the default partition. If it could wait for the default
			// partition's lock, it would continue after the move and miss the moved
			// entries.
			if _, err := tx.Exec(ctx, "LOCK TABLE ONLY auditlog IN ACCESS EXCLUSIVE MODE"); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "LOCK TABLE "+defaultPartition+" IN ACCESS EXCLUSIVE MODE"); err != nil {
				return err
			}
			late, err := pm.moveEntries(ctx, tx, m)
			if err != nil {
				return err
			}
			moved += late
			_, err = tx.Exec(ctx, fmt.Sprintf("ALTER TABLE auditlog ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)",
				partitionName(m), literal(m), literal(next(m))))
			if err == nil {
				_, err = tx.Exec(ctx, "ALTER TABLE "+partitionName(m)+" DROP CONSTRAINT month")
			}
			return err
		})
	})
	return moved, err
}

// literal returns the first moment of a month as an SQL literal.
func literal(m month) string { return "'" + m.Format("2006-01-02") + " 00:00:00+00'" }

// moveEntries moves the entries of a month, unchanged, from the default partition to the
// month's partition, and returns how many it moved.
func (pm *PartitionManager) moveEntries(ctx context.Context, tx pgx.Tx, m month) (int64, error) {
	tag, err := tx.Exec(ctx, fmt.Sprintf(`
		WITH gone AS (DELETE FROM %s WHERE time >= $1 AND time < $2 RETURNING *)
		INSERT INTO %s SELECT * FROM gone`, defaultPartition, partitionName(m)), m, next(m))
	return tag.RowsAffected(), err
}

// beginChange takes an advisory lock, so that only one transaction at a time changes
// partitions, and returns whether the month's partition exists and is attached. It also
// lifts the transaction's time limits, since there may be many entries to move. It returns
// errBusy if another process holds the advisory lock.
func (pm *PartitionManager) beginChange(ctx context.Context, tx pgx.Tx, m month) (attached bool, err error) {
	var mine bool
	if err := db.LiftLimits(ctx, tx); err != nil {
		return false, err
	}
	err = tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended('auditlog/partitions', 0))").Scan(&mine)
	if err == nil && !mine {
		err = errBusy
	}
	if err != nil {
		return false, err
	}
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_inherits
		WHERE inhparent = 'auditlog'::regclass AND inhrelid = to_regclass($1))`, partitionName(m)).Scan(&attached)
	return attached, err
}

// withLocks runs `fn`, whose statements lock tables, in a savepoint. If fn doesn't get a
// lock within LockTimeout, or a deadlock aborts it, withLocks rolls back to the savepoint,
// which releases fn's locks and keeps the transaction's earlier work. Then it pauses and
// runs fn again. After Tries such failures it returns errBusy. Any other error of fn is
// returned at once.
func (pm *PartitionManager) withLocks(ctx context.Context, tx pgx.Tx, fn func(tx pgx.Tx) error) error {
	wait := pm.opt.LockTimeout
	var err error
	for range pm.opt.Tries {
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", strconv.FormatInt(max(wait.Milliseconds(), 1), 10))
			if err != nil {
				return err
			}
			return fn(tx)
		})
		if code := db.Code(err); code != db.CodeLockNotAvailable && code != db.CodeDeadlockDetected {
			return err
		}
		_ = worker.Sleep(ctx, wait+rand.N(wait))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: %w", errBusy, err)
}

// mayDelete returns an error while nothing may be dropped or deleted that is old at the time `now`.
func (pm *PartitionManager) mayDelete(ctx context.Context, now time.Time) error {
	if pm.opt.MayDelete == nil {
		return nil
	}
	return pm.opt.MayDelete(ctx, now)
}

// dropExpired drops the partitions of months before `oldest`, unless the statistics worker
// still has to count pulls in them. It also deletes entries of these months from the
// default partition.
func (pm *PartitionManager) dropExpired(ctx context.Context, oldest month, done *PartitionChanges) error {
	have, err := pm.months(ctx)
	if err != nil {
		return err
	}
	uncounted, args, err := pm.uncounted(ctx)
	if err != nil {
		return err
	}
	for _, m := range have {
		if !m.Before(oldest) {
			continue
		}
		err := pm.drop(ctx, m, uncounted, args)
		switch {
		case errors.Is(err, errAlreadyDone):
		case errors.Is(err, errUncounted):
			done.Uncounted = append(done.Uncounted, partitionName(m))
		case errors.Is(err, errBusy):
			done.Busy = true
		case err != nil:
			return fmt.Errorf("dropping %s: %w", partitionName(m), err)
		default:
			done.Dropped = append(done.Dropped, partitionName(m))
		}
	}
	return pm.deleteExpiredEntries(ctx, oldest, uncounted, args, done)
}

// uncounted returns an SQL condition, with its arguments, that selects the pulls that the
// statistics worker still has to count. Such a pull keeps its partition from being dropped.
// Pulls whose counted_by is NULL are among them: if statistics are switched on later, the
// worker may still count these.
func (pm *PartitionManager) uncounted(ctx context.Context) (string, []any, error) {
	if pm.opt.Read == nil {
		return "false", nil, nil
	}
	p, err := pm.opt.Read(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("reading up to where the audit log's pulls are counted: %w", err)
	}
	xid, id := p.Arguments()
	return `kind = 'pull_repo' AND counted_by IS DISTINCT FROM 'redis' AND (xid, id) > ($1::text::xid8, $2::bigint)`, []any{xid, id}, nil
}

// drop drops the partition of a month, unless the statistics worker still has to count a
// pull in it. It detaches the partition before it searches for such a pull, because
// detaching waits for transactions that are writing pulls. It returns errUncounted if there
// is such a pull, errAlreadyDone if the partition isn't attached, and errBusy if it didn't
// get the locks.
func (pm *PartitionManager) drop(ctx context.Context, m month, uncounted string, args []any) error {
	// This searches without table locks first: if the partition must stay because of an
	// uncounted pull, no writer has to wait.
	if err := findUncounted(ctx, pm.opt.DB.Pool, m, uncounted, args); err != nil {
		return err
	}
	ctx = db.Unhurried(ctx)
	return pgx.BeginTxFunc(ctx, pm.opt.DB.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		attached, err := pm.beginChange(ctx, tx, m)
		if err == nil && !attached {
			err = errAlreadyDone
		}
		if err != nil {
			return err
		}
		return pm.withLocks(ctx, tx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "ALTER TABLE auditlog DETACH PARTITION "+partitionName(m)); err != nil {
				return err
			}
			if err := findUncounted(ctx, tx, m, uncounted, args); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "DROP TABLE "+partitionName(m))
			return err
		})
	})
}

// findUncounted searches the partition of a month for pulls that the statistics worker
// still has to count. It returns errUncounted if there is one, and errAlreadyDone if the
// partition doesn't exist.
func findUncounted(ctx context.Context, q db.Querier, m month, uncounted string, args []any) error {
	var found bool
	err := q.QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s)", partitionName(m), uncounted), args...).Scan(&found)
	switch {
	case db.Code(err) == "42P01": // undefined table
		return errAlreadyDone
	case err == nil && found:
		return errUncounted
	}
	return err
}

// deleteExpiredEntries deletes the entries of months before `oldest` from the default
// partition, a thousand per statement, except pulls that the statistics worker still has to
// count. The default partition has entries of such old months if they were written after
// their month's partition was dropped.
func (pm *PartitionManager) deleteExpiredEntries(ctx context.Context, oldest month, uncounted string, args []any, done *PartitionChanges) error {
	sql := fmt.Sprintf(`DELETE FROM %s WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM %s WHERE time < %s AND (%s) IS NOT TRUE LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
		defaultPartition, defaultPartition, literal(oldest), uncounted)
	for {
		tag, err := pm.opt.DB.Pool.Exec(ctx, sql, args...)
		done.Deleted += tag.RowsAffected()
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
	}
}
