package pullstats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// state is the row of pullstatisticsprocessingstate.
type state struct {
	Read    audit.Position // the watermark
	Last    time.Time      // the newest pull that was read, zero: none
	Since   time.Time      // from when on every use is recorded
	Counts  time.Time      // from when on every pull is counted
	Checks  time.Time      // from when on HEAD requests are recorded
	Counted int64
	Updated time.Time
	now     time.Time // by the clock of the statistics' database
	missing int       // number of processes that went silent while they had pulls to write
}

// errNoState says that nothing was ever counted.
var errNoState = errors.New("no pulls were counted yet")

// readState reads the state. With lock no worker counts until the transaction ends. Error:
// errNoState.
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
		s.Read.XID, err = strconv.ParseUint(xid, 10, 64)
	}
	if err != nil {
		return s, fmt.Errorf("reading how far pulls were counted: %w", err)
	}
	if last != nil {
		s.Last = last.UTC()
	}
	s.Since, s.Counts = s.Since.UTC(), s.Counts.UTC()
	if s.missing > 0 && s.now.After(s.Since) { // that process may have died with unwritten pulls
		s.Since = s.now.UTC()
	}
	if s.Since.After(s.Counts) {
		s.Counts = s.Since
	}
	return s, nil
}

// move moves the watermark over pulls and adds counted to the number of counted pulls. If
// another worker has moved the watermark since s was read, move changes nothing and returns
// false.
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
	done, err := tx.Exec(ctx, `
		UPDATE pullstatisticsprocessingstate SET
			last_processed_xid = $3::text::xid8, last_processed_log_id = $4,
			last_processed_timestamp = GREATEST(last_processed_timestamp, $5::timestamptz),
			entries_counted = entries_counted + $6, updated_at = now(), reads = 2
		WHERE last_processed_xid = $1::text::xid8 AND last_processed_log_id = $2`,
		strconv.FormatUint(s.Read.XID, 10), s.Read.ID, strconv.FormatUint(to.XID, 10), to.ID, last, counted)
	if err != nil {
		return false, fmt.Errorf("recording how far pulls were counted: %w", err)
	}
	return done.RowsAffected() > 0, nil
}

// looked records that a worker looked and found nothing to count.
func (w *SyncWorker) looked(ctx context.Context) error {
	if err := w.bury(ctx); err != nil {
		return err
	}
	if _, err := w.opt.Stats.Pool.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET updated_at = now()"); err != nil {
		return fmt.Errorf("recording that all pulls were counted: %w", err)
	}
	return nil
}

// start makes the state's row if there is none, and sets Since later if entries may have
// been dropped unread while statistics were off.
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
		INSERT INTO pullstatisticsprocessingstate AS s (recorded_since) VALUES ($1)
		ON CONFLICT (id) DO UPDATE SET recorded_since = GREATEST(s.recorded_since, now() - $2::bigint * interval '1 microsecond')
		WHERE s.updated_at < now() - $2::bigint * interval '1 microsecond' AND $2 > 0`, since, w.opt.Retention.Microseconds())
	if err != nil {
		return fmt.Errorf("beginning to count pulls: %w", err)
	}
	w.started = true
	return nil
}

// Unrecorded notes, for a process that records no pulls, that statistics are incomplete
// until d from now. The process must call it again before that time.
func Unrecorded(ctx context.Context, stats *db.DB, d time.Duration) error {
	_, err := stats.Pool.Exec(ctx, `
		INSERT INTO pullstatisticsprocessingstate AS s (recorded_since) VALUES (now() + $1::bigint * interval '1 microsecond')
		ON CONFLICT (id) DO UPDATE SET recorded_since = GREATEST(s.recorded_since, EXCLUDED.recorded_since)`, d.Microseconds())
	if err != nil {
		return fmt.Errorf("telling that pulls aren't recorded: %w", err)
	}
	return nil
}

// Unchecked notes, for a process that records no HEAD requests, that last-used times are
// incomplete until d from now. The process must call it again before that time.
func Unchecked(ctx context.Context, stats *db.DB, d time.Duration) error {
	_, err := stats.Pool.Exec(ctx,
		"UPDATE pullstatisticsprocessingstate SET checks_since = GREATEST(checks_since, now() + $1::bigint * interval '1 microsecond')", d.Microseconds())
	if err != nil {
		return fmt.Errorf("telling that HEAD requests aren't remembered: %w", err)
	}
	return nil
}

// Status says how far the statistics have read the audit log.
type Status struct {
	// Since is when statistics became complete: a tag or manifest without statistics has
	// not been pulled since then.
	Since time.Time
	// Counts is the time from which on every pull is counted, or will be. It is after Since
	// when pulls found no room and only their last-used times are known.
	Counts time.Time
	// Checks is the time from which on uses other than pulls are recorded.
	Checks time.Time
	// Behind is the age of the oldest pull that isn't counted yet, 0 when there is
	// none.
	Behind time.Duration
	// Read is the position up to which the log was read.
	Read audit.Position
	Last time.Time // the newest pull that was read, zero: none
	// Counted is how many pulls of the log were counted, ever.
	Counted int64
	// Checked is when a worker last looked for more.
	Checked time.Time
	// Foreign says that nothing can be counted: see ErrForeignLog.
	Foreign bool
	// Unseen says that there are pulls that this process can't see: see ErrUnseen.
	Unseen bool
}

// Status returns how far the log was read. Before anything was counted it first makes the
// state.
func (w *SyncWorker) Status(ctx context.Context) (Status, error) {
	s, err := readState(ctx, w.opt.Stats.Pool, false)
	if errors.Is(err, errNoState) {
		w.reading.Lock()
		err = w.start(ctx)
		w.reading.Unlock()
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
	out := Status{Since: s.Since, Counts: s.Counts, Checks: s.Checks, Read: s.Read, Last: s.Last, Counted: s.Counted, Checked: s.Updated.UTC(), Foreign: log.Foreign}
	if out.Unseen, err = w.unseen(ctx); err != nil {
		return Status{}, err
	}
	if !log.Oldest.IsZero() {
		out.Behind = max(0, log.Now.Sub(log.Oldest))
	}
	return out, nil
}

// Read returns the position up to which pulls have been read, for an audit.PartitionManager,
// which must not drop uncounted pulls behind it.
func (w *SyncWorker) Read(ctx context.Context) (audit.Position, error) {
	s, err := w.Status(ctx)
	if err == nil && s.Foreign {
		err = ErrForeignLog
	}
	return s.Read, err
}

// Reset ends the state of ErrForeignLog: it gives the pulls of the log a new order and
// returns how many of them are to be counted. These are the pulls behind the watermark by
// the old order, and those younger than the newest that was read, since they came after the
// restore. It may take minutes on a long log.
//
// If log and statistics are in one database, Reset uses one transaction. Otherwise it first
// gives the log its order. After a crash in between, the statistics still refuse the log
// and Reset can be run again, but it then finds the uncounted pulls by their age alone.
func (w *SyncWorker) Reset(ctx context.Context) (unread int64, err error) {
	w.reading.Lock()
	defer w.reading.Unlock()
	if err := w.start(ctx); err != nil {
		return 0, err
	}
	ctx = db.Unhurried(ctx)
	err = w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if err := unhurried(ctx, tx); err != nil {
			return err
		}
		s, err := readState(ctx, tx, true)
		if err != nil {
			return err
		}
		var to audit.Position
		reset := func(tx pgx.Tx) error {
			if err := unhurried(ctx, tx); err != nil {
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
		_, err = tx.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET last_processed_xid = $1::text::xid8, last_processed_log_id = $2, updated_at = now(), reads = 2",
			strconv.FormatUint(to.XID, 10), to.ID)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("resetting the pull statistics: %w", err)
	}
	return unread, nil
}

// unhurried lifts the pool's time limits for a transaction that takes long, and that may be
// idle while the other database works.
func unhurried(ctx context.Context, tx pgx.Tx) error {
	if err := db.LiftLimits(ctx, tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '30min'")
	return err
}

// repositories returns the ids of the pulls' repositories, in ascending order.
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
