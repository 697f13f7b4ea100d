package pullstats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// state is the only row of pullstatisticsprocessingstate: since when the statistics are
// complete, and up to which position the SyncWorker has read the audit log.
type state struct {
	Read    audit.Position // the watermark
	Last    time.Time      // the newest pull that was read, zero: none
	Since   time.Time      // time from which on every use is recorded
	Counts  time.Time      // time from which on every pull is counted
	Checks  time.Time      // time from which on HEAD requests are recorded
	Counted int64
	Updated time.Time
	now     time.Time // by the clock of the statistics' database
	missing int       // number of processes that went silent while they had pulls to write
}

// errNoState says that pullstatisticsprocessingstate has no row yet, since no SyncWorker has
// ever run with this database.
var errNoState = errors.New("no pulls were counted yet")

// readState reads the row of pullstatisticsprocessingstate, and returns errNoState if there
// is none. If `lock` is set, it locks the row, so that no other SyncWorker can commit counts
// until the transaction of q ends.
func readState(ctx context.Context, q db.Querier, lock bool) (s state, err error) {
	clause := ""
	if lock {
		clause = "FOR UPDATE"
	}
	var xid string
	var last *time.Time
	err = q.QueryRow(ctx, `
		SELECT last_processed_xid::text, last_processed_log_id, last_processed_timestamp, recorded_since,
			GREATEST(recorded_since, uncounted_at + interval '1 microsecond'), checks_since, entries_counted,
			updated_at, clock_timestamp(), (SELECT count(*) FROM pullrecorders
				WHERE ended_at IS NULL AND written_to IS NOT NULL AND seen_at < now() - interval '15 seconds')
		FROM pullstatisticsprocessingstate `+clause).
		Scan(&xid, &s.Read.ID, &last, &s.Since, &s.Counts, &s.Checks, &s.Counted, &s.Updated, &s.now, &s.missing)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, errNoState
	}
	if err == nil {
		s.Read, err = audit.PositionOf(xid, s.Read.ID)
	}
	if err != nil {
		return s, fmt.Errorf("reading how far pulls were counted: %w", err)
	}
	if last != nil {
		s.Last = last.UTC()
	}
	s.Since, s.Counts = s.Since.UTC(), s.Counts.UTC()
	if s.missing > 0 && s.now.After(s.Since) { // a silent process may have died with unwritten pulls
		s.Since = s.now.UTC()
	}
	if s.Since.After(s.Counts) {
		s.Counts = s.Since
	}
	return s, nil
}

// move moves the watermark from s.Read to the position of the last entry in `pulls`, and
// adds `counted` to the number of pulls that were ever counted. If another worker has moved
// the watermark since s was read, move changes nothing and returns false.
func (s state) move(ctx context.Context, tx pgx.Tx, pulls []audit.Pull, counted int) (moved bool, err error) {
	to, last := s.Read, (*time.Time)(nil)
	for i := range pulls {
		to = pulls[i].Position
		if pulls[i].Head {
			continue
		}
		if last == nil || pulls[i].Time.After(*last) {
			last = &pulls[i].Time
		}
	}
	fromXID, fromID := s.Read.Arguments()
	toXID, toID := to.Arguments()
	done, err := tx.Exec(ctx, `
		UPDATE pullstatisticsprocessingstate SET
			last_processed_xid = $3::text::xid8, last_processed_log_id = $4,
			last_processed_timestamp = GREATEST(last_processed_timestamp, $5::timestamptz),
			entries_counted = entries_counted + $6, updated_at = now()
		WHERE last_processed_xid = $1::text::xid8 AND last_processed_log_id = $2`,
		fromXID, fromID, toXID, toID, last, counted)
	if err != nil {
		return false, fmt.Errorf("recording how far pulls were counted: %w", err)
	}
	return done.RowsAffected() > 0, nil
}

// looked records that this worker has read the audit log now and found nothing to count.
func (w *SyncWorker) looked(ctx context.Context) error {
	if err := w.bury(ctx); err != nil {
		return err
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET updated_at = now()"); err != nil {
		return fmt.Errorf("recording that all pulls were counted: %w", err)
	}
	return nil
}

// start inserts the row of pullstatisticsprocessingstate if there is none. If counting was
// switched off for longer than the audit log keeps entries, entries may have been dropped
// unread. Then start moves recorded_since forward, the time from which on statistics are
// complete.
func (w *SyncWorker) start(ctx context.Context) error {
	if w.started {
		return nil
	}
	log, err := w.audit.PullState(ctx, audit.Position{})
	if err != nil {
		return err
	}
	since := log.Now // when statistics were switched on
	if !log.Oldest.IsZero() && log.Oldest.Before(since) {
		since = log.Oldest
	}
	_, err = w.opt.Stats.Pool.Exec(ctx, `
		INSERT INTO pullstatisticsprocessingstate AS s (recorded_since, history_since) VALUES ($1, $1)
		ON CONFLICT (id) DO UPDATE SET recorded_since = GREATEST(s.recorded_since, now() - $2::bigint * interval '1 microsecond')
		WHERE s.updated_at < now() - $2::bigint * interval '1 microsecond' AND $2 > 0`, since, w.opt.Retention.Microseconds())
	if err != nil {
		return fmt.Errorf("beginning to count pulls: %w", err)
	}
	w.started = true
	return nil
}

// Status says up to which position the SyncWorker has read the audit log, and since when the
// statistics are complete.
type Status struct {
	// Since is the time from which on every use is recorded: a tag or manifest without
	// statistics was not pulled since then.
	Since time.Time
	// Counts is the time from which on every pull is counted, or will be. It is later than
	// Since if pulls found no room in a buffer, so that they set last-used times but aren't
	// counted.
	Counts time.Time
	// Checks is the time from which on HEAD requests are recorded as uses.
	Checks time.Time
	// Behind is the age of the oldest pull that isn't counted yet, as far as it is known: in the
	// audit log, among the pulls by digest that may still count for a tag, or in the memory of a
	// process that has long had something to write. 0 if all are counted.
	Behind time.Duration
	// Read is the watermark: the position up to which the audit log was read.
	Read audit.Position
	Last time.Time // the newest pull that was read, zero: none
	// Counted is the number of pulls that were ever counted from the audit log.
	Counted int64
	// Checked is when a SyncWorker last looked for uncounted pulls.
	Checked time.Time
	// Now is the time of this status, by the clock of the statistics' database.
	Now time.Time
	// Foreign says that no pull can be counted until Reset is called: see ErrForeignLog.
	Foreign bool
	// Unseen says that Redis may have pulls that this process can't read: see ErrUnseen.
	Unseen bool
}

// Status returns up to which position the audit log was read, since when the statistics are
// complete, and what keeps pulls from being counted. If pullstatisticsprocessingstate has no
// row yet, Status inserts it.
func (w *SyncWorker) Status(ctx context.Context) (Status, error) {
	s, err := readState(ctx, w.opt.Stats.Pool, false)
	if errors.Is(err, errNoState) {
		if err = w.reading.Acquire(ctx, 1); err == nil {
			err = w.start(ctx)
			w.reading.Release(1)
		}
		if err == nil {
			s, err = readState(ctx, w.opt.Stats.Pool, false)
		}
	}
	if err != nil {
		return Status{}, err
	}
	log, err := w.audit.PullState(ctx, s.Read)
	if err != nil {
		return Status{}, err
	}
	out := Status{Since: s.Since, Counts: s.Counts, Checks: s.Checks, Read: s.Read, Last: s.Last, Counted: s.Counted, Checked: s.Updated.UTC(), Now: s.now.UTC(), Foreign: log.Foreign}
	if out.Unseen, err = w.unseen(ctx); err != nil {
		return Status{}, err
	}
	if !log.Oldest.IsZero() {
		out.Behind = max(0, log.Now.Sub(log.Oldest))
	}
	waits, err := w.waiting(ctx)
	out.Behind = max(out.Behind, waits)
	return out, err
}

// waiting returns the age of the oldest pull by digest that may still count for a tag, or of the
// oldest request that a process has to write, if it is older than both are by rule (joinLag).
func (w *SyncWorker) waiting(ctx context.Context) (time.Duration, error) {
	var micros int64
	err := w.opt.Stats.Pool.QueryRow(ctx, `
		SELECT COALESCE((EXTRACT(EPOCH FROM clock_timestamp() - LEAST(
			(SELECT time FROM pullstatisticspending WHERE NOT head AND digest <> '' ORDER BY time, id LIMIT 1),
			(SELECT min(written_to) FROM pullrecorders WHERE ended_at IS NULL))) * 1000000)::bigint, 0)`).Scan(&micros)
	if err != nil {
		return 0, fmt.Errorf("looking at the pulls that wait: %w", err)
	}
	if age := time.Duration(micros) * time.Microsecond; age > 2*joinLag {
		return age, nil
	}
	return 0, nil
}

// Read returns the watermark to an audit.PartitionManager, which drops no partition of the
// audit log that has unread pulls, that is, entries after the watermark. Read returns
// ErrForeignLog if the watermark isn't valid because transaction ids began anew.
func (w *SyncWorker) Read(ctx context.Context) (audit.Position, error) {
	s, err := w.Status(ctx)
	if err == nil && s.Foreign {
		err = ErrForeignLog
	}
	return s.Read, err
}

// Reset ends the state of ErrForeignLog. It gives the pulls in the audit log new positions
// in a valid order and returns how many of them are still to be counted: those that came
// after the watermark in the old order, and those that are younger than the newest pull
// that was read, since they were written after the restore. On a long log it may take
// minutes.
//
// If audit log and statistics are in one database, Reset uses one transaction. Otherwise it
// first gives the log its new order, in a transaction of its own. After a crash between the
// two transactions, the SyncWorker still refuses to count and Reset can be run again. The
// repeated Reset recognizes uncounted pulls by their age alone.
//
// Reset first mends times in the statistics that are in the future (mendAll). It takes the database
// for complete: after a recovery, [SyncWorker.Recover] is to be called instead.
func (w *SyncWorker) Reset(ctx context.Context) (unread int64, err error) {
	if err := w.reading.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer w.reading.Release(1)
	if err := w.start(ctx); err != nil {
		return 0, err
	}
	ctx = db.Unhurried(ctx)
	if err := w.mendAll(ctx); err != nil {
		return 0, fmt.Errorf("resetting the pull statistics: %w", err)
	}
	err = w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if err := statsdb.Unhurried(ctx, tx); err != nil {
			return err
		}
		s, err := readState(ctx, tx, true)
		if err != nil {
			return err
		}
		var to audit.Position
		reset := func(tx pgx.Tx) error {
			if err := statsdb.Unhurried(ctx, tx); err != nil {
				return err
			}
			to, unread, err = audit.ResetPulls(ctx, tx, s.Read, s.Last)
			return err
		}
		if w.opt.Log == w.opt.Stats {
			err = reset(tx)
		} else {
			err = w.opt.Log.Tx(ctx, reset)
		}
		if err != nil {
			return err
		}
		xid, id := to.Arguments()
		_, err = tx.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET last_processed_xid = $1::text::xid8, last_processed_log_id = $2, updated_at = now()", xid, id)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("resetting the pull statistics: %w", err)
	}
	return unread, nil
}

// Recover is Reset for a database that was set back to an earlier state. Uses from between that state
// and now are unknown, also those that no other mark shows. So Recover first records that statistics,
// and HEAD requests as uses, are complete from now on only. A crash before the end of Reset then leaves
// nothing that looks complete.
func (w *SyncWorker) Recover(ctx context.Context) (unread int64, err error) {
	if err := statsdb.Unrecorded(ctx, w.opt.Stats, 0); err != nil {
		return 0, err
	}
	if err := statsdb.Unchecked(ctx, w.opt.Stats, 0); err != nil {
		return 0, err
	}
	return w.Reset(ctx)
}

// repositories returns the ids of the repositories from which clients made the given pulls,
// in ascending order.
func repositories(pulls []audit.Pull) []int64 {
	var ids []int64
	for _, p := range pulls {
		if p.RepositoryID != 0 {
			ids = append(ids, p.RepositoryID)
		}
	}
	return sorted(ids)
}

// sorted returns the ids in ascending order, without duplicates.
func sorted(ids []int64) []int64 {
	slices.Sort(ids)
	return slices.Compact(ids)
}
