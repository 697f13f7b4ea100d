package pullstats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

// RetentionOptions configures a RetentionWorker.
type RetentionOptions struct {
	Stats *db.DB // required: the database of the statistics
	// Retention is how long the history of a day is kept at least. Required: a
	// history that is kept for ever needs no RetentionWorker.
	Retention time.Duration
	// Batch is how many rows one statement deletes. Default 1,000.
	Batch int
	// MayDelete returns an error that wraps worker.ErrRest while what is old at a time that the
	// database has given mustn't be deleted for its age (clock.Guard.CheckTime). Nil: it always may.
	MayDelete func(ctx context.Context, now time.Time) error
	Logger    *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// RetentionWorker deletes the history of pulls of days that are older than the retention. It
// doesn't change the counts. Any number of processes may run one: it skips rows that others
// have locked, so it can't take part in a deadlock.
type RetentionWorker struct {
	opt     RetentionOptions
	loop    *worker.Loop
	due     time.Time // used by the loop alone
	deleted int64     // rows since the loop last slept
}

// NewRetentionWorker makes a worker. It deletes nothing before Run.
func NewRetentionWorker(o RetentionOptions) (*RetentionWorker, error) {
	if o.Stats == nil || o.Retention <= 0 {
		return nil, errors.New("pullstats: the database of the statistics and the retention of the history are required")
	}
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &RetentionWorker{opt: o}
	w.loop = worker.New(worker.Options{Name: "retention of the history of pulls", Batch: w.round, Next: w.next, Log: o.Logger, Metrics: o.Worker})
	return w, nil
}

// Run deletes once an hour what is too old, in batches, until ctx ends. Then it returns nil.
func (w *RetentionWorker) Run(ctx context.Context) error { return w.loop.Run(ctx) }

func (w *RetentionWorker) round(ctx context.Context) (more bool, err error) {
	if time.Now().Before(w.due) {
		return false, nil
	}
	n, more, err := w.batch(ctx)
	if err != nil {
		return false, err
	}
	if w.deleted += n; more {
		return true, nil
	}
	if w.deleted > 0 {
		w.opt.Logger.InfoContext(ctx, "deleted old history of pulls", "rows", w.deleted)
	}
	w.deleted, w.due = 0, time.Now().Add(time.Hour)
	return false, nil
}

func (w *RetentionWorker) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// batch deletes up to Batch rows from each table of the history, and returns how many it has
// deleted. `more` says that there may be more.
func (w *RetentionWorker) batch(ctx context.Context) (n int64, more bool, err error) {
	var now time.Time
	if err := w.opt.Stats.Pool.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		return 0, false, fmt.Errorf("deleting old history of pulls: %w", err)
	}
	if w.opt.MayDelete != nil {
		if err := w.opt.MayDelete(ctx, now); err != nil {
			return 0, false, err
		}
	}
	for _, table := range []string{"tagpullhistory", "manifestpullhistory", "repositorypullhistory", "namespacepullhistory", "pullhistory"} {
		done, err := w.opt.Stats.Pool.Exec(ctx, fmt.Sprintf(`
			DELETE FROM %[1]s WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM %[1]s WHERE day < $1 ORDER BY day LIMIT $2 FOR UPDATE SKIP LOCKED))`, table), firstKept(now, w.opt.Retention), w.opt.Batch)
		if err != nil {
			return n, false, fmt.Errorf("deleting old history of pulls: %w", err)
		}
		n += done.RowsAffected()
		more = more || done.RowsAffected() == int64(w.opt.Batch)
	}
	return n, more, nil
}

// firstKept returns the oldest day of which some part is younger than the retention.
func firstKept(now time.Time, retention time.Duration) time.Time {
	return statsdb.DayOf(now.Add(-retention))
}
