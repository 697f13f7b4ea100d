package pullstats

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// settleFor is how long Settle waits for processes. A process learns within busyTick that
	// it is waited for. A pull may wait for Redis for digestLinger and digestPatience before
	// it goes to the audit log.
	settleFor = 15 * time.Second
	// settleAgain is how long Settle waits within settleFor after it has waited in vain.
	settleAgain = time.Second
	// settleEvery is how often Settle looks whether processes have answered.
	settleEvery = 50 * time.Millisecond
	// confirmAfter is how long a process that was found silent must stay silent before it
	// counts as killed. A database's clock that was set forward makes all processes look
	// silent, until each of them has reported again.
	confirmAfter = 15 * time.Second
)

// ErrUnsettled says that a process hasn't written the uses that it answered, so that nobody can
// tell what was used.
var ErrUnsettled = errors.New("a process hasn't written yet which images it has served, so it can't be told what was used; " +
	"it is waited for until it reports, or counts as killed a minute or two after its last report")

// Settle waits until every process has written all uses (pulls and HEADs) that it answered before
// the call, to where Uses finds them. If a process doesn't do so within some seconds, Settle
// returns ErrUnsettled. See the section "Why no use is overlooked" of the package's comment.
//
// A process that is killed may take uses with it. It then counts as killed after a while, which
// moves Status.Since. So a caller that decides by the absence of a use must read the status
// after Settle has returned, and then Uses.
func (w *SyncWorker) Settle(ctx context.Context) error {
	var n int64
	if err := w.opt.Stats.Pool.QueryRow(ctx, "SELECT nextval('pullrecorders_asked')").Scan(&n); err != nil {
		return fmt.Errorf("asking processes to write which images were used: %w", err)
	}
	if local := w.local.Load(); local != nil {
		local.loop.Wake()
	}
	for limit := time.Now().Add(w.settleLimit()); ; {
		waits, err := w.unanswered(ctx, n)
		if err != nil {
			w.opt.Metrics.waitingFor(math.NaN())
			return err
		}
		w.opt.Metrics.waitingFor(float64(len(waits)))
		if len(waits) == 0 {
			w.inVain.Store(0)
			return nil
		}
		if time.Now().After(limit) {
			w.inVain.Store(time.Now().UnixNano())
			w.log.WarnContext(ctx, "processes haven't written which images they served, so nothing is deleted by last use", "processes", strings.Join(waits, ", "))
			if err := w.bury(ctx); err != nil {
				return err
			}
			return fmt.Errorf("%w: %s", ErrUnsettled, strings.Join(waits, ", "))
		}
		if err := worker.Sleep(ctx, settleEvery); err != nil {
			return err
		}
	}
}

// settleLimit returns how long Settle may wait: not long if the last call has waited in vain
// lately, since a run calls Settle for each of its repositories.
func (w *SyncWorker) settleLimit() time.Duration {
	if at := w.inVain.Load(); at != 0 && time.Since(time.Unix(0, at)) < w.patience {
		return min(settleAgain, w.patience)
	}
	return w.patience
}

// unanswered returns the processes that may have answered uses before the number n was taken
// from pullrecorders_asked, and haven't written them.
func (w *SyncWorker) unanswered(ctx context.Context, n int64) ([]string, error) {
	rows, err := w.opt.Stats.Pool.Query(ctx, `
		SELECT instance || ' (last heard of at ' || to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ')' FROM pullrecorders
		WHERE ended_at IS NULL AND NOT (answered >= $1
			OR written_to IS NULL AND seen_at > now() - $2::bigint * interval '1 microsecond' AND seen_at < now() + $2::bigint * interval '1 microsecond')
		ORDER BY id`, n, trustedSilent.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("asking up to when uses are written: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("asking up to when uses are written: %w", err)
	}
	return list, nil
}

// Hastens lets Settle wake the recorder of this process, so that it answers at once.
func (w *SyncWorker) Hastens(r *Recorder) {
	if w != nil && r != nil && r.presence != nil {
		w.local.Store(r.presence)
	}
}

// suspect is a process that was found silent: when, by this process's monotonic clock, and with
// which last report.
type suspect struct {
	since time.Time
	seen  time.Time
}

// bury looks in pullrecorders for processes that were killed: those that were found silent, and
// are still silent confirmAfter later. If one of them had unwritten uses, bury records that
// statistics are complete only from now on. It also deletes the rows of processes that ended
// more than an hour ago, unless Redis may have unflushed pulls of them.
func (w *SyncWorker) bury(ctx context.Context) error {
	ids, err := w.silent(ctx)
	if err != nil {
		return fmt.Errorf("looking for processes that were killed: %w", err)
	}
	err = w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if len(ids) > 0 {
			if err := w.end(ctx, tx, ids); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `
			DELETE FROM pullrecorders WHERE ended_at < now() - interval '1 hour'
				AND (NOT redis OR ended_at < (SELECT last_processed_timestamp FROM redisprocessingstate))`)
		return err
	})
	if err != nil {
		return fmt.Errorf("looking for processes that were killed: %w", err)
	}
	if w.opt.ClocksFit != nil && w.opt.ClocksFit(ctx) != nil {
		return nil
	}
	return w.mendTimes(ctx)
}

// end marks those of the processes `ids` as ended that are still silent.
func (w *SyncWorker) end(ctx context.Context, tx pgx.Tx, ids []int64) error {
	rows, err := tx.Query(ctx, `
		WITH old AS (
			SELECT id, written_to FROM pullrecorders WHERE id = ANY ($1) AND ended_at IS NULL
				AND seen_at < now() - $2::bigint * interval '1 microsecond' FOR UPDATE)
		UPDATE pullrecorders p SET ended_at = now() FROM old WHERE p.id = old.id RETURNING p.instance, old.written_to IS NOT NULL`,
		ids, statsdb.GoneAfter.Microseconds())
	if err != nil {
		return err
	}
	lost, instance, unwritten := 0, "", false
	if _, err := pgx.ForEachRow(rows, []any{&instance, &unwritten}, func() error {
		if unwritten {
			lost++
			w.log.WarnContext(ctx, "a process was killed with uses of images that it hadn't written: statistics are complete from now on only", "process", instance)
		} else {
			w.log.InfoContext(ctx, "a process that had written everything doesn't report any more", "process", instance)
		}
		return nil
	}); err != nil {
		return err
	}
	w.opt.Metrics.killed(lost)
	if lost > 0 {
		_, err = tx.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET recorded_since = GREATEST(recorded_since, now())")
	}
	return err
}

// silent returns the processes that are to be marked as ended, because they were silent at
// two looks that are confirmAfter apart.
func (w *SyncWorker) silent(ctx context.Context) (ids []int64, err error) {
	// A report from the future was written before the database's clock was set back. It would
	// keep a dead process alive until then.
	if _, err := w.opt.Stats.Pool.Exec(ctx,
		"UPDATE pullrecorders SET seen_at = now() WHERE ended_at IS NULL AND seen_at > now() + $1::bigint * interval '1 microsecond'", statsdb.GoneAfter.Microseconds()); err != nil {
		return nil, err
	}
	rows, err := w.opt.Stats.Pool.Query(ctx, `
		SELECT id, seen_at FROM pullrecorders
		WHERE ended_at IS NULL AND seen_at < now() - (CASE WHEN written_to IS NULL THEN $2::bigint ELSE $1 END) * interval '1 microsecond'`,
		statsdb.GoneAfter.Microseconds(), (10 * idleTick).Microseconds())
	if err != nil {
		return nil, err
	}
	now, found := time.Now(), map[int64]suspect{}
	w.suspecting.Lock()
	defer w.suspecting.Unlock()
	var id int64
	var seen time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &seen}, func() error {
		s, known := w.suspects[id]
		if !known || !s.seen.Equal(seen) {
			s = suspect{now, seen}
		}
		if found[id] = s; now.Sub(s.since) >= w.confirm {
			ids = append(ids, id)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	w.suspects = found
	return ids, nil
}

// suspects says whether processes were found silent that may have been killed.
func (w *SyncWorker) hasSuspects() bool {
	w.suspecting.Lock()
	defer w.suspecting.Unlock()
	return len(w.suspects) > 0
}
